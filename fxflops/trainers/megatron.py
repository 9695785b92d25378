"""Megatron-LM's ``num_floating_point_operations`` for a Transformer, with packed sequences or sequences of one length.

https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/megatron/training/training.py#L802

Multi-token prediction is left out. The vocabulary is padded to a multiple of 128, Megatron-LM's default.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ._source import HEADS, HIDDEN, Source, feed_forward, head_sizes, layer_kinds, projections, read
from ._terms import Terms, Trainer

DIVISIBLE = 128


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x matrix elements x tokens, without the router's matrix. The terms also have the attention scores of half of the pairs of tokens."""
    source.needed_config("megatron")
    config, tokens, squares = source.text, sum(lengths), sum(length**2 for length in lengths)
    hidden, ffn, kinds = read(config, *HIDDEN), feed_forward(config), layer_kinds(config)
    linear = kinds.count("linear_attention")
    full, matrices = len(kinds) - linear, projections(config)
    source.check("megatron", {**ffn.elements(hidden), "attention projections": matrices * full})
    if getattr(config, "kv_lora_rank", None):  # Megatron-LM adds 1 for each element of the norms of the latent ranks
        matrices += config.kv_lora_rank + (config.q_lora_rank or 0)
    vocabulary = -(-read(config, "vocab_size") // DIVISIBLE) * DIVISIBLE
    sparse = hidden * ffn.matrices * ffn.sparse_layers
    return {
        "mlp": 6 * tokens * hidden * ffn.matrices * ffn.width * ffn.dense_layers,
        "experts": 6 * tokens * sparse * ffn.expert_width * ffn.top_k,
        "shared experts": 6 * tokens * sparse * ffn.shared_width,
        "attention projections": 6 * tokens * matrices * full,
        "attention scores": 3 * squares * read(config, *HEADS) * sum(head_sizes(config)) * full,
        "linear attention": 6 * tokens * _delta_net(config) * linear if linear else 0,
        "output layer": 6 * tokens * hidden * vocabulary,
    }


def _delta_net(config: Any) -> int:
    """Return the multiply-accumulates per token in one gated delta net layer."""
    if not hasattr(config, "linear_num_key_heads"):
        raise InputError(f"megatron's formula does not cover the linear attention of {config.model_type}")
    state = config.linear_num_value_heads * config.linear_value_head_dim**2
    return linear_projections(config) + 4 * int(state)


def linear_projections(config: Any) -> int:
    """Return the number of elements in the matrices and the convolution of one gated delta net layer."""
    hidden, heads = read(config, *HIDDEN), config.linear_num_value_heads
    key, value = config.linear_num_key_heads * config.linear_key_head_dim, heads * config.linear_value_head_dim
    return int(hidden * (2 * key + 3 * value + 2 * heads) + config.linear_conv_kernel_dim * (2 * key + value))


MATRICES = "6 x matrix elements x tokens"
HOW = {
    "mlp": MATRICES,
    "experts": "6 x matrix elements (of the experts that a token is sent to) x tokens",
    "shared experts": MATRICES,
    "attention projections": f"{MATRICES}; in latent attention the elements include the norms of the ranks",
    "attention scores": "12 x layers x heads x head size x sum of squared lengths, halved for causality; ignores sliding windows",
    "linear attention": f"{MATRICES}, plus 24 x value heads x value size squared x tokens for the state",
    "output layer": "6 x hidden size x vocabulary padded to a multiple of 128 x tokens",
}
TRAINER = Trainer("megatron", "Megatron-LM, num_floating_point_operations", terms, HOW)
