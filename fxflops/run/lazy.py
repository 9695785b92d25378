"""Initialize lazy modules by a first run, and undo this initialization afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..model.callables import parts_without_path
from ..model.inventory import Inventory
from ..model.snapshot import Snapshot
from ..trace.source import error_for
from ..trace.uninitialized_reads import BeforeWriteMode
from .uncompiled import uncompiled


@contextmanager
def with_initialized_parameters(
    model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Inventory]:
    """Yield the model's inventory after a run on these inputs has initialized the lazy parameters, so that all parameters have shapes.

    Raises RunError if the model raises in that run, InputError if a parameter still has no shape after that run.
    """
    if not inventory.shapeless:
        yield inventory
        return
    unnamed, reachable = parts_without_path(model)
    before = Snapshot([*inventory.modules, *unnamed], (args, kwargs), reachable=reachable)
    try:
        try:
            with torch.no_grad(), uncompiled(), BeforeWriteMode(before.before_write):
                model(*args, **kwargs)
        except Exception as error:
            raise error_for(
                error,
                f"{type(model).__name__} raised in the run that initializes its lazy modules\n"
                f"  {type(error).__name__}: {error}",
            ) from error
        shaped = Snapshot(inventory.shapeless, ())
        before.rewind()
        shaped.rewind()
        yield Inventory(model)
    finally:
        before.rewind()
