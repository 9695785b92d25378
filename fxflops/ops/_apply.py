"""Calling a formula: its parameters are bound to what the call was given, by the op's own names."""

from __future__ import annotations

import inspect
import operator
from functools import cache
from typing import Any

import torch
from torch import nn

from ..errors import FormulaError
from ..records import Call, Cost, FormulaFunction, Spec
from ._registry import Formula, is_method

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CALLED = {
    "op": "by the op's own names",
    "module": "with the module first",
    "mapping": "as torch_flops calls it",
}
ALIASES = {
    "self": "input", "x": "input", "axis": "dim", "keepdims": "keepdim", "mat2": "other", "vec": "other", "tensor": "other",
}  # fmt: skip


def apply(entry: Formula, call: Call, module: nn.Module | None = None) -> Cost:
    """The cost of ``call`` by ``entry``; ``module`` is the leaf it ran, needed only where the formula reads it.

    Raises FormulaError when the formula raises, does not fit the call's arguments, or returns neither a Cost nor an int that can
    be: none is negative, and who multiplies and accumulates computes.
    """
    if entry.function is None:
        return Cost()
    try:
        result = _call(entry, entry.function, call, module)
        return _checked(result if isinstance(result, Cost) else Cost(others=_whole(result)))
    except Exception as error:
        given = ", ".join([*map(repr, call.args), *(f"{name}={value!r}" for name, value in call.kwargs.items())])
        name = getattr(entry.function, "__name__", repr(entry.function))
        raise FormulaError(
            f"the formula {name} of {entry.op!r} failed on ({given}) -> {call.out!r}"
            + (f" in module {call.path!r}" if call.path else "")
            + f": {type(error).__name__}: {error}\n"
            f"It was called {CALLED[entry.style]}; its signature is {name}{inspect.signature(entry.function)}"
        ) from error


def _whole(flops: Any) -> int:
    try:
        return operator.index(flops)
    except TypeError:
        raise TypeError(f"it returned {flops!r}, which is neither an int, the FLOPs, nor a Cost") from None


def _checked(cost: Cost) -> Cost:
    if min(cost) < 0:
        raise ValueError(f"a count cannot be negative: {cost}")
    if cost.macs and not cost.flops:
        raise ValueError(f"{cost} counts no FLOPs: macs are a second view of the same work, give muls and adds too")
    return cost


def _call(entry: Formula, function: FormulaFunction, call: Call, module: nn.Module | None) -> Cost | int:
    if entry.style == "mapping":
        args, kwargs, out = _tensors(call.args), _tensors(dict(call.kwargs)), _tensors(call.out)
        if isinstance(call.target, type):
            return function(module, out, *args, **kwargs)
        if is_method(call.target):
            return function(args[0], out, *args[1:], **kwargs)
        return function(out, *args, **kwargs)
    if entry.style == "module":
        return function(module, *call.args, **call.kwargs, out=call.out)
    if isinstance(call.target, type):
        return function(**_module_arguments(function, call), out=call.out)
    args, kwargs = _function_arguments(function, call)
    return function(*args, **kwargs, out=call.out)


def bound(rule: Any, call: Call) -> dict[str, Any] | None:
    """The arguments of a call by the names of a shape rule's parameters, those that it does not name left out; None where
    a parameter without a default is not given."""
    names, _, _ = _parameters(rule)
    if isinstance(call.target, type):
        values = _module_arguments(rule, call)
    else:
        args, values = _function_arguments(rule, call)
        values.update(zip(names, args, strict=False))
    return values if _required(rule) <= values.keys() else None


@cache
def _required(rule: Any) -> frozenset[str]:
    parameters = inspect.signature(rule).parameters.values()
    return frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)


@cache
def _parameters(function: Any) -> tuple[list[str], bool, bool]:
    """Names of the positional parameters, and whether it takes ``*args`` and keywords beyond them."""
    kinds = [(name, parameter.kind) for name, parameter in inspect.signature(function).parameters.items()]
    return (
        [name for name, kind in kinds if kind in POSITIONAL],
        any(kind is inspect.Parameter.VAR_POSITIONAL for _, kind in kinds),
        any(kind is inspect.Parameter.VAR_KEYWORD for _, kind in kinds),
    )


@cache
def _keywords(function: Any) -> frozenset[str]:
    """Names of the parameters that only a keyword reaches, ``out`` aside."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name != "out")


def _function_arguments(function: FormulaFunction, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A function's arguments: those that the formula does not name are left out."""
    names, takes_rest, takes_any = _parameters(function)
    args = call.args if takes_rest else call.args[: len(names)]
    rest = names[len(args) :]
    kwargs = {}
    for name, value in call.kwargs.items():
        name = name if name in rest else ALIASES.get(name, name)
        if name in rest or name in _keywords(function) or (takes_any and name != "out"):
            kwargs[name] = value
    return args, kwargs


def _module_arguments(function: FormulaFunction, call: Call) -> dict[str, Any]:
    """A leaf module's: what its forward was given, by name, then the module's own settings and tensors."""
    names, _, _ = _parameters(function)
    given = _parameters(call.target.forward)[0][1:]
    values = {name: call.settings[name] for name in names if name in call.settings}
    for position, value in enumerate(call.args):
        name = given[position] if position < len(given) else ""
        if name in names:
            values[name] = value
        elif position == 0:
            values[names[0]] = value
    values.update((name, value) for name, value in call.kwargs.items() if name in names)
    if names and names[0] not in values and given and given[0] in call.kwargs:
        values[names[0]] = call.kwargs[given[0]]
    return values


def _tensors(value: Any) -> Any:
    """Empty meta tensors in place of specs, for functions written for tensors."""
    if isinstance(value, Spec):
        return torch.empty(tuple(value), dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return value
