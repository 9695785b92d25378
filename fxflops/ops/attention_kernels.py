"""Attention kernels for tensors [batch, length, heads, size] or for packed sequences.

Every packed sequence is counted as if padded to the longest one.
"""

from __future__ import annotations

import math
from typing import Any

from ._extend import Cost, Spec, formula, named
from .attention import attention, dense, products_of


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
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: counted like attention, with every packed sequence padded to the longest one."""
    return _heads_last(query, key, value, cum_seq_q, max_q, max_k, is_causal, dropout_p, out)


@attention.backward(*named("_flash_attention_backward", "_efficient_attention_backward"), op="attention_backward")
def heads_last_backward(
    *,
    query: Spec,
    key: Spec,
    value: Spec,
    cum_seq_q: Spec | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    bias: Spec | None = None,
    bias_requires_grad: bool = False,
    out: Any,
) -> Cost:
    """grad[b, n, h, v], query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out_q, out_k, out_v: counted like attention_backward.

    Packed sequences have the shape [sum of n, h, d], and ``cum_seq_q`` has their starts. Each sequence is counted as if padded to the
    longest one.
    """
    given = bias if bias_requires_grad else None
    n, h, _ = query[-3:]
    b, s = math.prod(query[:-3]), key[-3]
    if cum_seq_q is not None:
        b, n, s = cum_seq_q[0] - 1, max_q, max_k
    return products_of(query, key, value, b * h, n, s, dropout_p, out, given)


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
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out[b, n, h, v]: counted like attention, with every packed sequence padded to the longest one."""
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
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: counted like attention, with every packed sequence padded to the longest one."""
    if cum_seq_q is None:
        return attention(query, key, value, attn_bias, dropout_p, is_causal, out=out)
    masked = attn_bias is not None or is_causal
    return _heads_last(query, key, value, cum_seq_q, max_q, max_k, masked, dropout_p, out)


@cudnn_attention_forward.backward(
    *named("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"), op="attention_backward"
)
def cudnn_attention_backward(
    *, query: Spec, key: Spec, value: Spec, cum_seq_q: Spec | None, max_q: int, max_k: int, dropout_p: float, out: Any
) -> Cost:
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: counted like attention_backward."""
    if cum_seq_q is not None:
        packed: dict[str, Any] = {"cum_seq_q": cum_seq_q, "max_q": max_q, "max_k": max_k}
        return heads_last_backward(query=query, key=key, value=value, **packed, dropout_p=dropout_p, out=out)
    return products_of(query, key, value, math.prod(query[:-2]), query[-2], key[-2], dropout_p, out)


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
    """Return the cost for tensors [b, n, h, d], or for packed tensors [sum of n, h, d] whose sequences begin at ``starts``."""
    n, h, d = query[-3:]
    b, s = math.prod(query[:-3]), key[-3]
    if starts is not None:
        b, n, s = starts[0] - 1, longest_q or n, longest_k or s
    return dense(b * h, n, s, d, value[-1], masked, dropout_p, out)
