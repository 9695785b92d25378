"""Megatron-LM's ``num_floating_point_operations`` of a Transformer, for packed sequences as for rows of one length.

https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/megatron/training/training.py#L802; without
multi-token prediction, and with the vocabulary padded as by default, to a multiple of 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ._source import HEADS, HIDDEN, Source, feed_forward, head_sizes, layer_kinds, read
from ._terms import Trainer

DIVISIBLE = 128
GATED_QUERIES = {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
"""Architectures with an output gate in attention, as wide as the queries."""


def terms(source: Source, lengths: tuple[int, ...]) -> Mapping[str, float]:
    """Return 6 x each matrix x tokens, without the router; of the scores half of the pairs."""
    source.needed_config("megatron")
    config, tokens, squares = source.text, sum(lengths), sum(length**2 for length in lengths)
    hidden, ffn, kinds = read(config, *HIDDEN), feed_forward(config), layer_kinds(config)
    linear = kinds.count("linear_attention")
    projections, scores = _latent(config) if getattr(config, "kv_lora_rank", None) else _attention(config)
    vocabulary = -(-read(config, "vocab_size") // DIVISIBLE) * DIVISIBLE
    sparse = hidden * ffn.matrices * ffn.sparse_layers
    return {
        "mlp": 6 * tokens * hidden * ffn.matrices * ffn.width * ffn.dense_layers,
        "experts": 6 * tokens * sparse * ffn.expert_width * ffn.top_k,
        "shared experts": 6 * tokens * sparse * ffn.shared_width,
        "attention projections": 6 * tokens * projections * (len(kinds) - linear),
        "attention scores": 6 * squares * scores * (len(kinds) - linear),
        "linear attention": 6 * tokens * _delta_net(config) * linear if linear else 0,
        "output layer": 6 * tokens * hidden * vocabulary,
    }


def _attention(config: Any) -> tuple[int, float]:
    """Return the multiply-accumulates of a token in a layer's projections, and of a pair of tokens in its scores."""
    hidden, heads, (size, _) = read(config, *HIDDEN), read(config, *HEADS), head_sizes(config)
    key = size * read(config, "num_key_value_heads", default=heads)
    gate = size * heads if config.model_type in GATED_QUERIES else 0
    return hidden * (2 * size * heads + 2 * key + gate), size * heads


def _latent(config: Any) -> tuple[int, float]:
    """Return the same of latent attention (MLA), with 1 for each element of the norms of the ranks."""
    hidden, heads, (query, value) = read(config, *HIDDEN), read(config, *HEADS), head_sizes(config)
    rank, cached = config.q_lora_rank, config.kv_lora_rank
    queries = hidden * heads * query if rank is None else rank * (hidden + heads * query + 1)
    keys = cached * (hidden + heads * (config.qk_nope_head_dim + value) + 1) + hidden * config.qk_rope_head_dim
    return int(queries + keys + heads * value * hidden), heads * (query + value) / 2


def _delta_net(config: Any) -> int:
    """Return the multiply-accumulates of a token in a layer of gated delta net."""
    if not hasattr(config, "linear_num_key_heads"):
        raise InputError(f"megatron's formula knows no linear attention such as that of {config.model_type}")
    key = config.linear_num_key_heads * config.linear_key_head_dim
    value = config.linear_num_value_heads * config.linear_value_head_dim
    hidden, heads = read(config, *HIDDEN), config.linear_num_value_heads
    within = hidden * (2 * key + 2 * value + 2 * heads) + config.linear_conv_kernel_dim * (2 * key + value)
    return int(within + 4 * heads * config.linear_value_head_dim**2 + hidden * value)


MATRICES = "6 x matrices x tokens"
HOW = {
    "mlp": MATRICES,
    "experts": "6 x matrices of the experts a token is sent to x tokens",
    "shared experts": MATRICES,
    "attention projections": f"{MATRICES}; 1 more for each element of the ranks' norms in latent attention",
    "attention scores": "12 x layers x heads x head size x the sum of L squared, halved for causality; windows are not seen",
    "linear attention": f"{MATRICES}, and 8 x value heads x value size squared x 3 for the state",
    "output layer": "6 x hidden size x vocabulary padded to a multiple of 128 x tokens",
}
TRAINER = Trainer("megatron", "Megatron-LM, num_floating_point_operations", terms, HOW)
