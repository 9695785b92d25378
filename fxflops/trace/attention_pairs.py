"""What shapes do not tell: how many pairs of query and key a mask leaves."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..ops import Formula
from ..records import Spec, spec_of, specs_in
from ..torch_internals import DisableTorchFunction, disable_current_modes

MASKS = ("attn_mask", "attn_bias", "bias")
STARTS = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
NONE, TOP_LEFT, BOTTOM_RIGHT = range(3)


def with_pairs(entry: Formula, given: tuple[tuple[Any, ...], Mapping[str, Any]], out: Any, must: bool) -> Any:
    """The spec of the result of attention, which knows the pairs that its mask leaves.

    Where the mask is on the meta device nobody can: NotImplementedError if it ``must`` be told.
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


def leaves_all(entry: Formula, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of attention has nothing that could leave pairs out, whatever it was given: tensors or specs."""
    given = _named(entry, args, kwargs)
    masks = (*MASKS, *STARTS, "block_mask", "is_causal", "custom_mask_type")
    return not any(given.get(name) not in (None, False, 0) for name in masks)


def with_learning(args: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The specs of arguments, which know whether a gradient is asked for: kernels that compute all of them do not say."""
    return tuple(
        Spec(spec, spec.dtype, spec.layout, {**spec.facts, "learns": arg.requires_grad})
        if isinstance(spec, Spec)
        else spec
        for arg, spec in zip(args, specs, strict=True)
    )


def _is_causal_bias(mask: Any) -> bool:
    """Whether a mask is a CausalBias; importing that class, where nobody has one, would load the compiler."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(mask, module.CausalBias)


def pairs_left(entry: Formula, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """The pairs of one call of attention, over all batches and heads.

    Raises NotImplementedError where the mask has no values (meta).
    """
    given = _named(entry, args, kwargs)
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
        if mask is not None and _is_causal_bias(mask):
            corner, mask = int(mask.variant), None
        if mask is None or mask.numel() == 0:
            return batch * _triangle(n, s, corner)
        kept = _values(mask) if mask.dtype is torch.bool else _values(mask) > torch.finfo(mask.dtype).min
        return int(batch * n * s * int(kept.sum()) // mask.numel())


def _named(entry: Formula, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in inspect.signature(entry.function).parameters if name != "out"] if entry.function else []
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise NotImplementedError("what an attention mask on the meta device leaves cannot be told: it needs values")
    return tensor


def _triangle(n: int, s: int, corner: int) -> int:
    """Pairs of n queries and s keys: all, or those up to the diagonal from the top left or the bottom right corner."""
    if corner == NONE:
        return n * s
    shift = s - n if corner == BOTTOM_RIGHT else 0
    return sum(min(max(i + 1 + shift, 0), s) for i in range(n))


def _flex_mask(block_mask: tuple[Any, ...], n: int, s: int, device: torch.device) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_mask

    blocks, mask_mod = block_mask[2], block_mask[-1]
    batch, heads = (math.prod(blocks.shape[i : i + 1]) for i in (0, 1))
    return create_mask(mask_mod, batch, heads, n, s, device=device)
