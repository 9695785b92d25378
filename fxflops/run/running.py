"""The state in which a model runs for a count or an analysis, and its restoration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..errors import InputError, RunError, errors_of_kind
from ..model.inputs import as_call, checked_model, is_compiled, is_compiled_whole, shape_given
from ..model.inventory import Inventory
from ..model.snapshot import holding
from ..trace.compiler import unseen
from .lazy import initialized
from .model_run import Subject

MODES = ("eval", "train", "as_is")


@contextmanager
def running(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    mode: str | None,
    backward: bool,
    lazy: bool = False,
) -> Iterator[Subject]:
    """Prepare the model and its inputs for runs: locked, in its mode, with gradients only for ``backward``.

    The state of model, inputs and random generators is restored at the end. Raises InputError for an invalid model, mode
    or inputs, and also for inputs that are shapes if the model raises on them.
    """
    given, model = model, checked_model(model)
    with errors_of_kind(TypeError):
        positional, named = as_call(model, args, kwargs)
    mode = mode or ("as_is" if backward else "eval")
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}: one of {', '.join(map(repr, MODES))}")
    grad = torch.enable_grad() if backward else torch.no_grad()
    inventory = Inventory(model, lazy=True)
    with errors_of_kind(), grad, holding(inventory.paths, mode) as within, unseen() if within else nullcontext():
        try:
            with initialized(model, inventory, positional, named) as whole:
                subject = Subject(
                    model, whole, positional, named, mode, backward, lazy, is_compiled([given, *whole.paths])
                )
                if is_compiled_whole(given):
                    subject.compiled_model = given
                try:
                    yield subject
                finally:
                    subject.rewind()
        except RunError as error:
            if (shape := shape_given(args, named)) is not None:
                raise shape from error
            raise
