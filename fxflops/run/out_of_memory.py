"""Record the tensors that are alive when a device runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ..errors import OutOfMemoryError
from ..meters.accelerator import accelerator_of
from ..meters.allocated import memory_text
from ..meters.history import LiveTensor
from ..meters.live_storages import LiveStorages, Named
from ..model.optimizer import gradients_of
from ..records import Call
from ..trace.call_log import FailedCall


@contextmanager
def noting_live(storages: LiveStorages, calls: Sequence[Call], parameters: Named) -> Iterator[None]:
    """If an observed run runs out of memory, store the tensors that are alive as the error's attribute ``live``.

    The frames in the error's traceback keep the model's tensors alive.
    """
    try:
        yield
    except (torch.OutOfMemoryError, OutOfMemoryError) as error:
        storages.label(gradients_of(parameters), "gradients")
        vars(error)["live"] = storages.history(calls).at_end
        raise


def add_memory_note(
    error: torch.OutOfMemoryError,
    device: torch.device,
    live: Sequence[LiveTensor],
    is_observed: bool,
    failed: FailedCall | None,
) -> None:
    """Add a note to an out-of-memory error in the user's code: the call that raised, and the tensors in memory.

    The error's type and message do not change. ``failed`` is the call that raised; None if unknown.
    """
    accelerator = accelerator_of(device)
    add_note = getattr(error, "add_note", None)  # since Python 3.11
    if add_note is not None and accelerator is not None and accelerator.has_statistics:
        where = ""
        if failed is not None:
            where = f"raised at {failed.name} in {f'module {failed.path!r}' if failed.path else 'the root'}\n"
        add_note(where + memory_text(accelerator, live, is_observed))
