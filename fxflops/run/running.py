"""Prepare a model's state for a count or an analysis, and restore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..errors import InputError, OutOfMemoryError, RunError, errors_of_kind
from ..meters.accelerator import accelerator_of
from ..meters.allocated import memory_text
from ..meters.live_storages import LiveStorages
from ..model.inputs import as_call, checked_model, is_compiled, is_compiled_whole, opened_model, shape_given
from ..model.locks import locked_in_mode
from ..model.optimizer import gradients_of, optimizer_mismatch
from ..model.scripts import with_calls_seen
from ..model.shards import with_sharded_parameters
from ..trace.compiler import unseen
from ..trace.modes import are_observed
from ..trace.source import line_that_raised, modules_that_raised
from .lazy import with_initialized_parameters
from .request import Request
from .subject import Subject
from .unbatched import batch_advice, size_advice

COUNT_INSTEAD = "use fxflops.count(model, args), which predicts the peak without allocating memory, or "


@contextmanager
def prepared_subject(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    request: Request,
) -> Iterator[Subject]:
    """Prepare the model and its inputs for the requested runs: lock the model, set its mode, and enable or disable gradients.

    The state of model, inputs, optimizer and random generators is restored at the end. Raises InputError for an invalid model, mode or
    inputs, and for an optimizer that has none of the model's parameters. If the model raises on inputs that are shapes instead of
    tensors, InputError is raised, too.
    """
    users_model = opened_model(model)
    if request.counts_only and isinstance(users_model, torch.jit.ScriptModule):
        users_model = with_calls_seen(users_model)
    model = checked_model(users_model)
    with errors_of_kind(TypeError):
        positional, named = as_call(model, args, kwargs)
    if problem := optimizer_mismatch(request.optimizer, model):
        raise InputError(problem)
    mode = request.mode_of_modules
    with (
        with_sharded_parameters(model) as inventory,
        errors_of_kind(),
        # Without gradients, the meta world repeats functions and leaves from its memo (MetaWorld.memo_of_functions_and_leaves).
        torch.set_grad_enabled(request.backward),
        locked_in_mode(inventory.modules, mode) as is_nested,
        # An observer around this run, e.g. a profile, must not see it.
        unseen() if is_nested or are_observed() else nullcontext(),
    ):
        subject: Subject | None = None
        try:
            # Lazy modules get their shapes from a run of the model, whose effects are undone.
            with with_initialized_parameters(model, inventory, positional, named) as initialized_inventory:
                compiled = is_compiled(
                    [users_model, *initialized_inventory.functions_of], map(type, initialized_inventory.modules)
                )
                compiled_model = users_model if is_compiled_whole(users_model) else None
                subject = Subject(
                    model,
                    initialized_inventory,
                    positional,
                    named,
                    request,
                    compiled=compiled,
                    compiled_model=compiled_model,
                )
                try:
                    yield subject
                except (torch.OutOfMemoryError, OutOfMemoryError) as error:
                    raise _out_of_memory(error, subject) from (error.__cause__ or error)
                finally:
                    subject.end()
        except RunError as error:
            if (shape_error := shape_given(args, named)) is not None:
                raise shape_error from error
            batch = batch_advice(subject, positional, named) if subject is not None else ""
            error.add(batch or size_advice(error.__cause__))
            error.advice += ["batch dimension"] * bool(batch)
            raise


def _out_of_memory(error: torch.OutOfMemoryError | OutOfMemoryError, subject: Subject) -> OutOfMemoryError:
    """Return the error for a run that ran out of memory, with the tensors that were alive."""
    node, text = error.node if isinstance(error, OutOfMemoryError) else "", str(error)
    if not isinstance(error, OutOfMemoryError):  # raised in an unobserved run of the model itself
        paths = [subject.inventory.path_of.get(module, "") for module in modules_that_raised(error)]
        where = f"module {paths[-1]!r}" if paths and paths[-1] else "the model's own forward"
        text = f"the model raised in {where}\n  {type(error).__name__}: {error}{line_that_raised(error)}"
    live = getattr(error, "live", ())
    is_observed = bool(live)
    if not is_observed:
        tensors: dict[str, Any] = {**subject.named_tensors, "gradients": gradients_of(subject.named_tensors["params"])}
        live = LiveStorages(tensors).history([]).at_end
    accelerator = accelerator_of(subject.device)
    if accelerator is not None and accelerator.has_statistics:
        text += f"\n  {memory_text(accelerator, live, is_observed, subject.bytes_before)}"
    return OutOfMemoryError(
        f"{text}\n  {'' if subject.request.counts_only else COUNT_INSTEAD}pass a smaller batch", node, live
    )
