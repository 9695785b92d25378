"""verl's ``FlopsCounter``: 6 x matrix elements (including both embedding tables) x tokens, plus the attention scores of half of the token pairs.

``verl/utils/flops_counter.py`` of verl 0.9.1: https://github.com/volcengine/verl/blob/v0.9.1/verl/utils/flops_counter.py
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ._source import Source, head_sizes, projections
from ._terms import Terms, Trainer
from .megatron import linear_projections

DENSE = {
    "qwen2",
    "llama",
    "qwen3",
    "minicpmv",
    "minicpmo",
    "mistral",
    "seed_oss",
    "glm4v",
    "mimo",
    "gemma3_text",
    "apertus",
}
WITH_IMAGES = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
HIDDEN_HEADS = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}
"""Architectures for which verl ignores the head size in the config and uses hidden size / heads."""
LATENT = "deepseek_v3"
MIXTURES = {"qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "gpt_oss", "hy_v3", LATENT}
HYBRID = {"qwen3_5", "qwen3_5_moe"}
TYPES = DENSE | WITH_IMAGES | MIXTURES
WINDOWS = {"gemma3_text": 1024, "gpt_oss": 128}
"""The default window, in tokens, of the architectures whose windows verl counts."""
PERIOD = 6
"""If a config of Gemma 3 does not list the kinds of its layers, every sixth layer attends to all tokens."""


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return verl's FLOPs by term. Raises InputError for an architecture that verl does not know. For such an architecture, verl itself
    prints an MFU of 0."""
    whole = source.needed_config("verl")
    kind = whole.model_type
    if kind not in TYPES:
        raise InputError(
            f"verl has no formula for {kind}, and prints 0 for it; expected one of {', '.join(sorted(TYPES))}"
        )
    config = source.text if kind in WITH_IMAGES else whole
    tokens, layers, hidden = sum(lengths), config.num_hidden_layers, config.hidden_size
    table = 6 * tokens * config.vocab_size * hidden
    found = {"input table": table, "output layer": table}
    found |= {name: 6 * tokens * n for name, n in _feed_forward(kind, config).items()}
    found["attention projections"] = 6 * tokens * _projections(kind, config) * len(_full(kind, config))
    sizes = head_sizes(config) if kind == LATENT else (_head_size(kind, config),) * 2
    halved = 3 * _squares(kind, config, lengths)  # for causality
    found["attention scores"] = halved * config.num_attention_heads * sum(sizes)
    if kind in HYBRID:
        found["linear attention"] = _linear(config, tokens) * (layers - len(_full(kind, config)))
    if kind == "apertus":
        size = _head_size(kind, config) * config.num_key_value_heads
        found["norms"] = 6 * tokens * (hidden + size) * layers
    if kind in WITH_IMAGES:
        found["vision"] = _vision(whole.vision_config, source.images) if source.images else 0
    return found


def _head_size(kind: str, config: Any) -> int:
    size = None if kind in HIDDEN_HEADS else getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


def _projections(kind: str, config: Any) -> int:
    """Return the number of elements in the projection matrices of one attention layer."""
    if kind == LATENT:
        return projections(config)
    queries, keys = (n * _head_size(kind, config) for n in (config.num_attention_heads, config.num_key_value_heads))
    gated = 3 if kind in HYBRID else 2  # Qwen3.5 has an output gate that is as wide as the queries
    return int(config.hidden_size * (gated * queries + 2 * keys))


