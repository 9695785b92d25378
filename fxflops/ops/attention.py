"""Scaled dot-product attention, the same from every kernel: every query meets every key, whatever the mask leaves."""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._cost import added_up, contraction, first
from ._registry import formula
from ._spellings import named


@formula(
    *named("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
    *named("_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable"),
)
def attention(
    query: Spec,
    key: Spec,
    value: Spec,
    attn_mask: Spec | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    out: Any,
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: softmax(scale * q k' + mask) v, dense.

    Each of the n*s scores is d multiplies and d-1 adds, each output s multiplies and s-1 adds. A score is scaled (1),
    masked if there is a mask or causality (1), and dropped out if dropout_p > 0 (1); softmax is s exps, s-1 adds and s
    divides per row. These are torch_flops' numbers: https://github.com/zugexiaodui/torch_flops
    Grouped queries: every query head is counted, as each meets the keys of its group. Of ``attention="exact"`` out
    knows the pairs that the mask leaves.
    """
    *batch, _, _ = first(out)
    n, d = query[-2:]
    return _attention(math.prod(batch), n, key[-2], d, value[-1], attn_mask is not None or is_causal, dropout_p, out)


@formula(
    *named("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    op="attention",
)
def flash_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    attn_mask: Spec | None = None,
    *,
    out: Any,
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: as attention."""
    return attention(query, key, value, attn_mask, dropout_p, is_causal, out=out)


@formula(
    *named("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    op="attention",
)
def efficient_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    out: Any,
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: as attention."""
    return attention(query, key, value, attn_bias, dropout_p, is_causal, out=out)


@formula(*named("_flash_attention_forward"), op="attention")
def flash_attention_forward(
    query: Spec,
    key: Spec,
    value: Spec,
    cum_seq_q: Spec | None,
    cum_seq_k: Spec | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    out: Any,
) -> Cost:
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: as attention; packed sequences count as the longest."""
    return _heads_last(query, key, value, cum_seq_q, max_q, max_k, is_causal, dropout_p, out)


@formula(*named("_efficient_attention_forward"), op="attention")
def efficient_attention_forward(
    query: Spec,
    key: Spec,
    value: Spec,
    bias: Spec | None,
    cu_seqlens_q: Spec | None,
    cu_seqlens_k: Spec | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    *,
    out: Any,
) -> Cost:
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: as attention; packed sequences count as the longest."""
    masked = bias is not None or custom_mask_type != 0
    return _heads_last(query, key, value, cu_seqlens_q, max_seqlen_q, max_seqlen_k, masked, dropout_p, out)


@formula(*named("_cudnn_attention_forward"), op="attention")
def cudnn_attention_forward(
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    cum_seq_q: Spec | None,
    cum_seq_k: Spec | None,
    max_q: int,
    max_k: int,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    out: Any,
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: as attention; packed sequences count as the longest."""
    if cum_seq_q is None:
        return attention(query, key, value, attn_bias, dropout_p, is_causal, out=out)
    masked = attn_bias is not None or is_causal
    return _heads_last(query, key, value, cum_seq_q, max_q, max_k, masked, dropout_p, out)


@formula("higher_order::flex_attention", op="attention")
def flex_attention(
    query: Spec, key: Spec, value: Spec, score_mod: Any = None, block_mask: Any = None, *, out: Any
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: as attention; score_mod and mask_mod are calls of their own."""
    return attention(query, key, value, out=out)


def _heads_last(
    query: Spec,
    key: Spec,
    value: Spec,
    starts: Spec | None,
    longest_q: int | None,
    longest_k: int | None,
    masked: bool,
    dropout_p: float,
    out: Any,
) -> Cost:
    """Of tensors [b, n, h, d]; packed ones, [sum of n, h, d], come with the ``starts`` of their sequences."""
    n, h, d = query[-3:]
    b, s = math.prod(query[:-3]), key[-3]
    if starts is not None:
        b, n, s = starts[0] - 1, longest_q or n, longest_k or s
    return _attention(b * h, n, s, d, value[-1], masked, dropout_p, out)


def _attention(batch: int, n: int, s: int, d: int, v: int, masked: bool, dropout_p: float, out: Any) -> Cost:
    rows, pairs = batch * n, first(out).facts.get("pairs", batch * n * s)
    softmax = Cost(others=2 * pairs, adds=max(pairs - rows, 0))
    pointwise = Cost(muls=pairs * (1 + (dropout_p > 0)), adds=pairs * masked)
    return contraction(d, pairs).plus(pointwise).plus(softmax).plus(added_up(pairs * v, rows * v))
