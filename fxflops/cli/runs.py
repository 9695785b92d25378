"""From what the command line says to a report: the model loaded and placed, its inputs made, counted or run."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import api
from ..conventions import find_convention
from ..counting.counts import UNKNOWN_PAIRS, check_attention
from ..errors import FxflopsError, InputError
from ..meters.progress import working
from ..model.inputs import bind, checked_model, signature_of
from ..model.pytree import fill, template_of
from ..report.report import Report
from ..run.model_run import cap_of
from ..units import size
from .inputs import (
    Given,
    device_of,
    dtype_of,
    place_of,
    precision_of,
    read_input,
    read_tokens,
    tensors_of,
    vocabulary_of,
)
from .models import Loaded, is_from_a_library, load

CONVENTION, ATTENTION = "fxflops", "dense"


@dataclass(frozen=True, slots=True)
class Asked:
    """What all commands let a user say of a model and how to count it; None and () where nothing is said."""

    input: Sequence[str] = ()
    input_ids: str | None = None
    batch: int | None = None
    device: str | None = None
    dtype: str | None = None
    train: bool = False
    backward: bool = False
    convention: str | None = None
    attention: str | None = None

    def check(self) -> None:
        """InputError for a word that means nothing, before a model is loaded for it."""
        self.given()
        find_convention(self.convention or CONVENTION)
        check_attention(self.attention or ATTENTION)
        self.placed()

    def of_saved(self) -> Asked:
        """What of it may be asked of a report that was saved."""
        return Asked(convention=self.convention, attention=self.attention)

    def given(self) -> tuple[Given, ...]:
        tokens = [] if self.input_ids is None else [read_tokens(self.input_ids)]
        return (*map(read_input, self.input), *tokens)

    def placed(self) -> tuple[torch.device | None, torch.dtype | None]:
        """The device and the dtype that are named."""
        device = None if self.device is None else device_of(self.device)
        return device, None if self.dtype is None else dtype_of(self.dtype, of_weights=True)

    def settings(self) -> dict[str, Any]:
        """The arguments that count and analyze share."""
        return {
            "mode": "train" if self.train else "eval",
            "backward": self.backward,
            "convention": self.convention or CONVENTION,
            "attention": self.attention or ATTENTION,
        }


def counted(name: str, asked: Asked) -> Report:
    """The model counted, without computing and without weights or inputs of size, unless it needs values."""
    asked.check()
    if asked.device is not None:
        return _counted(name, asked, asked.device == "meta")
    try:
        report = _counted(name, asked, True)
        # Of a mask that was made on meta
        if all(missing.why != UNKNOWN_PAIRS for missing in report.missing) or not _may_have_room(name):
            return report
        reason = UNKNOWN_PAIRS
    except FxflopsError as error:
        if not _is_of_meta(error) or not _may_have_room(name):
            raise
        reason = _reason(error)
    note(f"{name} needs values, so it is counted on real tensors: {reason}")
    return _counted(name, asked, False)


def analyzed(name: str, asked: Asked, *, trace: str = "auto", repeats: int | str = "auto") -> Report:
    """The model run on real tensors, every operation counted and timed."""
    asked.check()
    weights = _weights_of(name) if name.startswith("hf:") and asked.device != "meta" else None
    if weights is not None and weights > 2 * cap_of(torch.device("cpu")):
        raise InputError(
            f"{name} has {size(weights)} of weights, more than the memory there is; --counts-only makes none"
        )
    with _quiet():
        model, args, kwargs = subject(name, asked, asked.device == "meta")
        return api.analyze(model, args, kwargs, trace=trace, repeats=repeats, **asked.settings())


def is_saved(target: str) -> bool:
    """Whether a target is a report in a file, and no model."""
    return target.endswith(".json") and not is_from_a_library(target)


def loaded_or(make: Callable[[str, Asked], Report], target: str, asked: Asked) -> Report:
    """The report saved in a file, counted as it was unless asked otherwise; of anything else, what ``make`` makes of it."""
    if not is_saved(target):
        return make(target, asked)
    if not Path(target).is_file():
        raise InputError(f"there is no file {target!r}")
    if asked != asked.of_saved():
        raise InputError(f"{target} is a report of a run that was made: inputs and settings are those of then")
    report = Report.load(target)
    if (asked.convention, asked.attention) == (None, None):
        return report
    return report.recount(asked.convention, attention=asked.attention)


def both(a: str, b: str, asked: Asked) -> tuple[Report, Report]:
    """The reports of two targets, counted or saved; beside a saved one inputs and settings are of the model alone."""
    one, other = (asked.of_saved() if is_saved(x) and not is_saved(y) else asked for x, y in ((a, b), (b, a)))
    return loaded_or(counted, a, one), loaded_or(counted, b, other)


def subject(name: str, asked: Asked, on_meta: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model on its device in its dtype, and its inputs."""
    with working(f"loading {name}"):
        loaded = load(name, on_meta)
    model, (device, dtype) = checked_model(loaded.model), asked.placed()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Complex modules are a new feature")
            model = model.to(device=device, dtype=dtype)
    except Exception as error:
        raise InputError(f"{name} cannot be moved: {type(error).__name__}: {error}") from error
    place = torch.device("meta") if on_meta else device or place_of(model)
    return model, *_inputs(name, loaded, asked, model, place, dtype or precision_of(model))


