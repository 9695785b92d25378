"""Transformer Engine's modules in any precision: linear layers (also with a norm before them), MLPs, and attention.

Arguments: https://github.com/NVIDIA/TransformerEngine/tree/main/transformer_engine/pytorch/module and
https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/attention/dot_product_attention/dot_product_attention.py.
A module counts like torch's own layers; scaling and casting to FP8 are not counted. A formula gets the arguments of ``forward`` and
the module's parameters, which are read from the module's attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..records.facts import fact_in, pairs_in
from ._extend import Cost, Spec, summed, times, when
from ._libraries import Given, Values, gradients_of, library
from ._masks import window_pairs
from .attention import gradients_of_pairs, of_pairs
from .flash_attn import WITHIN, lengths_of
from .linear import linear, linear_backward
from .norm import normalized, normalized_backward

TE = "transformer_engine.pytorch"
PARAMETERS = {
    "weight": "weight", "bias": "bias", "norm_weight": "layer_norm_weight", "norm_bias": "layer_norm_bias",
    "fc1_weight": "fc1_weight", "fc1_bias": "fc1_bias", "fc2_weight": "fc2_weight", "fc2_bias": "fc2_bias",
}  # fmt: skip
GATED = frozenset({"geglu", "reglu", "swiglu", "qgeglu", "sreglu", "glu", "clamped_swiglu"})
"""Activations that multiply one half of their input by the activation of the other half."""
ACTIVATION = Cost(others=1)
ACTIVATION_BACKWARD = Cost(muls=3, adds=2, others=1)
"""The cost of silu_backward. The derivatives of all activations count the same."""


def described(values: Values) -> Values:
    """Return the arguments of a module's forward, and the module's non-empty parameters."""
    module = values.pop("self")
    found: Values = {"x": values.pop("inp"), **values}
    for name, attribute in PARAMETERS.items():
        parameter = getattr(module, attribute, None)
        if isinstance(parameter, torch.Tensor) and parameter.numel():
            found[name] = parameter
    found["activation"] = str(getattr(module, "activation", ""))
    found["normalization"] = str(getattr(module, "normalization", ""))
    for name in ("return_bias", "return_layernorm_output"):
        found[name] = bool(getattr(module, name, False))
    return found


def result(
    x: Spec, weight: Spec | None = None, fc2_weight: Spec | None = None, return_bias: bool = False,
    return_layernorm_output: bool = False, bias: Any = None, fc2_bias: Any = None,
) -> Any:  # fmt: skip
    """Return out[*, o]. If requested, also return the bias, which is then not added, and the norm's result."""
    last, name = (weight, "bias") if fc2_weight is None else (fc2_weight, "fc2_bias")
    assert last is not None
    out = Spec((*x[:-1], last[0]), x.dtype)
    given = [None if (bias if name == "bias" else fc2_bias) is None else Given(name)] if return_bias else []
    normed = [Spec(x, x.dtype)] if return_layernorm_output else []
    return (out, *given, *normed) if given or normed else out


def layer(x: Spec, weight: Spec, bias: Spec | None) -> Cost:
    return linear(x, weight, bias, out=Spec((*x[:-1], weight[0])))


def layer_backward(x: Spec, weight: Spec, needs: Sequence[str], prefix: str = "", to_input: bool = True) -> Cost:
    mask = to_input, f"{prefix}weight" in needs, f"{prefix}bias" in needs
    return linear_backward(x, Spec((*x[:-1], weight[0])), weight, mask, out=None)


def norm_of(
    x: Spec, norm_weight: Spec | None, norm_bias: Spec | None, needs: Sequence[str], normalization: str
) -> Cost:
    mask = True, "norm_weight" in needs, "norm_bias" in needs
    return normalized_backward(x, x[-1], x[-1], norm_weight, mask, centered=normalization != "RMSNorm")


def to_input_of(needs: Sequence[str]) -> bool:
    """Return whether a layer after a norm must compute its input's gradient. The gradients of the norm's parameters need it too."""
    return any(name in needs for name in ("x", "norm_weight", "norm_bias"))


LINEAR = f"{TE}.module.linear:Linear.forward"


