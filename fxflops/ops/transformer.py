"""The fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer, which run a layer in one call.

A fast path counts as the sum of its parts.
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, first, formula, named, summed, times, when
from .activation import activation
from .attention import attention
from .attention_kernels import flash_attention_forward
from .elementwise import add
from .linear import linear
from .norm import layer_norm


@formula(*named("_native_multi_head_attention"))
def multi_head_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    *,
    num_head: int,
    proj_weight: Spec,
    proj_bias: Spec,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    out: Any,
) -> Cost:
    """query[b, n, e], key[b, s, e], value[b, s, e] -> out[b, n, e]: 3 linear layers, attention for each head, 1 linear layer.

    Averaging the weights over h heads takes h - 1 adds and 1 divide for each of the b*n*s averages.
    """
    b, n, e = query[-3:]
    s, d = key[-2], e // num_head
    heads, others = Spec((b, num_head, n, d)), Spec((b, num_head, s, d))
    return summed(
        *(linear(given, Spec((e, e)), Spec((e,)), out=given) for given in (query, key, value)),
        attention(heads, others, others, mask, out=heads),
        linear(query, proj_weight, proj_bias, out=query),
        when(need_weights and average_attn_weights, times(b * n * s, Cost(adds=num_head - 1, others=1))),
    )


@formula(*named("_triton_multi_head_attention"), op="multi_head_attention")
def triton_multi_head_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    *,
    num_head: int,
    proj_weight: Spec,
    proj_bias: Spec,
    mask: Any = None,
    out: Any,
) -> Cost:
    """query[b, n, e], key[b, s, e], value[b, s, e] -> out[b, n, e]: counted like _native_multi_head_attention."""
    given = {"num_head": num_head, "proj_weight": proj_weight, "proj_bias": proj_bias, "mask": mask}
    return multi_head_attention(query, key, value, **given, need_weights=False, out=out)


@formula(*named("_transformer_encoder_layer_fwd"))
def transformer_encoder_layer(
    src: Spec,
    *,
    num_heads: int,
    proj_weight: Spec,
    proj_bias: Spec,
    norm_weight_1: Spec,
    norm_bias_1: Spec,
    norm_weight_2: Spec,
    norm_bias_2: Spec,
    ffn_weight_1: Spec,
    ffn_bias_1: Spec,
    ffn_weight_2: Spec,
    ffn_bias_2: Spec,
    mask: Any = None,
    out: Spec,
) -> Cost:
    """src[b, n, e] -> out[b, n, e]: the cost of _native_multi_head_attention, 2 linear layers, an activation, 2 layer norms and 2 sums."""
    attended = {"num_head": num_heads, "proj_weight": proj_weight, "proj_bias": proj_bias, "mask": mask}
    hidden = Spec((*src[:-1], ffn_weight_1[0]))
    return summed(
        multi_head_attention(src, src, src, **attended, need_weights=False, out=src),
        linear(src, ffn_weight_1, ffn_bias_1, out=hidden),
        activation(hidden, out=hidden),
        linear(hidden, ffn_weight_2, ffn_bias_2, out=src),
        times(2, add(src, src, out=src)),
        layer_norm(src, weight=norm_weight_1, bias=norm_bias_1, out=src),
        layer_norm(src, weight=norm_weight_2, bias=norm_bias_2, out=src),
    )


@formula(*named("_triton_scaled_dot_attention"), op="attention")
def triton_attention(q: Spec, k: Spec, v: Spec, dropout_p: float = 0.0, *, out: Spec) -> Cost:
    """q[*, n, d], k[*, s, d], v[*, s, v] -> out[*, n, v]: counted like attention."""
    return attention(q, k, v, None, dropout_p, out=out)


@formula("aten::_flash_attention_forward_no_dropout_inplace", op="attention")
def flash_attention_in_place(
    given: Spec,
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
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> given[b, n, h, v]: counted like attention, with every packed sequence padded to the longest one."""
    return flash_attention_forward(
        query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, out=given
    )


@formula("aten::_cudnn_attention_forward_no_dropout_inplace", op="attention")
def cudnn_attention_in_place(
    given: Spec,
    query: Spec,
    key: Spec,
    value: Spec,
    cum_seq_q: Spec | None,
    cum_seq_k: Spec | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    *,
    out: Any,
) -> Cost:
    """query[b, n, h, d], key[b, s, h, d], value[b, s, h, v] -> given[b, n, h, v]: counted like attention, with every packed sequence padded to the longest one."""
    return flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, 0.0, is_causal, out=given)


@formula(*named("_transform_bias_rescale_qkv"))
def transform_bias_rescale_qkv(qkv: Spec, *, out: Any) -> Cost:
    """qkv[b, n, 3e], bias[3e] -> q, k, v: 1 add per element, plus 1 multiply per element of q."""
    return Cost(muls=first(out).numel(), adds=qkv.numel())
