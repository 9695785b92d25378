"""Torch's own functions and Tensor's methods by name; see the package."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import nn

from ..torch_internals import FUNCTION_MODULES, HigherOrderOperator, OpOverload, OpOverloadPacket, TensorBase

NAMESPACES = {
    "operator": operator,
    "torch": torch,
    "torch.nn.functional": nn.functional,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    **FUNCTION_MODULES,
}
"""The modules to look up functions in: a function's ``__module__`` may name another module."""


def name_in_torch(target: Any) -> str:
    """Return the name of an operator, or of a function or method of torch; "" for anything else."""
    match target:
        case OpOverload():
            return f"{target._schema.name}.{target._overloadname}"
        case OpOverloadPacket():
            return str(target._qualified_op_name)
        case HigherOrderOperator():
            return f"higher_order::{target.name()}"
    with suppress(TypeError):  # unhashable
        if not isinstance(target, type):
            return _names().get(target, "")
    return ""


def found_in_torch(name: str) -> Any:
    """Return the operator, function or method of this name; None if torch has none."""
    return _operator(name) if "::" in name else _functions().get(name)


def _operator(name: str) -> Any:
    try:
        found = operator.attrgetter(name.replace("::", "."))(torch.ops)
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, (OpOverload, OpOverloadPacket, HigherOrderOperator)) else None


@cache
def _functions() -> dict[str, Any]:
    """Return torch's functions and Tensor's methods by name."""
    return dict(_torchs())


@cache
def _names() -> dict[Any, str]:
    """Return the first name of each of torch's functions and Tensor's methods."""
    return {function: name for name, function in reversed(list(_torchs()))}


def _torchs() -> Iterator[tuple[str, Any]]:
    for path, namespace in NAMESPACES.items():
        for name in dir(namespace) if path.endswith("Functions") else vars(namespace):
            value = getattr(namespace, name)
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
                yield f"{path}:{name}", value
    for cls in (torch.Tensor, TensorBase):
        for name, value in vars(cls).items():
            path = (
                "torch:Tensor"
                if getattr(torch.Tensor, name) is value
                else f"{TensorBase.__module__}:{TensorBase.__qualname__}"
            )
            if isinstance(value, types.GetSetDescriptorType):
                yield f"{path}.{name}.__get__", value.__get__
            elif callable(value) and not isinstance(value, type):
                yield f"{path}.{name}", value