@library(LINEAR, op="linear", described=described, result=result)
def te_linear(*, x: Spec, weight: Spec, bias: Spec | None = None, return_bias: bool = False, out: Any) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: counted like linear."""
    return layer(x, weight, None if return_bias else bias)


@te_linear.backward(*gradients_of(LINEAR), op="linear_backward")
def te_linear_backward(*, x: Spec, weight: Spec, needs: Sequence[str], out: Any) -> Cost:
    """grad[*, o], x[*, i], weight[o, i] -> out[*, i], out_weight[o, i], out_bias[o]: counted like linear_backward."""
    return layer_backward(x, weight, needs, to_input="x" in needs)


NORM_LINEAR = f"{TE}.module.layernorm_linear:LayerNormLinear.forward"


@library(NORM_LINEAR, op="layer_norm_linear", described=described, result=result)
def te_norm_linear(
    *, x: Spec, weight: Spec, bias: Spec | None = None, norm_weight: Spec | None = None, norm_bias: Spec | None = None,
    normalization: str = "", return_bias: bool = False, out: Any,
) -> Cost:  # fmt: skip
    """input[*, i], weight[o, i] -> out[*, o]: the cost of layer_norm or rms_norm, plus the cost of linear."""
    normed = normalized(x, norm_weight, norm_bias, normalization != "RMSNorm")
    return normed.plus(layer(x, weight, None if return_bias else bias))


@te_norm_linear.backward(*gradients_of(NORM_LINEAR), op="layer_norm_linear_backward")
def te_norm_linear_backward(
    *, x: Spec, weight: Spec, norm_weight: Spec | None = None, norm_bias: Spec | None = None, normalization: str = "",
    needs: Sequence[str], out: Any,
) -> Cost:  # fmt: skip
    """grad[*, o], x[*, i], weight[o, i] -> all gradients: the cost of linear_backward, plus the cost of the norm's backward pass."""
    to_input = to_input_of(needs)
    of_norm = when(to_input, norm_of(x, norm_weight, norm_bias, needs, normalization))
    return of_norm.plus(layer_backward(x, weight, needs, to_input=to_input))


MLP = f"{TE}.module.layernorm_mlp:LayerNormMLP.forward"


@library(MLP, op="layer_norm_mlp", described=described, result=result)
def te_mlp(
    *, x: Spec, fc1_weight: Spec, fc2_weight: Spec, fc1_bias: Spec | None = None, fc2_bias: Spec | None = None,
    norm_weight: Spec | None = None, norm_bias: Spec | None = None, activation: str = "",
    normalization: str = "", return_bias: bool = False, out: Any,
) -> Cost:  # fmt: skip
    """input[*, i], fc1_weight[f, i], fc2_weight[o, f] -> out[*, o]: the norm, two linear layers and the activation between them; for a gated activation, fc1_weight is [2f, i]."""
    hidden = Spec((*x[:-1], fc2_weight[1]))
    return summed(
        normalized(x, norm_weight, norm_bias, normalization != "RMSNorm"),
        layer(x, fc1_weight, fc1_bias),
        times(hidden.numel(), ACTIVATION.plus(Cost(muls=1 if activation in GATED else 0))),
        layer(hidden, fc2_weight, None if return_bias else fc2_bias),
    )


@te_mlp.backward(*gradients_of(MLP), op="layer_norm_mlp_backward")
def te_mlp_backward(
    *, x: Spec, fc1_weight: Spec, fc2_weight: Spec, norm_weight: Spec | None = None, norm_bias: Spec | None = None,
    activation: str = "", normalization: str = "", needs: Sequence[str], out: Any,
) -> Cost:  # fmt: skip
    """grad[*, o], x[*, i] -> all gradients: the backward passes of the layers, the activation (6 per element, plus 2 for a gate) and the norm."""
    hidden = Spec((*x[:-1], fc2_weight[1]))
    to_input = to_input_of(needs)
    return summed(
        layer_backward(hidden, fc2_weight, needs, "fc2_"),
        times(hidden.numel(), ACTIVATION_BACKWARD.plus(Cost(muls=2 if activation in GATED else 0))),
        layer_backward(x, fc1_weight, needs, "fc1_", to_input),
        when(to_input, norm_of(x, norm_weight, norm_bias, needs, normalization)),
    )


