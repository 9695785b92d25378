"""MaxText's ``calculate_tflops_training_per_device``, for a step on one device.

https://github.com/AI-Hypercomputer/maxtext/blob/e591f30cbbf217ed67ef71263ec0538239f9c3b8/src/maxtext/utils/maxtext_utils.py#L1149

The formula is applied to each sequence of a batch with its own length.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ._source import HEADS, HIDDEN, LAYERS, Source, feed_forward, head_sizes, projections, read
from ._terms import Terms, Trainer

PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
"""For each architecture, the n for which every n-th layer has global attention. The other layers have a window."""
UNKNOWN = ("llama4", "gemma4", "deepseek_v4", "qwen3_next", "qwen3_5")
"""Architectures for which MaxText has formulas that fxflops does not implement."""


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x matrix elements x tokens, including the router's matrix. The terms also have the attention scores of half of the pairs of tokens.

    In a layer with a window, only the pairs in the window are included.
    """
    source.needed_config("maxtext")
    config, tokens = source.text, sum(lengths)
    if config.model_type.startswith(UNKNOWN):
        raise InputError(f"fxflops does not implement maxtext's formula for {config.model_type}")
    hidden, layers, heads, ffn = (
        read(config, *HIDDEN),
        read(config, *LAYERS),
        read(config, *HEADS),
        feed_forward(config),
    )
    query, value = head_sizes(config)
    matrices = projections(config) * layers
    source.check("maxtext", {**ffn.elements(hidden), "attention projections": matrices})
    sparse = 6 * tokens * hidden * ffn.sparse_layers
    pairs = sum(_pairs(config, layers, length) for length in lengths)
    return {
        "mlp": 6 * tokens * hidden * ffn.matrices * ffn.width * ffn.dense_layers,
        "router": sparse * ffn.experts,
        "experts": sparse * ffn.matrices * ffn.expert_width * ffn.top_k,
        "shared experts": sparse * ffn.matrices * ffn.shared_width if config.model_type.startswith("deepseek") else 0,
        "attention projections": 6 * tokens * matrices,
        "attention scores": 6 * heads * (query + value) * pairs,
        "output layer": 6 * tokens * hidden * read(config, "vocab_size"),
    }


def _pairs(config: Any, layers: int, length: int) -> float:
    """Return the pairs of tokens in a sequence of length L, over all layers.

    A layer has L squared / 2 pairs or, with a window of W tokens, L x W - W squared / 2 pairs.
    """
    pattern = PATTERNS.get(config.model_type, 1)
    window = min(length, read(config, "sliding_window", default=length))
    everywhere = layers // pattern
    return everywhere * length**2 / 2 + (layers - everywhere) * (length * window - window**2 / 2)


MATRICES = "6 x matrix elements x tokens"
HOW = {
    "mlp": MATRICES,
    "router": MATRICES,
    "experts": "6 x matrix elements (of the experts that a token is sent to) x tokens",
    "shared experts": MATRICES,
    "attention projections": MATRICES,
    "attention scores": "per layer 6 x heads x (query + value size) x pairs; pairs: length squared / 2, or length x window - window squared / 2",
    "output layer": "6 x hidden size x vocabulary x tokens",
}
TRAINER = Trainer("maxtext", "MaxText, calculate_tflops_training_per_device", terms, HOW)
