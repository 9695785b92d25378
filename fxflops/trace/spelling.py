"""How an op was written: ``x + y`` and ``x.add(y)`` reach a function mode as the same method; the caller's bytecode tells."""

from __future__ import annotations

import dis
import operator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

WRITTEN_AS = {
    getattr(torch.Tensor, method): getattr(operator, symbol)
    for method, symbol in {
        "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "matmul": "matmul",
        "add_": "iadd", "sub_": "isub", "mul_": "imul", "div_": "itruediv",
    }.items()
}  # fmt: skip
"""The operator that may have been written where a mode sees the method."""


def spelled(method: Any, caller: FrameType, node: Any) -> Any:
    """The operator where ``method`` was reached by one in ``caller``, or by a graph's node that calls one; else the method."""
    symbol = WRITTEN_AS[method]
    return symbol if node is symbol or _is_operator(caller.f_code, caller.f_lasti) else method


@lru_cache(maxsize=4096)
def _is_operator(code: CodeType, instruction: int) -> bool:
    return dis.opname[code.co_code[instruction]].startswith(("BINARY_", "INPLACE_"))
