"""A formula for the time of a depthwise convolution. A depthwise convolution reads and writes its tensors, and computes without tensor cores."""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("bytes", "flops")
NUMBERS = {"bandwidth": 0.85, "peak": 0.2, "floor_us": 3.0}
"""The formula's numbers, which are fitted for each card: the shares of bandwidth and f32 peak that kernels reach, and a kernel's least time.
Moving and computing overlap partly, so their times are combined as the root of the sum of squares."""
FREE = ("peak", "floor_us")
"""The numbers that a fit changes. The other numbers keep their starting values, because there are few measurements."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of convolutions: ``features[convolutions, 2] -> seconds[convolutions]``."""
    moved, flops = features.unbind(1)
    memory = moved / (card.bandwidth * numbers["bandwidth"])
    compute = flops / (card.peak("f32") * numbers["peak"])
    return numbers["floor_us"] * 1e-6 + torch.hypot(memory, compute)
