"""The query-key pairs that an attention mask leaves: their number depends on the mask's values, not only on shapes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..ops import Formula
from ..ops._masks import MASKS, STARTS, given_to
from ..records import Spec, specs_in
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, disable_current_modes

NONE, TOP_LEFT, BOTTOM_RIGHT = range(3)
"""Causal masks, with the numbers of ``custom_mask_type`` and of ``torch.nn.attention.bias.CausalVariant``."""


def with_pairs(entry: Formula, given: tuple[tuple[Any, ...], Mapping[str, Any]], out: Any, must: bool) -> Any:
    """Return the spec of an attention's result, with the number of unmasked pairs as its fact ``pairs``.

    A mask on the meta device has no values: then the fact is left out, or, with ``must``, NotImplementedError is raised.
    """
    result = spec_of(out)
    try:
        pairs = pairs_left(entry, *given, out)
    except NotImplementedError:
        if must:
            raise
        return result
    first, *rest = specs_in(result)
    first = Spec(first, first.dtype, first.layout, {**first.facts, "pairs": pairs})
    return first if isinstance(result, Spec) else (first, *rest)


def with_learning(args: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the specs with ``requires_grad`` of their tensors as the fact ``learns``.

    A fused backward kernel does not take it as an argument: it computes all gradients.
    """
    return tuple(
        Spec(spec, spec.dtype, spec.layout, {**spec.facts, "learns": arg.requires_grad})
        if isinstance(spec, Spec)
        else spec
        for arg, spec in zip(args, specs, strict=True)
    )


def pairs_left(entry: Formula, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the number of query-key pairs that one call of attention computes, over all batches and heads.

    Raises NotImplementedError for a mask on the meta device, which has no values.
    """
    given = given_to(entry, args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    result = out if isinstance(out, torch.Tensor) else out[0]
    heads_last = "max_q" in given or "max_seqlen_q" in given
    n, s = (query.shape[-3], key.shape[-3]) if heads_last else (query.shape[-2], key.shape[-2])
    batch = result.numel() // (n * value.shape[-1]) if n and value.shape[-1] else 0
    corner = int(given.get("custom_mask_type") or bool(given.get("is_causal")))
    starts = [given[name] for name in STARTS if given.get(name) is not None]
    with DisableTorchFunction(), disable_current_modes():
        if starts:
            lengths = [_values(start).diff().tolist() for start in starts]
            return int(query.shape[-2]) * sum(_triangle(q, k, corner) for q, k in zip(*lengths, strict=True))
        mask = next((given[name] for name in MASKS if isinstance(given.get(name), torch.Tensor)), None)
        if isinstance(given.get("block_mask"), tuple):
            mask = _flex_mask(given["block_mask"], n, s, query.device)
        biases = sys.modules.get("torch.nn.attention.bias")  # importing it would load the compiler
        if biases is not None and isinstance(mask, biases.CausalBias):
            corner, mask = int(mask.variant), None
        if mask is None or mask.numel() == 0:
            return batch * _triangle(n, s, corner)
        kept = _values(mask) if mask.dtype is torch.bool else _values(mask) > torch.finfo(mask.dtype).min
        return int(batch * n * s * int(kept.sum()) // mask.numel())


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise NotImplementedError("an attention mask on the meta device has no values to count")
    return tensor


def _triangle(n: int, s: int, corner: int) -> int:
    """Return the number of pairs of n queries and s keys: all, or those of a causal mask aligned to ``corner``."""
    if corner == NONE:
        return n * s
    shift = s - n if corner == BOTTOM_RIGHT else 0
    return sum(min(max(i + 1 + shift, 0), s) for i in range(n))


def _flex_mask(block_mask: tuple[Any, ...], n: int, s: int, device: torch.device) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_mask

    blocks, mask_mod = block_mask[2], block_mask[-1]
    batch, heads = (math.prod(blocks.shape[i : i + 1]) for i in (0, 1))
    return create_mask(mask_mod, batch, heads, n, s, device=device)
