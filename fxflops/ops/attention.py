"""Scaled dot-product attention counts the same for every kernel: every query with every key, even if a mask removes the pair.

The backward pass takes 4 matrix products and the softmax's gradient. Fused kernels also recompute the scores, because they do not save
them. FlopCounterMode counts this fifth product; fxflops does not, so that a model costs the same with every kernel. For the same
reason, scaling in the backward pass always counts like in torch's unfused code, which scales the gradients of queries and of keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records.facts import pairs_in
from ._extend import Cost, Spec, added_up, contraction, first, formula, named, summed


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
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: softmax(scale * q k' + mask) v, for all n*s pairs.

    Each score takes d multiplies and d-1 adds, and each output s multiplies and s-1 adds. Per score, scaling takes 1, a mask 1
    (also a causal mask), and dropout 1 if dropout_p > 0. Softmax takes s exps, s-1 adds and s divides per row. torch_flops counts
    the same: https://github.com/zugexiaodui/torch_flops
    With grouped queries, every query head is counted with the keys of its group. With ``attention="exact"``, ``out`` has the
    number of pairs that the mask keeps, and only these pairs are counted.
    """
    *batch, _, _ = first(out)
    n, d = query[-2:]
    return dense(math.prod(batch), n, key[-2], d, value[-1], attn_mask is not None or is_causal, dropout_p, out)


def dense(batch: int, n: int, s: int, d: int, v: int, masked: bool, dropout_p: float, out: Any) -> Cost:
    """Return the cost of ``batch`` heads of all samples together, each with ``n`` queries, ``s`` keys, head size ``d`` and value size ``v``."""
    return of_pairs(batch * n, pairs_in(out, batch * n * s), d, v, masked, dropout_p)


def of_pairs(rows: int, pairs: int, d: int, v: int, masked: bool, dropout_p: float) -> Cost:
    """Return the cost of ``pairs`` query-key pairs of head size ``d``, whose values are summed into ``rows`` outputs of size ``v``."""
    softmax = Cost(others=2 * pairs, adds=max(pairs - rows, 0))
    pointwise = Cost(muls=pairs * (1 + (dropout_p > 0)), adds=pairs * masked)
    return contraction(d, pairs).plus(pointwise).plus(softmax).plus(added_up(pairs * v, rows * v))


@attention.backward(
    *named("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *named("_scaled_dot_product_efficient_attention_backward"),
    *named("_scaled_dot_product_fused_attention_overrideable_backward"),
)
def attention_backward(
    *,
    query: Spec,
    key: Spec,
    value: Spec,
    dropout_p: float,
    attn_bias: Spec | None = None,
    grad_input_mask: Sequence[bool] = (True, True, True, False),
    out: Any,
) -> Cost:
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: 4 matrix products; out_q and out_k are scaled.

    With weights P = softmax(scale * q k'): out_v = P' grad; dP = grad v', with dropout times the mask (1);
    dS = P * (dP - sum of P * dP); out_q = dS k * scale; out_k = dS' q * scale, scaled before the heads of a group are summed.
    The gradient of a bias, if requested, is dS summed over the dims along which the bias is broadcast.
    """
    bias = attn_bias if grad_input_mask[3] else None
    return products_of(query, key, value, math.prod(query[:-2]), query[-2], key[-2], dropout_p, out, bias)


@formula(*named("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"), op="attention")
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
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: counted like attention."""
    return attention(query, key, value, attn_mask, dropout_p, is_causal, out=out)


@formula(*named("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"), op="attention")
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
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: counted like attention."""
    return attention(query, key, value, attn_bias, dropout_p, is_causal, out=out)


@formula("higher_order::flex_attention", op="attention")
def flex_attention(
    query: Spec, key: Spec, value: Spec, score_mod: Any = None, block_mask: Any = None, *, out: Any
) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out[*, n, v]: counted like attention; the operations of score_mod and mask_mod count as separate calls."""
    return attention(query, key, value, out=out)


@flex_attention.backward("higher_order::flex_attention_backward", op="attention_backward")
def flex_attention_backward(*, query: Spec, key: Spec, value: Spec, out: Any) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out_q, out_k, out_v: counted like attention_backward, without score_mod's gradient."""
    return products_of(query, key, value, math.prod(query[:-2]), query[-2], key[-2], 0.0, out)


def products_of(
    query: Spec,
    key: Spec,
    value: Spec,
    heads: int,
    n: int,
    s: int,
    dropout_p: float,
    out: Any,
    bias: Spec | None = None,
) -> Cost:
    """Return the cost of the backward pass for ``heads`` heads of all samples together, each with ``n`` queries and ``s`` keys.

    If ``out`` has the number of pairs that the mask keeps, only these pairs are counted.
    """
    rows = heads * n
    pairs = pairs_in(out, rows * s)
    # A key's gradient is scaled once per query head of its group: torch's unfused code copies the key for each head.
    return gradients_of_pairs(rows, heads * s, pairs, query, key, value, dropout_p, bias)


def gradients_of_pairs(
    rows: int, keys: int, pairs: int, query: Spec, key: Spec, value: Spec, dropout_p: float, bias: Spec | None = None
) -> Cost:
    """Return the cost of the gradients for ``pairs`` query-key pairs. ``rows`` and ``keys`` count the queries and keys of all heads."""
    d, v = query[-1], value[-1]
    scaled = (rows + keys) * d
    return summed(
        contraction(v, pairs),
        Cost(muls=pairs * (2 + (dropout_p > 0)) + scaled, adds=max(2 * pairs - rows, 0)),
        Cost(adds=max(pairs - bias.numel(), 0) if bias is not None else 0),
        added_up(pairs * v, value.numel()),
        added_up(pairs * d, rows * d),
        added_up(pairs * d, key.numel()),
    )
