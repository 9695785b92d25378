"""Arguments that several tools share (the input's shape, a function that makes inputs, one of several names), and checks for
models that a tool refuses or only partly sees."""

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
    """Return the shape; raise an InputError that is also an AssertionError for anything but a non-empty tuple."""
    if isinstance(shape, tuple) and shape:
        return shape
    raise of_kind(InputError(f"{wanted}, not {shape!r}"), AssertionError)


def one_of(what: str, value: T, known: Collection[Any]) -> T:
    """Return the value; raise an InputError that is also a ValueError if it is not in ``known``."""
    if value in known:
        return value
    raise of_kind(InputError(f"unknown {what} {value!r}: one of {', '.join(map(repr, known))}"), ValueError)


def refuse_scripts(tool: str, modules: Iterable[nn.Module], *kinds: type[Exception]) -> None:
    """Raise an InputError if a module is TorchScript; the error is also of these ``kinds``, like the tool's own error."""
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            wrong = f"{tool} cannot hook or trace modules of TorchScript, and the model has a {type(module).__name__}"
            instead = "give the model as it is before torch.jit.script or trace; fxflops.count(model, args) counts both"
            raise of_kind(InputError(f"{wrong}: {instead}"), *kinds)


RECIPE = "fxflops.count(model, args).recipe() has the lines that count them"


def warn_of_uncounted(report: Report, handled: Collection[str] = ()) -> None:
    """Warn about operators that are not in the tool's number, because the tool does not see them or they have no formula.

    Calls inside modules at the paths ``handled`` are excluded: a function of the user's counts them.
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
            f"the number is a lower bound: {unseen[0].missing}. These are {len(unseen)} of {len(report.counted)} calls ({ops:.200}); "
            f"fxflops.count(model, args) counts them"
        )


def lower_bound(unknown: Iterable[str]) -> str:
    """Return the warning text for operations without a formula."""
    return f"the number is a lower bound: not counted are {', '.join(sorted(unknown)):.200}; {RECIPE}"


def classes_in(given: Iterable[type] | None) -> tuple[type, ...]:
    """Return a list of module classes as a tuple; raise an InputError that is also a TypeError for anything else."""
    if given is not None and not (isinstance(given, Iterable) and all(isinstance(each, type) for each in given)):
        wrong = f"the modules to ignore are a list of classes, [torch.nn.Linear], not {given!r:.80}"
        raise of_kind(InputError(wrong), TypeError)
    return tuple(given or ())


def inputs_of(
    model: nn.Module,
    shape: tuple[int, ...],
    constructor: Callable[[tuple[int, ...]], Any] | None,
    given: tuple[int, ...],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return args and kwargs for the model: a tensor of zeros with this shape, or the result of ``constructor(given)``."""
    made = filled(model, shape, 0) if constructor is None else constructor(given)
    return ((), made) if isinstance(made, dict) else ((made,), {})


def filled(model: nn.Module, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """Return a tensor filled with ``value``, with the dtype and device of the model's first parameter."""
    if not all(isinstance(size, int) for size in shape):
        given = ", ".join(type(size).__name__ for size in shape)
        raise of_kind(
            InputError(f"a shape is a tuple of whole numbers, such as (1, 3, 224, 224), not ({given})"), TypeError
        )
    like = next(iter(parameters_of(model)), torch.empty(0))
    return torch.full(shape, value, dtype=like.dtype, device=like.device)