def _feed_forward(kind: str, config: Any) -> dict[str, int]:
    """Return the sizes of the feed-forward matrices that a token uses, in elements, by term."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    if kind not in MIXTURES and not (kind in HYBRID and hasattr(config, "num_experts")):
        return {"mlp": hidden * config.intermediate_size * (2 if kind == "apertus" else 3) * layers}
    dense = getattr(config, "first_k_dense_replace", 0) if kind == LATENT else 0
    named = {"gpt_oss": "num_local_experts", LATENT: "n_routed_experts"}.get(kind, "num_experts")
    width = config.intermediate_size if kind == "gpt_oss" else getattr(config, "moe_intermediate_size", None)
    width = config.expert_hidden_dim if width is None else width
    shared = {LATENT: "n_shared_experts", "hy_v3": "num_shared_experts"}.get(kind)
    found = {
        "mlp": hidden * config.intermediate_size * 3 * dense if dense else 0,
        "router": hidden * getattr(config, named) * (layers - dense),
        "experts": hidden * width * config.num_experts_per_tok * 3 * (layers - dense),
        "shared experts": hidden * width * getattr(config, shared) * 3 * (layers - dense) if shared else 0,
    }
    if kind in HYBRID:
        found["shared experts"] = hidden * (3 * config.shared_expert_intermediate_size + 1) * layers
    return found


def _full(kind: str, config: Any) -> list[int]:
    """Return the indices of the layers with full or windowed attention. All other layers have linear attention."""
    layers = range(config.num_hidden_layers)
    if kind not in HYBRID:
        return [*layers]
    if kinds := getattr(config, "layer_types", None):
        return [i for i, each in enumerate(kinds) if each == "full_attention"]
    every = getattr(config, "full_attention_interval", 4)
    return [i for i in layers if (i + 1) % every == 0]


def _squares(kind: str, config: Any, lengths: tuple[int, ...]) -> int:
    """Return the sum of length x length over layers and sequences. In a layer with a window, the sum is of length x min(length, window)."""
    everywhere = sum(length**2 for length in lengths)
    layers = len(_full(kind, config))
    if kind not in WINDOWS:
        return everywhere * layers
    window, kinds = getattr(config, "sliding_window", WINDOWS[kind]), getattr(config, "layer_types", None)
    every = getattr(config, "sliding_window_pattern", PERIOD)
    if kind == "gemma3_text" and kinds is None and window is not None and every is not None:
        kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    if not (kinds and window):
        return everywhere * layers
    within = sum(length * min(length, int(window)) for length in lengths)
    windowed: int = kinds.count("sliding_attention")
    return within * windowed + everywhere * (layers - windowed)


def _linear(config: Any, tokens: int) -> int:
    """Return the FLOPs of one gated delta net layer."""
    state = config.linear_key_head_dim * config.linear_value_head_dim * config.linear_num_value_heads
    return int(tokens * (6 * linear_projections(config) + 15 * state))


def _vision(config: Any, lengths: tuple[int, ...]) -> int:
    """Return the FLOPs of a vision encoder for images with these numbers of patches, including the scores of every pair of patches."""
    if config is None:
        return 0
    width, merged = config.hidden_size, config.hidden_size * config.spatial_merge_size**2
    mergers = 1 + len(getattr(config, "deepstack_visual_indexes", None) or ())
    matrices = width * config.in_channels * config.temporal_patch_size * config.patch_size**2
    matrices += (2 * width * config.intermediate_size + 4 * width**2) * config.depth
    matrices += (config.out_hidden_size + merged) * merged * mergers
    pairs = 12 * sum(length**2 for length in lengths) * (width // config.num_heads) * config.num_heads * config.depth
    return int(6 * matrices * sum(lengths) + pairs)


MATRICES = "6 x matrix elements x tokens"
HOW = {
    "input table": "6 x hidden size x vocabulary x tokens (a lookup does no multiplications)",
    "attention projections": MATRICES,
    "attention scores": "per layer 12 x heads x head size x sum of length x min(length, window), halved for causality",
    "linear attention": f"{MATRICES}, plus 15 x heads x key size x value size x tokens for the state",
    "mlp": MATRICES,
    "router": MATRICES,
    "experts": "6 x matrix elements (of the experts that a token is sent to) x tokens",
    "shared experts": MATRICES,
    "norms": "6 x weights of the queries' and keys' norms x tokens",
    "vision": "6 x matrix elements x patches, plus the scores of every pair of patches",
    "output layer": "6 x hidden size x vocabulary x tokens",
}
TRAINER = Trainer("verl", "verl 0.9.1, FlopsCounter", terms, HOW)
