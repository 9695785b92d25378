"""The masks among the arguments of attention, under all the names that functions and operators give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._apply import names_of
from ._registry import Formula

MASKS = ("attn_mask", "attn_bias", "bias")
STARTS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
"""Arguments with the cumulative sequence lengths of a packed batch."""


def leaves_all(entry: Formula, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if a call of attention has no mask. Its arguments may be tensors or specs."""
    given = given_to(entry, target, args, kwargs)
    masks = (*MASKS, *STARTS, "block_mask", "is_causal", "custom_mask_type")
    return not any(given.get(name) not in (None, False, 0) for name in masks)


def given_to(entry: Formula, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the formula's parameters, or by the op's own."""
    names = (entry.parameters[0] if entry.function else ()) or names_of(target)
    return {**dict(zip(names, args, strict=False)), **kwargs}
