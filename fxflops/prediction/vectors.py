"""A formula for the time of memory-bound kernels. Memory-bound kernels read and write tensors and compute little: elementwise ops, norms,
softmax, lookups."""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("bytes", "length")
"""The bytes read and written, and the number of elements in a reduced row (1 if the kernel reduces nothing)."""
NUMBERS = {"bandwidth": 0.85, "l2_gain": 0.1, "floor_us": 2.0, "short_rows": 0.01, "long_rows": 0.01}
"""The formula's numbers, which are fitted for each card. ``l2_gain`` is the gain in speed for tensors that fit into the L2 cache.
``short_rows`` is the slowdown for each halving of a row's length below :data:`MIDDLE` elements, ``long_rows`` the slowdown for each
doubling above."""
MIDDLE = 1024


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of kernels: ``features[kernels, 2] -> seconds[kernels]``."""
    moved, length = features.unbind(1)
    gain = 1 + numbers["l2_gain"] * torch.sigmoid(4 * (1 - moved / card.l2_bytes))
    doublings = torch.log2(torch.clamp(length, min=1) / MIDDLE)
    rows = 1 + numbers["long_rows"] * torch.relu(doublings) + numbers["short_rows"] * torch.relu(-doublings)
    return numbers["floor_us"] * 1e-6 + moved * rows / (card.bandwidth * numbers["bandwidth"] * gain)
