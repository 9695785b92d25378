"""xformers' memory-efficient attention, with tensor, causal, window and packed-sequence masks.

Arguments: https://github.com/facebookresearch/xformers/blob/main/xformers/ops/fmha/__init__.py. Masks:
https://github.com/facebookresearch/xformers/blob/main/xformers/ops/fmha/attn_bias.py. The functions count like torch's attention. Queries of a
packed sequence (``BlockDiagonal*``) are counted only with the keys of the same sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..records.facts import fact_in, pairs_in
from ._extend import Cost, Spec
from ._libraries import Values, gradients_of, library
from ._masks import window_pairs
from .attention import gradients_of_pairs, of_pairs
from .flash_attn import WITHIN, differences

FMHA = "xformers.ops.fmha"
ATTENTION = f"{FMHA}:memory_efficient_attention", f"{FMHA}:memory_efficient_attention_forward"
WITH_SUMS = f"{FMHA}:memory_efficient_attention_forward_requires_grad"
UNBOUNDED = (-1, -1)


def described(values: Values) -> Values:
    """Return the arguments. A mask that is not a tensor becomes plain values: lengths, window, and the corner that the mask is aligned to."""
    bias = values.pop("attn_bias", None)
    if bias is None or isinstance(bias, torch.Tensor):
        return {**values, "attn_mask": bias}
    kind = type(bias).__name__
    lengths = [_lengths(getattr(bias, f"{each}_seqinfo", None)) for each in "qk"]
    left, right = (getattr(bias, f"window_{side}", -1) for side in ("left", "right"))
    size = getattr(bias, "_window_size", 0)
    left = size - 1 if size else left
    right = 0 if "Causal" in kind or "LowerTriangular" in kind else right
    mask = {
        "kind": kind,
        "lengths": None if None in lengths else tuple(zip(*lengths, strict=True)),
        "window": (left, right),
        "bottom_right": "BottomRight" in kind or "Offset" in kind or ("Local" in kind and "Causal" not in kind),
    }
    return {**values, "mask": mask}


def _lengths(info: Any) -> list[int] | None:
    """Return the lengths of packed sequences, or None if the mask has no packed sequences."""
    starts = getattr(info, "seqstart_py", None)
    if starts is None:
        return None
    padded = getattr(info, "seqlen_py", None)
    return differences(starts) if padded is None else [*padded]


def heads_in(query: Any) -> int:
    """Return the number of heads of [b, m, k], [b, m, h, k] or [b, m, g, h, k]."""
    return math.prod(query.shape[2:-1])


def facts(values: Values) -> Mapping[str, int]:
    """Return the number of pairs within sequences, and the number that the mask keeps; {} without a mask or for a mask tensor."""
    mask, query, key = values.get("mask"), values["query"], values["key"]
    if mask is None:
        return {}
    heads = heads_in(query)
    lengths = mask["lengths"] or [(query.shape[1], key.shape[1])] * query.shape[0]
    found = {WITHIN: heads * sum(n * s for n, s in lengths)}
    if mask["window"] != UNBOUNDED:
        found["pairs"] = heads * sum(_within(n, s, mask) for n, s in lengths)
    return found


def _within(n: int, s: int, mask: Mapping[str, Any]) -> int:
    left, right = mask["window"]
    return window_pairs(n, s, left, right, None if mask["bottom_right"] else 0)


def result(query: Spec, value: Spec, output_dtype: Any = None) -> Spec:
    """Return out[b, m, *, v]."""
    return Spec((*query[:-1], value[-1]), output_dtype or query.dtype)


def result_with_sums(query: Spec, value: Spec, output_dtype: Any = None) -> Any:
    """Return out[b, m, *, v], and the logarithms of the softmax's sums, [b, *, m]."""
    return result(query, value, output_dtype), sums_of(query)


def sums_of(query: Spec) -> Spec:
    return Spec((query[0], *query[2:-1], query[1]), torch.float32)


def saved(query: Spec, **others: Any) -> list[Spec]:
    return [sums_of(query)]


def pairs_of(query: Spec, key: Spec, out: Any) -> int:
    pairs: int = pairs_in(out, fact_in(out, WITHIN, math.prod(query[:-1]) * key[1]))
    return pairs


def is_masked(attn_mask: Any, mask: Mapping[str, Any] | None) -> bool:
    """Return whether the mask removes single scores. Packed sequences alone do not mask scores."""
    return attn_mask is not None or (mask is not None and tuple(mask["window"]) != UNBOUNDED)


def cost(query: Spec, key: Spec, value: Spec, attn_mask: Any, mask: Any, p: float, out: Any) -> Cost:
    rows, pairs = math.prod(query[:-1]), pairs_of(query, key, out)
    return of_pairs(rows, pairs, query[-1], value[-1], is_masked(attn_mask, mask), p)


@library(*ATTENTION, op="attention", described=described, facts=facts, result=result, saved=saved)
def memory_efficient_attention(*, query: Spec, key: Spec, value: Spec, attn_mask: Spec | None = None, mask: Any = None, p: float = 0.0, out: Any) -> Cost:  # fmt: skip
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: counted like attention, also with groups, [b, n, g, h, d]."""
    return cost(query, key, value, attn_mask, mask, p, out)


@library(WITH_SUMS, op="attention", described=described, facts=facts, result=result_with_sums)
def attention_with_sums(*, query: Spec, key: Spec, value: Spec, attn_mask: Spec | None = None, mask: Any = None, p: float = 0.0, out: Any) -> Cost:  # fmt: skip
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v], sums[b, h, n]: counted like attention."""
    return cost(query, key, value, attn_mask, mask, p, out)


@memory_efficient_attention.backward(*gradients_of(*ATTENTION), op="attention_backward")
def memory_efficient_attention_backward(*, query: Spec, key: Spec, value: Spec, attn_mask: Spec | None = None, p: float = 0.0, needs: Any = (), out: Any) -> Cost:  # fmt: skip
    """grad[b, n, h, v], query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out_q, out_k, out_v: counted like attention_backward."""
    rows = math.prod(query[:-1])
    keys = key[0] * key[1] * math.prod(query[2:-1])
    bias = attn_mask if "attn_mask" in needs else None
    return gradients_of_pairs(rows, keys, pairs_of(query, key, out), query, key, value, p, bias)
