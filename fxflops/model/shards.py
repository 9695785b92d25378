"""Reshard FSDP2 modules whose parameters are gathered: FSDP2 gathers for a forward, and frees in the backward."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .inventory import Inventory
from .modules import parameters_of


@contextmanager
def resharded(model: nn.Module) -> Iterator[Inventory]:
    """Reshard a model's gathered parameters, e.g. after an evaluation, and gather them again at the end of the block.

    Yields the model's inventory, with the sharded parameters.
    """
    inventory = Inventory(model, lazy=True)
    gathered = reshard(inventory.paths)
    try:
        yield Inventory(model, lazy=True) if gathered else inventory
    finally:
        for module in gathered:
            module.unshard()


def reshard(modules: Iterable[nn.Module]) -> list[Any]:
    """Reshard gathered parameters; return the modules that had any.

    FSDP itself must do it: its own records would not follow if a parameter were only put back into its module.
    """
    cls = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    modules = [*modules]
    if cls is None or not any(issubclass(each, cls) for each in {*map(type, modules)}):
        return []
    return [module for module in modules if isinstance(module, cls) and _changes(module)]


def _changes(module: Any) -> bool:
    """Reshard an FSDP module's parameters; return whether they were gathered."""
    before = [*map(id, parameters_of(module))]
    module.reshard()
    return before != [*map(id, parameters_of(module))]
