"""Give lazy modules' parameters shapes by a first run, and undo this afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..model.callables import state_of
from ..model.inventory import Inventory
from ..model.snapshot import Snapshot
from ..trace.source import error_for
from ..trace.uninitialized_reads import BeforeWriteMode
from .uncompiled import uncompiled


@contextmanager
def initialized(
    model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Inventory]:
    """Yield the model's inventory with shapes for all parameters; lazy parameters get shapes from a run on these inputs.

    Raises RunError if the model raises in that run, InputError if a parameter still has no shape after it.
    """
    if not inventory.shapeless:
        yield inventory
        return
    unnamed, reached = state_of(model)
    before = Snapshot([*inventory.paths, *unnamed], (args, kwargs), reached=reached)
    try:
        try:
            with torch.no_grad(), uncompiled(), BeforeWriteMode(before.before_write):
                model(*args, **kwargs)
        except Exception as error:
            raise error_for(
                error,
                f"{type(model).__name__} raised in the run that gives its lazy modules their shapes\n"
                f"  {type(error).__name__}: {error}",
            ) from error
        shaped = Snapshot(inventory.shapeless, ())
        before.rewind()
        shaped.rewind()
        yield Inventory(model)
    finally:
        before.rewind()
