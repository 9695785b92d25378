"""How an op was written: ``x + y`` and ``x.add(y)`` reach a function mode as the same method; the caller's bytecode tells."""

from __future__ import annotations

import dis
import operator
import sys
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


OBSERVING = frozenset(f"{__package__}.{name}" for name in ("fast", "modes", "observe", "spelling"))
"""The modules whose frames lie between the author's code and here."""


class Spelling:
    """How the operators of one run are written; what was found of an instruction holds for the next time."""

    def __init__(self) -> None:
        self._operators: dict[tuple[CodeType, int], bool] = {}

    def of(self, method: Any) -> Any:
        """The operator where ``method`` was reached by one in the author's code; else the method."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in OBSERVING:
            frame = frame.f_back
        place = frame.f_code, frame.f_lasti
        if place not in self._operators:
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._operators[place] = name.startswith(("BINARY_", "INPLACE_"))
        return WRITTEN_AS[method] if self._operators[place] else method
