"""Gradients of scaled dot-product attention, the same from every kernel: 4 products, and the softmax's.

Fused kernels compute the scores again, which they did not save: a fifth product (FlopCounterMode counts it), which is not
counted here: a model costs the same by whatever kernel. Dense, as attention.py is by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records import Cost, Spec
from ._cost import added_up, contraction, summed
from ._registry import formula
from ._spellings import named


@formula(*named("_scaled_dot_product_flash_attention_for_cpu_backward"))
def attention_backward(
    grad_out: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    output: Spec,
    logsumexp: Spec,
    dropout_p: float,
    is_causal: bool,
    *,
    out: Any,
) -> Cost:
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: 4 products.

    With weights P = softmax(scale * q k'): out_v = P' grad; dP = grad v', times the dropout's mask if there is one (1);
    dS = P * (dP - sum of P * dP) * scale; out_q = dS k; out_k = dS' q.
    """
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], dropout_p)


@formula(*named("_scaled_dot_product_flash_attention_backward"), op="attention_backward")
def flash_attention_backward(
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
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: as attention_backward."""
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], dropout_p)


@formula(*named("_scaled_dot_product_efficient_attention_backward"), op="attention_backward")
def efficient_attention_backward(
    grad_out_: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    output: Spec,
    logsumexp: Spec,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: as attention_backward.

    The gradient of a bias, if asked for, is dS / scale summed over what the bias is broadcast to.
    """
    bias = attn_bias if grad_input_mask[3] else None
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], dropout_p, bias)


@formula(*named("_scaled_dot_product_fused_attention_overrideable_backward"), op="attention_backward")
def overrideable_attention_backward(
    grad_out: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    attn_bias: Spec | None,
    grad_input_mask: Sequence[bool],
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
    """grad[*, n, v], query[*, n, d], key[*, s, d], value[*, s, v] -> out_q[*, n, d], out_k[*, s, d], out_v[*, s, v]: as attention_backward, with a bias."""
    bias = attn_bias if grad_input_mask[3] else None
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], dropout_p, bias)


@formula("higher_order::flex_attention_backward", op="attention_backward")
def flex_attention_backward(query: Spec, key: Spec, value: Spec, *, out: Any) -> Cost:
    """query[*, n, d], key[*, s, d], value[*, s, v] -> out_q, out_k, out_v: as attention_backward, without score_mod's gradient."""
    return products_of(query, key, value, math.prod(query[:-1]), key[-2], 0.0)


def products_of(
    query: Spec, key: Spec, value: Spec, rows: int, s: int, dropout_p: float, bias: Spec | None = None
) -> Cost:
    """Of so many ``rows``, of every batch and head, that each meet ``s`` keys."""
    pairs, d, v = rows * s, query[-1], value[-1]
    return summed(
        contraction(v, pairs),
        Cost(muls=pairs * (3 + (dropout_p > 0)), adds=max(2 * pairs - rows, 0)),
        Cost(adds=max(pairs - bias.numel(), 0) if bias is not None else 0),
        added_up(pairs * v, value.numel()),
        added_up(pairs * d, rows * d),
        added_up(pairs * d, key.numel()),
    )
