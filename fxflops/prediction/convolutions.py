"""A formula for the time of a convolution. The time is that of the equivalent matrix product, but with fewer bytes.

Only the convolution's own tensors are moved, since cuDNN does not write the matrix of patches to memory. Channels are padded to a multiple of
16 bytes. With few channels, such as an image's three, kernels make little use of the tensor cores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import products
from .hardware import Card

FEATURES = (*products.FEATURES, "bytes", "channels")
"""The features of a matrix product for each group, where [m, k] are the patches and [k, n] the weights. ``bytes`` are the bytes of all
tensors. ``channels`` is the number of input channels per group."""
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
"""The formula's numbers, which are fitted for each card, with starting values for the fit. They start at the fitted numbers of products
(bf16 on an H100). ``few_channels`` is how much slower a kernel is with few channels."""
FREE = ("peak", "floor_us", "few_channels")
"""The numbers that a fit changes. The other numbers keep their starting values, because there are few measurements."""
PADDED = 16
"""Channels are padded to a multiple of this many bytes."""
FEW = 8
"""The formula treats fewer channels than this as few channels."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of convolutions: ``features[convolutions, 7] -> seconds[convolutions]``."""
    batch, m, n, k, element, moved, channels = features.unbind(1)
    together = PADDED / element
    padded = k / channels * torch.ceil(channels / together) * together
    slower = torch.where(channels < FEW, 1 + numbers["few_channels"], torch.ones_like(k))
    slowed = {**numbers, "peak": numbers["peak"] / slower[:, None, None]}
    return products.seconds_moving(slowed, card, dtype, torch.stack([batch, m, n, padded, element], 1), moved)
