"""Whole runs: a model that was counted before, on arguments of the same form, is not run at all."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from ..inventory import Contents, Inventory
from .blocks import arguments_in
from .forwards import is_hooked
from .keys import Keys
from .meta import Twins
from .modes import metadata_tells_all
from .tokens import Numbers, Tokens, Unknown


class Whole(NamedTuple):
    """What a run left behind, and what the model consisted of."""

    measured: Any
    contents: Contents


def key_of(
    model: nn.Module,
    inventory: Inventory,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    numbers: Numbers,
) -> Any:
    """All that a run of the model on meta depends on, and what is said of its memory; None where that is more than can be
    told."""
    if type(model).__call__ is not nn.Module.__call__ or is_hooked() or not metadata_tells_all():
        return None
    given = arguments_in((args, kwargs))
    tokens = Tokens(numbers, inventory.paths)
    keys = Keys(Twins(given), tokens)
    try:
        about = (device, *kwargs, *(keys.of(value, True) for value in (*args, *kwargs.values())), *tokens.whole())
        hash(about)
    except (Unknown, TypeError):  # TypeError: no hash
        return None
    own = [*inventory.params, *inventory.buffers]
    return about, tuple([name for name, _ in own]), _lying([*(tensor for _, tensor in own), *given])


def _lying(tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Which tensors are the same, or share a storage, and the bytes of these."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    sizes = tuple([storage.nbytes() for storage in storages])
    ids, places = [*map(id, tensors)], [storage._cdata for storage in storages]
    return sizes, _alike(ids), _alike(places)


def _alike(values: list[int]) -> tuple[int, ...] | None:
    """The number of each value, counted from 0 where it is new; None where all are."""
    numbers: dict[int, int] = {}
    found = tuple([numbers.setdefault(value, len(numbers)) for value in values])
    return None if len(numbers) == len(values) else found
