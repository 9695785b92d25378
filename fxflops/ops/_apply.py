"""Call a formula: bind its parameters to the call's arguments, by the op's parameter names."""

from __future__ import annotations

import inspect
import operator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ..errors import FormulaError
from ..names import target_of
from ..records import Cost, FormulaFunction, Operation, Spec
from ..torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket, tree_map
from ._registry import Formula, is_method
from ._rules import Parameters, parameters_of

CALLED = {
    "op": "with the op's own parameter names",
    "module": "with the module as the first argument",
    "mapping": "with the arguments that torch_flops passes",
}
ALIASES = {
    "self": "input", "x": "input", "axis": "dim", "keepdims": "keepdim", "mat2": "other", "vec": "other", "tensor": "other",
    "update": "train", "cu_seqlens_q": "cum_seq_q", "max_seqlen_q": "max_q", "max_seqlen_k": "max_k",
}  # fmt: skip
"""Parameter names of some functions and operators, mapped to the names that formulas use."""
RESULT = ("out",)
"""The keyword-only parameter that every formula has."""
ONLY_INTS = {int}
"""The types of the numbers in a cost that need no conversion."""


def apply(formula: Formula, operation: Operation, module: nn.Module | None = None, path: str = "") -> Cost:
    """Return the cost of an operation, computed by ``formula``. Pass the leaf ``module`` that ran if the formula reads it.

    Raises FormulaError when the formula raises, does not fit the arguments, returns neither an int nor a Cost, or returns a
    negative count or macs without FLOPs. The message contains the module's ``path``.
    """
    if formula.function is None:
        return Cost()
    try:
        result = _call(formula, formula.function, operation, module)
        return _checked(result if isinstance(result, Cost) else Cost(others=_whole(result)), formula.is_ours)
    except Exception as error:
        given = ", ".join(
            [*map(repr, operation.args), *(f"{name}={value!r}" for name, value in operation.kwargs.items())]
        )
        name = getattr(formula.function, "__name__", repr(formula.function))
        whole = name if formula.is_ours else f"{formula.function.__module__}.{name}"
        raise FormulaError(
            f"the formula {whole} of {formula.op!r} failed on ({given}) -> {operation.out!r}"
            + (f" in module {path!r}" if path else "")
            + f": {type(error).__name__}: {error}\n"
            f"The formula was called {CALLED[formula.style]}; its signature is {name}{inspect.signature(formula.function)}"
        ) from error


def _whole(flops: Any) -> int:
    try:
        return operator.index(flops)
    except TypeError:
        raise TypeError(f"the formula returned {flops!r}; expected an int (the FLOPs) or a Cost") from None


def _checked(cost: Cost, is_ours: bool) -> Cost:
    if {*map(type, cost)} != ONLY_INTS:
        cost = Cost(*map(_whole, cost))
    if min(cost) < 0:
        raise ValueError(f"a count cannot be negative: {cost}")
    # Our rules for other tools give a product's FLOPs as one number, not as muls and adds.
    if cost.macs and not (cost.flops if is_ours else cost.muls + cost.adds):
        raise ValueError(
            f"{cost} has macs, but no muls and adds: macs describe the same work as muls and adds, so set these too"
        )
    return cost


def _call(formula: Formula, function: FormulaFunction, operation: Operation, module: nn.Module | None) -> Cost | int:
    if formula.style == "mapping":
        args, kwargs, out = tensors(operation.args), tensors(dict(operation.kwargs)), tensors(operation.out)
        if isinstance(operation.target, type):
            return function(module, out, *args, **kwargs)
        if is_method(operation.target):
            return function(args[0], out, *args[1:], **kwargs)
        return function(out, *args, **kwargs)
    if formula.style == "module":
        return function(module, *operation.args, **operation.kwargs, out=operation.out)
    if not formula.is_ours and not isinstance(operation.target, type):
        _check_order(formula.parameters[0], operation.target)
    args, kwargs = arguments(formula.parameters, operation)
    return function(*args, **kwargs, out=operation.out)


