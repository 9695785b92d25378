"""Modules whose parameters FSDP2 shards: it gathers them for a forward, and frees them in the backward."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .modules import all_modules, parameters_of


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """Shard the parameters of a model that are gathered, as after an evaluation, and gather them again at the end."""
    gathered = reshard(all_modules(model))
    try:
        yield
    finally:
        for module in gathered:
            module.unshard()


def reshard(modules: Iterable[nn.Module]) -> list[Any]:
    """Shard the parameters that are gathered; return the modules that had some.

    FSDP does it: its own records of a parameter would not follow one that is only put back into its module.
    """
    cls = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    modules = [*modules]
    if cls is None or not any(issubclass(each, cls) for each in {*map(type, modules)}):
        return []
    return [module for module in modules if isinstance(module, cls) and _changes(module)]


def _changes(module: Any) -> bool:
    """Shard the parameters of one such module; return whether they were gathered."""
    before = [*map(id, parameters_of(module))]
    module.reshard()
    return before != [*map(id, parameters_of(module))]
