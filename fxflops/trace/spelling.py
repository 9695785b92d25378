"""How an op was written: ``x + y`` and ``x.add(y)`` reach a function mode as the same method; the caller's bytecode tells."""

from __future__ import annotations

import dis
import operator
import sys
from functools import lru_cache
from types import CodeType
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


def spelled(method: Any, node: Any) -> Any:
    """The operator where ``method`` was reached by one in the author's code, or by a graph's node that calls one; else the
    method."""
    symbol = WRITTEN_AS[method]
    if node is symbol:
        return symbol
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in OBSERVING:
        frame = frame.f_back
    return symbol if _is_operator(frame.f_code, frame.f_lasti) else method


OBSERVING = frozenset(f"{__package__}.{name}" for name in ("fast", "modes", "observe"))
"""The modules whose frames lie between the author's code and here."""


@lru_cache(maxsize=4096)
def _is_operator(code: CodeType, instruction: int) -> bool:
    return dis.opname[code.co_code[instruction]].startswith(("BINARY_", "INPLACE_"))
