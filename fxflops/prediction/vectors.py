"""How long a memory-bound kernel takes, which reads its tensors, computes little, and writes: elementwise, norms, softmax, lookups."""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("bytes", "length")
"""Bytes read and written, and the elements of a reduced row (1 if none is reduced)."""
NUMBERS = {"bandwidth": 0.85, "l2_gain": 0.1, "floor_us": 2.0, "short_rows": 0.01, "long_rows": 0.01}
"""The numbers of a card. ``l2_gain`` is the gain in speed for tensors that fit into the L2 cache; ``short_rows`` and ``long_rows``
are the slowdown for each halving of a row below :data:`MIDDLE` elements, and for each doubling above."""
MIDDLE = 1024


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of kernels: ``features[kernels, 2] -> seconds[kernels]``."""
    moved, length = features.unbind(1)
    gain = 1 + numbers["l2_gain"] * torch.sigmoid(4 * (1 - moved / card.l2_bytes))
    doublings = torch.log2(torch.clamp(length, min=1) / MIDDLE)
    rows = 1 + numbers["long_rows"] * torch.relu(doublings) + numbers["short_rows"] * torch.relu(-doublings)
    return numbers["floor_us"] * 1e-6 + moved * rows / (card.bandwidth * numbers["bandwidth"] * gain)
