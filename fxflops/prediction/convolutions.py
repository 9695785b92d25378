"""How long a convolution takes: as its matrix product, with the bytes of its own tensors.

cuDNN computes it without writing the matrix of patches, so only the tensors are moved. Channels are padded to 16 bytes; with few channels, such
as an image's three, kernels make little use of the tensor cores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import products
from .hardware import Card

FEATURES = (*products.FEATURES, "bytes", "channels")
"""The features of products, for each group: [m, k] are the patches, [k, n] the weights. ``bytes`` are all tensors' bytes, ``channels`` the input's channels
in a group."""
NUMBERS = {
    "peak": 0.57,
    "bandwidth": 0.89,
    "l2_gain": 0.1,
    "l2_bandwidth": 18.0,
    "fill": 1.5,
    "floor_us": 4.6,
    "start_us": 0.35,
    "small_tiles": 0.016,
    "reduce_us": 2.1,
    "overlap": 1.9,
    "few_channels": 4.0,
}
"""The numbers of a card, with a fit's starting values: those of products (bf16 on an H100), and how much longer few channels take."""
FREE = ("peak", "floor_us", "few_channels")
"""The numbers that a fit to few measurements changes."""
PADDED = 16
"""Channels are padded to a multiple of this many bytes."""
FEW = 8
"""Fewer channels than this are few."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of convolutions: ``features[convolutions, 7] -> seconds[convolutions]``."""
    batch, m, n, k, element, moved, channels = features.unbind(1)
    together = PADDED / element
    padded = k / channels * torch.ceil(channels / together) * together
    slower = torch.where(channels < FEW, 1 + numbers["few_channels"], torch.ones_like(k))
    slowed = {**numbers, "peak": numbers["peak"] / slower[:, None, None]}
    return products.seconds_moving(slowed, card, dtype, torch.stack([batch, m, n, padded, element], 1), moved)
