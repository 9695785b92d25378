"""All spellings of an op: ``x + y``, ``x.add_(y)``, ``torch.add``, ``operator.iadd``, ``aten::add``."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..torch_internals import BINDINGS, FUNCTION_MODULES

NAMESPACES = (
    torch, torch.Tensor, nn.functional, *FUNCTION_MODULES.values(), torch.special, torch.linalg, torch.fft, *BINDINGS,
)  # fmt: skip
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "floor_divide": "floordiv", "remainder": "mod",
    "pow": "pow", "matmul": "matmul", "neg": "neg", "abs": "abs", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "invert",
    "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift",
}  # fmt: skip


REACHED_AS = {
    operand: getattr(torch.Tensor, name)
    for name, symbol in OPERATORS.items()
    for operand in (getattr(operator, symbol, None), getattr(torch.Tensor, f"__{symbol}__", None))
    if operand is not None
}
"""The method that a function mode sees for a Python operator: ``Tensor.mul`` for ``x * y``."""


def _functions() -> dict[str, list[Any]]:
    """Return the functions of all namespaces by name."""
    found: dict[str, list[Any]] = {}
    for namespace in NAMESPACES:
        for name in dir(namespace):
            target = getattr(namespace, name, None)
            if callable(target) and not isinstance(target, type):
                found.setdefault(name, []).append(target)
    return found


FUNCTIONS = _functions()
"""Functions by name, read once: looking up every name in every namespace would take longer than the rest of the import."""


def named(*names: str) -> Iterator[Any]:
    """Yield all spellings of these names: functions of torch, F, special, linalg and fft, Tensor methods, aten packets,
    in-place forms (``name_``), and the Python operators that call them."""
    for name in names:
        yield from (*FUNCTIONS.get(name, ()), *FUNCTIONS.get(f"{name}_", ()))
        yield f"aten::{name}"
        if hasattr(torch.fft, name):
            yield f"aten::fft_{name}"
        if name in OPERATORS:
            yield from _operators(OPERATORS[name])


def _operators(symbol: str) -> Iterator[Any]:
    for spelling in (symbol, f"r{symbol}", f"i{symbol}"):
        method = getattr(torch.Tensor, f"__{spelling}__", None)
        function = getattr(operator, spelling, None) or getattr(operator, f"{spelling}_", None)
        yield from filter(None, (method, function))
    if symbol == "truediv":
        yield from (torch.Tensor.__div__, torch.Tensor.__rdiv__, torch.Tensor.__idiv__)
