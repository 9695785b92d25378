"""Find the mask arguments of attention functions, and count the query-key pairs that a causal mask keeps."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ..records import Spec
from ._apply import names_of
from ._registry import Formula

MASKS = ("attn_mask", "attn_bias", "bias")
STARTS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
"""Arguments with the cumulative sequence lengths of a packed batch."""
ATTENTION = "attention"
HEADS_LAST = frozenset(
    f"_{kernel}_attention_{way}" for kernel in ("flash", "efficient") for way in ("forward", "backward")
) | {"_flash_attention_forward_no_dropout_inplace"}
"""Operators whose tensors are [batch, length, heads, width], not [batch, heads, length, width]."""

NONE, TOP_LEFT, BOTTOM_RIGHT = range(3)
"""Causal masks, numbered as in ``custom_mask_type`` and ``torch.nn.attention.bias.CausalVariant``."""


def leaves_all(formula: Formula, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if an attention call has no mask. The call's arguments may be tensors or specs."""
    given = given_to(formula, target, args, kwargs)
    masks = (*MASKS, *STARTS, "block_mask", "is_causal", "custom_mask_type")
    return not any(given.get(name) not in (None, False, 0) for name in masks)


def given_to(formula: Formula, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name: the formula's positional parameters, or the op's if the formula has none."""
    names = (formula.parameters[0] if formula.function else ()) or names_of(target)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def causal_pairs(
    formula: Formula, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> int | None:
    """Return the number of query-key pairs that the causal mask of a call keeps. The call's arguments are specs.

    Return None if the call is not causal, or if the call also has a mask tensor: a spec does not have its values.
    """
    given = given_to(formula, target, args, kwargs)
    corner = corner_of(given)
    if corner == NONE or any(given.get(name) is not None for name in (*MASKS, *STARTS, "block_mask")):
        return None
    query, key = given.get("query"), given.get("key")
    if not isinstance(query, Spec) or not isinstance(key, Spec) or "parts" in query.facts:
        return None  # each part of a nested tensor has its own number of pairs
    batch, n, s = sizes_of(formula, target, given, out)
    return batch * triangle(n, s, corner)


def sizes_of(formula: Formula, target: Any, given: Mapping[str, Any], out: Any) -> tuple[int, int, int]:
    """Return the number of heads of all samples together, and the numbers of queries and keys per head."""
    query, key = given["query"], given["key"]
    heads_last = getattr(target, "__name__", "").partition(".")[0] in HEADS_LAST
    n, s = (query.shape[-3], key.shape[-3]) if heads_last else (query.shape[-2], key.shape[-2])
    result, width = query, query.shape[-1]
    if formula.op == ATTENTION:
        # Read the batch size from the result, because the query may be broadcast to the batch size of the keys.
        first = out if hasattr(out, "dtype") else out[0]
        result, width = first, given["value"].shape[-1]
    return (prod(result.shape) // (n * width) if n and width else 0), n, s


def corner_of(given: Mapping[str, Any]) -> int:
    """Return the causal mask that the arguments request: :data:`NONE`, :data:`TOP_LEFT` or :data:`BOTTOM_RIGHT`."""
    return int(given.get("custom_mask_type") or bool(given.get("is_causal")))


def triangle(n: int, s: int, corner: int) -> int:
    """Return the number of pairs of n queries and s keys that a causal mask aligned to ``corner`` keeps; n * s for NONE."""
    if corner == NONE:
        return n * s
    shift = s - n if corner == BOTTOM_RIGHT else 0
    return _kept(n + shift, s) - _kept(shift, s)


def window_pairs(n: int, s: int, left: int, right: int, shift: int | None = None) -> int:
    """Return the number of query-key pairs within a window: query i sees keys i + shift - ``left`` to i + shift + ``right``.

    Without ``shift`` the last query is aligned with the last key, as in FlashAttention's ``window_size``. A negative ``left`` or ``right``
    means that the window has no limit on that side.
    """
    shift = s - n if shift is None else shift
    above = n * s if right < 0 else _kept(n + shift + right, s) - _kept(shift + right, s)
    below = 0 if left < 0 else _kept(n + shift - left - 1, s) - _kept(shift - left - 1, s)
    return above - below


def _kept(last: int, s: int) -> int:
    """Return the number of pairs of queries 1 to ``last`` with s keys, where query i sees the first i keys."""
    rising = min(max(last, 0), s)
    return rising * (rising + 1) // 2 + max(last - s, 0) * s
