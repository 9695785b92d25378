"""Gradients of attention by the kernels that take packed sequences too; those count as the longest."""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._registry import formula
from ._spellings import named
from .gradient_attention import products_of


@formula(
    *named("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"),
    op="attention_backward",
)
def cudnn_attention_backward(
    grad_out: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    output: Spec,
    logsumexp: Spec,
    philox_seed: Any,
    philox_offset: Any,
    attn_bias: Spec | None,
    cum_seq_q: Spec | None,
    cum_seq_k: Spec | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    *,
    out: Any,
) -> Cost:
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: as attention_backward."""
    if cum_seq_q is not None:
        return _heads_last(query, key, value, cum_seq_q, max_q, max_k, dropout_p)
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], dropout_p)


@formula(*named("_flash_attention_backward"), op="attention_backward")
def flash_attention_heads_last_backward(
    grad_out: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    output: Spec,
    logsumexp: Spec,
    cum_seq_q: Spec | None,
    cum_seq_k: Spec | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    *,
    out: Any,
) -> Cost:
    """grad[b, n, h, v], query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out_q, out_k, out_v: as attention_backward."""
    return _heads_last(query, key, value, cum_seq_q, max_q, max_k, dropout_p)


@formula(*named("_efficient_attention_backward"), op="attention_backward")
def efficient_attention_heads_last_backward(
    grad_out_: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    bias: Spec | None,
    output: Spec,
    cu_seqlens_q: Spec | None,
    cu_seqlens_k: Spec | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Spec,
    dropout_p: float,
    philox_seed: Any,
    philox_offset: Any,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    out: Any,
) -> Cost:
    """grad[b, n, h, v], query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> out_q, out_k, out_v: as attention_backward, with a bias."""
    given = bias if bias_requires_grad else None
    return _heads_last(query, key, value, cu_seqlens_q, max_seqlen_q, max_seqlen_k, dropout_p, given)


def _heads_last(
    query: Spec,
    key: Spec,
    value: Spec,
    starts: Spec | None,
    longest_q: int,
    longest_k: int,
    dropout_p: float,
    bias: Spec | None = None,
) -> Cost:
    """Of tensors [b, n, h, d]; packed ones, [sum of n, h, d], come with the ``starts`` of their sequences."""
    if starts is None:
        return products_of(query, key, value, math.prod(query[:-1]), key[-3], dropout_p, bias)
    rows = (starts[0] - 1) * longest_q * query[-2]
    return products_of(query, key, value, rows, longest_k, dropout_p, bias)