def _check_order(names: tuple[str, ...], target: Any) -> None:
    """Raise TypeError if a formula's positional parameter has the same name as an op's parameter at another position."""
    theirs = names_of(target)
    for mine, its in zip(names, theirs, strict=False):
        if mine != its and mine in theirs:
            raise TypeError(
                f"the formula's parameter {mine!r} gets the op's argument {its!r}, because both have the same position: write {mine!r} after * to match it by name"
            )


def arguments(parameters: Parameters, operation: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an operation that a formula or shape rule with these parameters takes.

    Positional parameters take the op's first arguments. Keyword-only parameters are matched by name.
    """
    names, keywords, takes_args, takes_kwargs = parameters
    if isinstance(operation.target, type) and (names or not takes_args):
        return (), _module_arguments((*names, *keywords), operation) if names else {}
    args = operation.args if takes_args else operation.args[: len(names)]
    given = operation.kwargs
    if not takes_args and keywords != RESULT and (later := operation.args[len(names) :]):
        given = {**dict(zip(names_of(operation.target)[len(names) :], later, strict=False)), **given}
    kwargs = {}
    if given:
        wanted = (*names[len(args) :], *keywords)
        for name, value in given.items():
            name = name if name in wanted else ALIASES.get(name, name)
            if name != "out" and (name in wanted or takes_kwargs):
                kwargs[name] = value
    return args, kwargs


def _module_arguments(names: tuple[str, ...], operation: Operation) -> dict[str, Any]:
    """Return a leaf module's values for ``names``: the arguments of its forward, else the module's settings and tensors."""
    settings = operation.settings
    values = {name: settings[name] for name in names if name in settings and name != "out"}
    if len(operation.args) == 1 and not operation.kwargs:
        values[names[0]] = operation.args[0]
        return values
    given = parameters_of(operation.target.forward)[0][1:]
    for position, value in enumerate(operation.args):
        name = given[position] if position < len(given) else ""
        if name in names:
            values[name] = value
        elif position == 0:
            values[names[0]] = value
    values.update((name, value) for name, value in operation.kwargs.items() if name in names)
    if names[0] not in values and given and given[0] in operation.kwargs:
        values[names[0]] = operation.kwargs[given[0]]
    return values


def names_of(target: Any) -> tuple[str, ...]:
    """Return the names of a target's positional arguments; () if unknown.

    The names for a C function are read from the aten operator with the same name.
    """
    # Cache by name or operator only: a function may close over a model, and a cached function would keep it alive.
    if type(target) is FunctionType:
        return parameters_of(target)[0]
    found = target_of(target) if isinstance(target, str) else target
    if isinstance(names := getattr(found, "arg_names", None), (list, tuple)):  # a Triton kernel's
        return tuple(names)
    if isinstance(found, HigherOrderOperator):
        return parameters_of(type(found).__call__)[0][1:]
    if isinstance(found, (OpOverload, OpOverloadPacket)):
        return _names_of_operator(found)
    return _names_of_aten(str(getattr(found, "__name__", "")))


@lru_cache(maxsize=4096)
def _names_of_aten(name: str) -> tuple[str, ...]:
    found = getattr(torch.ops.aten, name, None)
    return _names_of_operator(found) if isinstance(found, (OpOverload, OpOverloadPacket)) else ()


@lru_cache(maxsize=4096)
def _names_of_operator(operator: OpOverload | OpOverloadPacket) -> tuple[str, ...]:
    found = getattr(operator, operator.overloads()[0]) if isinstance(operator, OpOverloadPacket) else operator
    return tuple(argument.name for argument in found._schema.arguments)


def tensors(value: Any) -> Any:
    """Replace specs with empty meta tensors, for functions that expect tensors."""
    return tree_map(_on_meta, value)


def _on_meta(value: Any) -> Any:
    return torch.empty(tuple(value), dtype=value.dtype, device="meta") if isinstance(value, Spec) else value