def note(text: str) -> None:
    """A word to the user that is no result."""
    print(f"fxflops: {text}", file=sys.stderr)


def _counted(name: str, asked: Asked, on_meta: bool) -> Report:
    with _quiet():
        model, args, kwargs = subject(name, asked, on_meta)
        return api.count(model, args, kwargs, **asked.settings())


def _may_have_room(name: str) -> bool:
    """Whether the CPU has room for a model's weights, or that cannot be told."""
    return (_weights_of(name) or 0) < cap_of(torch.device("cpu"))


def _weights_of(name: str) -> int | None:
    """Bytes of a model's weights, found without making them; None where it cannot be made so."""
    try:
        with _quiet():
            model = load(name, True).model
    except FxflopsError:
        return None
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _inputs(
    name: str, loaded: Loaded, asked: Asked, model: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = asked.given()
    if not inputs and loaded.given is not None:
        if asked.batch is not None:
            raise InputError(
                f"--batch {asked.batch}: {name} comes with inputs of its own; give --input to replace them"
            )
        return _moved(loaded.given, asked)
    if not inputs:
        if loaded.note and loaded.usual:
            note(f"{name}: {loaded.note}")
        inputs = loaded.usual or _none_wanted(name, model)
    inputs = tuple(each.of_batch(asked.batch) for each in inputs)
    args, kwargs = tensors_of(_by_position(inputs, model), device, dtype, vocabulary_of(model))
    bind(
        model,
        args,
        kwargs,
        "--input SHAPE is for the next of its parameters, --input NAME=SHAPE for the one of that name",
    )
    return args, kwargs


def _by_position(inputs: Sequence[Given], model: nn.Module) -> Iterator[Given]:
    """Tokens go by position into a forward that calls them otherwise."""
    parameters = signature_of(model).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for each in inputs:
        is_odd = each.name == "input_ids" and not takes_any and each.name not in parameters
        yield each._replace(name="") if is_odd else each


def _none_wanted(name: str, model: nn.Module) -> tuple[Given, ...]:
    """No input at all, for a forward that needs none."""
    parameters = signature_of(model).parameters
    is_any_wanted = any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        for each in parameters.values()
    )
    if not is_any_wanted and getattr(model, "main_input_name", None) is None:
        return ()
    names = ", ".join([*list(parameters)[:8], *(["..."] if len(parameters) > 8 else [])])
    raise InputError(
        f"{name} says no inputs of its own: give --input 1,3,224,224, --input NAME=1,80,3000 or --input-ids 1,128\n"
        f"  {type(model).__name__}.forward takes ({names})"
    )


def _moved(given: tuple[Any, Any], asked: Asked) -> tuple[Any, Any]:
    """The inputs that came with a model, on the device and in the dtype asked for."""
    template, tensors = template_of(given)
    device, dtype = asked.placed()
    args, kwargs = fill(
        template, *(t.to(device=device, dtype=dtype if t.is_floating_point() else None) for t in tensors)
    )
    return args, kwargs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What models print is no result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _is_of_meta(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes of, is told of the meta device."""
    return error is not None and (bool(_on_meta(error)) or _is_of_meta(error.__cause__ or error.__context__))


def _on_meta(error: BaseException) -> list[str]:
    """The lines of an error that name the meta device, or something of it, but those of the author's place."""
    lines = [line.strip() for line in str(error).splitlines()]
    return [line for line in lines if "meta" in line.lower() and not line.startswith("at ")]


def _reason(error: FxflopsError) -> str:
    return [*_on_meta(error), str(error).partition("\n")[0]][0][:160]
