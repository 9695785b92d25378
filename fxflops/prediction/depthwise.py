"""How long a depthwise convolution takes: it moves its tensors, and computes without tensor cores."""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("bytes", "flops")
NUMBERS = {"bandwidth": 0.85, "peak": 0.2, "floor_us": 3.0}
"""The numbers of a card: shares of its bandwidth and of its f32 peak, and the least time of a kernel. Both times overlap in part: they
are added as the root of a sum of squares."""
FREE = ("peak", "floor_us")
"""The numbers that a fit to few measurements changes."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of convolutions: ``features[convolutions, 2] -> seconds[convolutions]``."""
    moved, flops = features.unbind(1)
    memory = moved / (card.bandwidth * numbers["bandwidth"])
    compute = flops / (card.peak("f32") * numbers["peak"])
    return numbers["floor_us"] * 1e-6 + torch.hypot(memory, compute)
