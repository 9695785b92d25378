"""The colours of charts in pages and pictures. A colour means the same in all charts."""

from __future__ import annotations

import re
from functools import cache

GREY = "#8d95a1"
FAMILIES = (
    ("pooling, resampling", "#edc948", "pool|interpolate|upsample|grid_sample|pixel_"),
    ("attention", "#b07aa1", "attention"),
    ("convolution", "#76b7b2", "conv"),
    ("matrix product", "#4e79a7", "linear|matmul|mm$|mv$|^v?dot$|einsum|inner|outer|tensordot"),
    ("normalization", "#f28e2b", "norm"),
    ("softmax, loss", "#ff9da7", "softmax|entropy|loss|logsumexp"),
    ("activation", "#e15759", "elu|sigmoid|tanh|silu|softplus|swish|mish|glu|shrink|threshold"),
    ("recurrent", "#9c755f", "lstm|gru|rnn"),
    ("elementwise", "#59a14f", "^_?(foreach_)?(add|sub|rsub|mul|div|neg|abs|pow|exp|log|sqrt|rsqrt|square|reciprocal|lerp|clamp"
     "|where|cos|sin|min|max|eq|ne|lt|le|gt|ge|sign|round|floor|ceil|cumsum)"),
)  # fmt: skip
"""Families of operators. Each has a name, a colour, and a regular expression (for Python and JavaScript) that matches operators' names.

If several families match, the first family is used.
"""
OTHER = ("other", GREY)
BINDS = {
    "compute": ("#7b6fd0", "circle"), "memory": ("#1b9aaa", "square"), "launch": ("#c2336e", "diamond"), "nothing": (GREY, "circle"),
}  # fmt: skip
"""The colour and the shape of the dot for a call. They depend on the ceiling that limits the call's speed."""
CATEGORIES = {
    "params": "#8da0cb", "buffers": "#b3b7e6", "inputs": "#a6d854", "activations": "#66c2a5", "gradients": "#fc8d62",
    "optimizer": "#c3a6e0", "temporaries": "#ffd92f", "gathered": "#e5c494", "cache": "#e78ac3", "other": GREY,
}  # fmt: skip
"""The colour of each category of memory."""
GROUPS = ("#3d8f7f", "#c98a1b", "#8a5fb0", "#b84d6a", "#5f7f2f", "#4a6fa5")
"""The colours of process groups, in order. After the last colour, they start again with the first."""


@cache
def family(op: str) -> tuple[str, str]:
    """Return the name and the colour of an operator's family."""
    return next(((name, colour) for name, colour, names in FAMILIES if re.search(names, op)), OTHER)
