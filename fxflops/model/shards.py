"""Reshard FSDP2 modules whose parameters are gathered. FSDP2 gathers parameters for a forward, and reshards them in the backward."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .inventory import Inventory
from .modules import parameters_of


@contextmanager
def with_sharded_parameters(model: nn.Module) -> Iterator[Inventory]:
    """Reshard a model's gathered parameters, e.g. after an evaluation. Gather the parameters again at the end of the block.

    Yields the model's inventory, with the sharded parameters.
    """
    inventory = Inventory(model, lazy=True)
    gathered = reshard(inventory.modules)
    try:
        yield Inventory(model, lazy=True) if gathered else inventory
    finally:
        for module in gathered:
            module.unshard()


def reshard(modules: Iterable[nn.Module]) -> list[Any]:
    """Reshard gathered parameters; return the modules whose parameters were gathered.

    The function calls FSDP's ``reshard``, which also updates FSDP's own records. FSDP's records would be wrong if the sharded parameters
    were only put back into their modules.
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
