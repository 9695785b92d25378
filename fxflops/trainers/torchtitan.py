"""torchtitan's FLOPs a token: 6 x parameters that multiply + 6 x layers x heads x (query + value size) x sequence length.

``get_dense_model_nparams_and_flops`` and ``get_moe_model_nparams_and_flops`` of torchtitan 0.3.0:
https://github.com/pytorch/torchtitan/blob/v0.3.0/torchtitan/models/utils.py
"""

from __future__ import annotations

from . import six_nd
from ._source import Source
from ._terms import Terms, Trainer


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x parameters x tokens without the input table and vision, and the scores of every pair in attention layers."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    # Those of experts are rounded down there.
    active = {name: int(n) for name, n in source.active_parameters.items() if name not in ("input table", "vision")}
    scores = 6 * source.width_of_scores("torchtitan") * squares
    return {name: 6 * n * tokens for name, n in active.items()} | {"attention scores": scores}


HOW = six_nd.HOW | {
    "attention scores": "6 x layers x heads x (query + value size) x the sum of L squared: every pair",
    "linear attention": "6 x parameters x tokens, nothing for the recurrence",
}
TRAINER = Trainer("torchtitan", "torchtitan 0.3.0", terms, HOW)
