"""Find how the author wrote an op: ``x + y`` and ``x.add(y)`` reach a function mode as the same method, but differ in bytecode."""

from __future__ import annotations

import ast
import dis
import linecache
import operator
import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from ..ops._spellings import OPERATORS
from ..torch_internals import META_KERNELS, OpOverload

WRITTEN_AS = {
    getattr(torch.Tensor, method): getattr(operator, symbol)
    for name in ("add", "sub", "mul", "div", "matmul")
    for method, symbol in ((name, OPERATORS[name]), (f"{name}_", f"i{OPERATORS[name]}"))
    if hasattr(torch.Tensor, method)
}
"""For each method that a function mode sees, the operator that the author may have written instead."""


COMPARISONS = ast.Eq, ast.NotEq, ast.In, ast.NotIn
LOOK_UPS = frozenset({"add", "discard", "remove", "get", "setdefault", "pop"})
"""Methods of sets and dicts whose first argument is a key."""
OBSERVING = f"{__package__}."
"""The beginning of the names of the modules whose frames are between the author's frame and the frames of this module."""


class Spelling:
    """A cache for one run: whether a bytecode instruction is an operator (``x + y``) or a method call (``x.add(y)``)."""

    def __init__(self) -> None:
        self._operators: dict[tuple[CodeType, int], bool] = {}
        self._only_compared = cache(_only_compared)

    def of(self, method: Any) -> Any:
        """Return the operator for ``method`` if the author wrote the call as an operator, otherwise ``method``."""
        frame = _author()
        instruction = frame.f_code, frame.f_lasti
        if instruction not in self._operators:
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._operators[instruction] = name.startswith(("BINARY_", "INPLACE_"))
        return WRITTEN_AS[method] if self._operators[instruction] else method

    def is_compared(self, method: str) -> bool:
        """Return whether the author's line uses the results of this method only to distinguish objects.

        The line must only compare the results by ==, != or ``in``, or look them up in a dict or set. Return False if the source is missing.
        """
        frame = _author()
        return self._only_compared(frame.f_code.co_filename, frame.f_lineno, method)


def is_meta_kernel() -> bool:
    """Return whether this call comes from torch's Python code for the meta device, which runs an operator that no function mode saw."""
    frame = _author()
    if frame.f_globals is OpOverload.__call__.__globals__ and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith(META_KERNELS)


def _author() -> FrameType:
    """Return the frame of the call that a mode is handling."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(OBSERVING):
        frame = frame.f_back
    return frame


def _only_compared(filename: str, line: int, method: str) -> bool:
    try:
        nodes = [*ast.walk(ast.parse("".join(linecache.getlines(filename))))]
    except SyntaxError:
        return False
    operands = set[ast.AST]()
    for node in nodes:
        if isinstance(node, ast.Compare) and all(isinstance(op, COMPARISONS) for op in node.ops):
            operands.update((node.left, *node.comparators))
        elif isinstance(node, ast.Subscript):
            operands.add(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOK_UPS:
            keys = [key for key in node.args[:1] for key in (key.elts if isinstance(key, ast.Tuple) else [key])]
            operands.update(keys)
    calls = {
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and node.lineno <= line <= (node.end_lineno or line)
    }
    return bool(calls) and calls <= operands
