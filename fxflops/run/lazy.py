"""Lazy modules: their parameters get shapes from a first run, and are without again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import RunError
from ..model.inventory import Inventory
from ..model.snapshot import Snapshot
from ..trace.uninitialized_reads import Announcing
from .graph_run import uncompiled


@contextmanager
def initialized(
    model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Inventory]:
    """What the model consists of once all its parameters have shapes; lazy ones have theirs from a run on these inputs.

    Raises RunError where the model raises in that run, InputError where it leaves one without a shape.
    """
    if not inventory.shapeless:
        yield inventory
        return
    before = Snapshot(inventory.paths, (args, kwargs))
    try:
        try:
            with torch.no_grad(), uncompiled(), Announcing(before.before_write):
                model(*args, **kwargs)
        except Exception as error:
            raise RunError(
                f"{type(model).__name__} raised in the run that gives its lazy modules their shapes\n"
                f"  {type(error).__name__}: {error}"
            ) from error
        shaped = Snapshot(inventory.shapeless, ())
        before.rewind()
        shaped.rewind()
        yield Inventory(model)
    finally:
        before.rewind()