# Attention: [s, b, h, d], [b, s, h, d], or packed [t, h, d]


def attention_described(values: Values) -> Values:
    """Return the arguments. Settings that are not passed are taken from the module."""
    module = values.pop("self")
    found = dict(values)
    for name in ("qkv_format", "attn_mask_type", "window_size"):
        given = values.get(name)
        found[name] = getattr(module, name, None) if given is None else given
    found["attn_mask_type"] = str(found["attn_mask_type"] or "no_mask").replace(",", "_")
    found["dropout_p"] = float(getattr(getattr(module, "flash_attention", None), "attention_dropout", 0.0) or 0.0)
    return found


def sizes(query: Any, key: Any, layout: str) -> tuple[int, int, int]:
    """Return the number of sequences, and the numbers of queries and keys per sequence. Packed sequences count as one sequence."""
    if layout == "thd":
        return 1, query.shape[0], key.shape[0]
    first = layout.index("b")
    return query.shape[first], query.shape[1 - first], key.shape[1 - first]


def attention_facts(values: Values) -> Mapping[str, int]:
    """Return the number of pairs within sequences, and the number of pairs that the causal mask and the window keep."""
    query, key, layout = values["query_layer"], values["key_layer"], values["qkv_format"]
    heads, kind = query.shape[-2], values["attn_mask_type"]
    batch, n, s = sizes(query, key, layout)
    lengths = [(n, s)] * batch
    starts = [values.get(f"cu_seqlens_{each}") for each in ("q", "kv")]
    if layout == "thd" and None not in starts:
        lengths = [*zip(*map(lengths_of, starts), strict=True)]
    facts = {WITHIN: heads * sum(q * k for q, k in lengths)}
    left, right = values.get("window_size") or (-1, -1)
    right = 0 if "causal" in kind else right
    if (left, right) != (-1, -1):
        shift = None if "bottom_right" in kind or "causal" not in kind else 0
        facts["pairs"] = heads * sum(window_pairs(q, k, left, right, shift) for q, k in lengths)
    return facts


def attention_result(query_layer: Spec, value_layer: Spec) -> Spec:
    """Return out[*, h * v]."""
    return Spec((*query_layer[:-2], query_layer[-2] * value_layer[-1]), query_layer.dtype)


ATTENTION = (
    f"{TE}.attention.dot_product_attention.dot_product_attention:DotProductAttention.forward",
    f"{TE}.attention:DotProductAttention.forward",
)


def attended(query: Spec, key: Spec, layout: str, out: Any) -> int:
    batch, n, s = sizes(query, key, layout)
    pairs: int = pairs_in(out, fact_in(out, WITHIN, batch * n * s * query[-2]))
    return pairs


@library(*ATTENTION, op="attention", described=attention_described, facts=attention_facts, result=attention_result)
def te_attention(
    *, query_layer: Spec, key_layer: Spec, value_layer: Spec, qkv_format: str, attn_mask_type: str = "no_mask",
    dropout_p: float = 0.0, out: Any,
) -> Cost:  # fmt: skip
    """query[s, b, h, d], key[s, b, h, d], value[s, b, h, v] -> out[s, b, hv]: counted like attention, also for inputs [b, s, h, d] and packed inputs."""
    pairs = attended(query_layer, key_layer, qkv_format, out)
    masked = attn_mask_type != "no_mask"
    return of_pairs(math.prod(query_layer[:-1]), pairs, query_layer[-1], value_layer[-1], masked, dropout_p)


@te_attention.backward(*gradients_of(*ATTENTION), op="attention_backward")
def te_attention_backward(
    *, query_layer: Spec, key_layer: Spec, value_layer: Spec, qkv_format: str, dropout_p: float = 0.0, out: Any
) -> Cost:
    """grad[s, b, hv], query[s, b, h, d], key[s, b, h, d], value[s, b, h, v] -> out_q, out_k, out_v: counted like attention_backward."""
    rows, keys = math.prod(query_layer[:-1]), math.prod(key_layer[:-2]) * query_layer[-2]
    pairs = attended(query_layer, key_layer, qkv_format, out)
    return gradients_of_pairs(rows, keys, pairs, query_layer, key_layer, value_layer, dropout_p)
