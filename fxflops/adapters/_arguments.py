"""Read arguments that several adapters share: shapes, functions that make inputs, and names from a list.

This module also checks for models that a tool refuses or counts only in part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from ..errors import InputError, of_kind, warn
from ..model.modules import parameters_of
from ..records import prefixes
from ..report.report import Report

T = TypeVar("T")


def checked_shape(shape: Any, wanted: str) -> tuple[int, ...]:
    """Return the shape. If the shape is not a tuple or is empty, raise an InputError that is also an AssertionError."""
    if isinstance(shape, tuple) and shape:
        return shape
    raise of_kind(InputError(f"{wanted}; got {shape!r}"), AssertionError)


def one_of(what: str, value: T, known: Collection[Any]) -> T:
    """Return the value. If the value is not in ``known``, raise an InputError that is also a ValueError."""
    if value in known:
        return value
    raise of_kind(InputError(f"unknown {what} {value!r}; expected one of {', '.join(map(repr, known))}"), ValueError)


def refuse_scripts(tool: str, modules: Iterable[nn.Module], *kinds: type[Exception]) -> None:
    """Raise an InputError if one of the modules is TorchScript. The error is also of these ``kinds``, the types of the tool's own error."""
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            wrong = f"{tool} cannot hook or trace TorchScript modules, but the model has a {type(module).__name__}"
            instead = "give the model that you passed to torch.jit.script or trace, or use fxflops.count(model, args)"
            raise of_kind(InputError(f"{wrong}: {instead}"), *kinds)


RECIPE = "fxflops.count(model, args).recipe() returns code that counts them"


def warn_of_uncounted(report: Report, handled: Collection[str] = ()) -> None:
    """Warn about operators that the tool's number does not include: operators that the tool does not see, or that have no formula.

    Do not warn about calls inside the modules at the paths ``handled``, which the user's own functions count.
    """
    unknown = {
        each.call.op
        for each in report.counted
        if each.missing and not each.call.origin and not any(path in handled for path in prefixes(each.call.path))
    }
    if unknown:
        warn(lower_bound(unknown))
    unseen = [each for each in report.counted if each.missing and each.call.origin]
    if unseen:
        ops = ", ".join(dict.fromkeys(each.call.op for each in unseen))
        warn(
            f"the number is a lower bound: {unseen[0].missing}. This affects {len(unseen)} of {len(report.counted)} calls ({ops:.200}). "
            f"fxflops.count(model, args) counts these calls"
        )


def lower_bound(unknown: Iterable[str]) -> str:
    """Return the text of the warning about operations that have no formula."""
    return f"the number is a lower bound: it does not include {', '.join(sorted(unknown)):.200}; {RECIPE}"


def classes_in(given: Iterable[type] | None) -> tuple[type, ...]:
    """Return a list of module classes as a tuple. If the value is not a list of classes, raise an InputError that is also a TypeError."""
    if given is not None and not (isinstance(given, Iterable) and all(isinstance(each, type) for each in given)):
        wrong = f"the modules to ignore must be a list of classes, such as [torch.nn.Linear]; got {given!r:.80}"
        raise of_kind(InputError(wrong), TypeError)
    return tuple(given or ())


def inputs_of(
    model: nn.Module,
    shape: tuple[int, ...],
    constructor: Callable[[tuple[int, ...]], Any] | None,
    given: tuple[int, ...],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return args and kwargs for the model. With a constructor, the inputs are the result of ``constructor(given)``. Without a constructor,
    the input is a tensor of zeros of this shape."""
    made = filled(model, shape, 0) if constructor is None else constructor(given)
    return ((), made) if isinstance(made, dict) else ((made,), {})


def filled(model: nn.Module, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """Return a tensor in which every element is ``value``. Its dtype and device are taken from the model's first parameter."""
    if not all(isinstance(size, int) for size in shape):
        given = ", ".join(type(size).__name__ for size in shape)
        raise of_kind(
            InputError(f"a shape must be a tuple of ints, such as (1, 3, 224, 224); got a tuple of ({given})"),
            TypeError,
        )
    like = next(iter(parameters_of(model)), torch.empty(0))
    return torch.full(shape, value, dtype=like.dtype, device=like.device)
