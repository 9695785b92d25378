"""torchtitan's FLOPs per token: 6 x parameters + 6 x layers x heads x (query + value size) x sequence length.

The parameters do not include the input table, which multiplies nothing.

torchtitan 0.3.0, ``get_dense_model_nparams_and_flops`` and ``get_moe_model_nparams_and_flops``:
https://github.com/pytorch/torchtitan/blob/v0.3.0/torchtitan/models/utils.py.

Since August 2026, torchtitan counts only the pairs of tokens in a sliding window (``quadratic_attention_flops_per_token``), and also counts
the state of a delta rule (``delta_rule_flops_per_token``): https://github.com/pytorch/torchtitan/pull/4300.
"""

from __future__ import annotations

from . import six_nd
from ._source import Source, layer_kinds, read, windows
from ._terms import Terms, Trainer

DELTA_RULE = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
"""The fields of a config for layers with linear attention: the number of heads, and the two dims of each head's state."""


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x parameters x tokens, without the input table and the vision encoder. The terms also have the attention scores of every
    pair of tokens."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    # torchtitan rounds the experts' active parameters down.
    active = {name: int(n) for name, n in source.active_parameters.items() if name not in ("input table", "vision")}
    scores = 6 * source.width_of_scores("torchtitan") * squares
    return {name: 6 * n * tokens for name, n in active.items()} | {"attention scores": scores}


def terms_with_windows(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return the terms of torchtitan 0.3.0 with two changes: only scores within each layer's window are counted, and the state of a delta
    rule is also counted."""
    found = dict(terms(source, lengths))
    config, tokens = source.text, sum(lengths)
    of_layers = windows(config)
    seen = sum(length * min(length, window or length) for window in of_layers for length in lengths)
    found["attention scores"] = 6 * source.width_of_scores("torchtitan") * seen // max(len(of_layers), 1)
    recurrent = layer_kinds(config).count("linear_attention")
    if recurrent:
        heads, key, value = (read(config, name) for name in DELTA_RULE)
        # For each token, the layer reads, updates and queries the state. Each of these steps is one product.
        found["linear attention"] = found.get("linear attention", 0) + 6 * 3 * heads * key * value * tokens * recurrent
    return found


HOW = six_nd.HOW | {
    "attention scores": "6 x layers x heads x (query + value size) x sum of squared lengths: every pair of tokens",
    "linear attention": "6 x parameters x tokens, without the recurrence",
}
HOW_WITH_WINDOWS = HOW | {
    "attention scores": "per layer 6 x heads x (query + value size) x sum of length x min(length, window)",
    "linear attention": "6 x parameters x tokens, plus 18 x heads x key size x value size x tokens per layer for the state",
}
TRAINER = Trainer("torchtitan", "torchtitan 0.3.0: ignores sliding windows", terms, HOW)
WITH_WINDOWS = Trainer(
    "torchtitan_2026_08",
    "torchtitan since August 2026 (pull request 4300): counts sliding windows and the delta rule's state",
    terms_with_windows,
    HOW_WITH_WINDOWS,
)
