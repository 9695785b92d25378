"""Calling a formula: its parameters are bound to what the call was given, by the op's own names."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch import nn

from ..errors import FormulaError
from ..records import Cost, FormulaFunction, Operation, Spec
from ._registry import Formula, is_method
from ._rules import Parameters, parameters_of

CALLED = {
    "op": "by the op's own names",
    "module": "with the module first",
    "mapping": "as torch_flops calls it",
}
ALIASES = {
    "self": "input", "x": "input", "axis": "dim", "keepdims": "keepdim", "mat2": "other", "vec": "other", "tensor": "other",
}  # fmt: skip


def apply(entry: Formula, ran: Operation, module: nn.Module | None = None, path: str = "") -> Cost:
    """The cost of an operation by ``entry``; ``module`` is the leaf it ran, needed only where the formula reads it.

    Raises FormulaError when the formula raises, does not fit the arguments, or returns neither a Cost nor an int that can
    be: none is negative, and who multiplies and accumulates computes. ``path`` is told in the error.
    """
    if entry.function is None:
        return Cost()
    try:
        result = _call(entry, entry.function, ran, module)
        return _checked(result if isinstance(result, Cost) else Cost(others=_whole(result)))
    except Exception as error:
        given = ", ".join([*map(repr, ran.args), *(f"{name}={value!r}" for name, value in ran.kwargs.items())])
        name = getattr(entry.function, "__name__", repr(entry.function))
        raise FormulaError(
            f"the formula {name} of {entry.op!r} failed on ({given}) -> {ran.out!r}"
            + (f" in module {path!r}" if path else "")
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


def _call(entry: Formula, function: FormulaFunction, ran: Operation, module: nn.Module | None) -> Cost | int:
    if entry.style == "mapping":
        args, kwargs, out = tensors(ran.args), tensors(dict(ran.kwargs)), tensors(ran.out)
        if isinstance(ran.target, type):
            return function(module, out, *args, **kwargs)
        if is_method(ran.target):
            return function(args[0], out, *args[1:], **kwargs)
        return function(out, *args, **kwargs)
    if entry.style == "module":
        return function(module, *ran.args, **ran.kwargs, out=ran.out)
    args, kwargs = arguments(entry.parameters, ran)
    return function(*args, **kwargs, out=ran.out)


def arguments(parameters: Parameters, ran: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operation as a formula or a shape rule of these parameters takes them: what it does not name is left
    out."""
    names, keywords, takes_args, takes_kwargs = parameters
    if isinstance(ran.target, type) and (names or not takes_args):
        return (), _module_arguments(names, ran) if names else {}
    args = ran.args if takes_args else ran.args[: len(names)]
    kwargs = {}
    if ran.kwargs:
        rest = names[len(args) :]
        for name, value in ran.kwargs.items():
            name = name if name in rest else ALIASES.get(name, name)
            if name != "out" and (name in rest or name in keywords or takes_kwargs):
                kwargs[name] = value
    return args, kwargs


def _module_arguments(names: tuple[str, ...], ran: Operation) -> dict[str, Any]:
    """A leaf module's: what its forward was given, by name, then the module's own settings and tensors."""
    settings = ran.settings
    values = {name: settings[name] for name in names if name in settings}
    if len(ran.args) == 1 and not ran.kwargs:
        values[names[0]] = ran.args[0]
        return values
    given = parameters_of(ran.target.forward)[0][1:]
    for position, value in enumerate(ran.args):
        name = given[position] if position < len(given) else ""
        if name in names:
            values[name] = value
        elif position == 0:
            values[names[0]] = value
    values.update((name, value) for name, value in ran.kwargs.items() if name in names)
    if names and names[0] not in values and given and given[0] in ran.kwargs:
        values[names[0]] = ran.kwargs[given[0]]
    return values


def tensors(value: Any) -> Any:
    """Empty meta tensors in place of specs, for functions written for tensors."""
    if isinstance(value, Spec):
        return torch.empty(tuple(value), dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        return tuple(map(tensors, value))
    if isinstance(value, dict):
        return {key: tensors(item) for key, item in value.items()}
    return value
