"""A formula for the time of a matrix product. The formula uses three times: to compute, to read memory, and to read the L2 cache.

A library such as cuBLAS cuts the output into tiles. A library such as cuBLAS also cuts a long inner dimension into parts, so that every
multiprocessor has work. One tile and one part are computed by one block. The formula tries a few tile sizes and numbers of parts, and takes
the fastest combination, as a library's heuristic does:

- Compute: blocks run in waves, with one block per multiprocessor. The last wave takes as long as a full wave. After a constant start-up
  time, a block computes 2 x tile x inner dimension FLOPs, at one multiprocessor's share of the device's peak. Small tiles need more time
  per FLOP.
- Memory: the operands are read once from memory. The reads are faster if the operands fit into the L2 cache. If there are few blocks, the
  memory is idle for part of the time.
- L2 cache: each tile reads its rows and columns of the operands from L2.
- Another kernel adds up the parts of the inner dimension.

The first three times overlap. The overlapping times are combined by a p-norm, which lies between their maximum and their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

NAME = "products"
FEATURES = ("batch", "m", "n", "k", "element_bytes")
"""A call computes ``batch`` products [m, k] @ [k, n]. An element has ``element_bytes`` bytes."""
NUMBERS = {
    "peak": 0.85,
    "bandwidth": 0.85,
    "l2_gain": 1.0,
    "l2_bandwidth": 3.0,
    "fill": 0.3,
    "floor_us": 2.0,
    "start_us": 0.5,
    "small_tiles": 0.3,
    "reduce_us": 1.0,
    "overlap": 1.0,
}
"""The formula's numbers, which are fitted for each card, with starting values for the fit.

- ``peak``, ``bandwidth``: shares of the datasheet's peak and memory bandwidth. ``l2_bandwidth`` is a multiple of the memory bandwidth.
- ``l2_gain``: how much faster tiny operands are read than operands that do not fit into L2, e.g. 1 for twice as fast.
- ``fill``: how much each block per multiprocessor keeps the memory busy. The busy share is 1 - exp(-``fill`` x blocks / multiprocessors).
- ``floor_us``, ``start_us``, ``reduce_us``: the least time of a kernel, and the constant times of a wave and of adding up parts, in us.
- ``small_tiles``: how much slower small tiles are per FLOP.
- ``overlap``: the p-norm's exponent minus 1."""

SIDES = (16, 32, 64, 128, 256)
TILES = [(rows, columns) for rows in SIDES for columns in SIDES[1:] if rows * columns >= 1024]
PARTS = [1, 2, 3, 4, 6, 8, 12, 16, 24]
STEP = 64
"""The elements of the inner dimension that a block multiplies in one step; the inner dimension is rounded up to whole steps."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of products: ``features[products, 5] -> seconds[products]``."""
    batch, m, n, k, element = features.unbind(1)
    return seconds_moving(numbers, card, dtype, features, element * batch * (m * n + m * k + n * k))


def seconds_moving(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor, nbytes: Tensor) -> Tensor:
    """Return the seconds of products whose operands and results take ``nbytes[products]`` in memory."""
    batch, m, n, k, element = (column[:, None, None] for column in features.unbind(1))
    moved = nbytes[:, None, None]
    rows, columns = (side[None, :, None] for side in features.new_tensor(TILES).unbind(1))
    parts = features.new_tensor(PARTS)[None, None, :]
    flops, units = card.peak(dtype) * numbers["peak"], card.multiprocessors

    blocks = batch * torch.ceil(m / rows) * torch.ceil(n / columns) * parts
    inner = torch.ceil(k / parts / STEP) * STEP
    slower = 1 + numbers["small_tiles"] * (STEP / rows + STEP / columns)
    waves = torch.ceil(blocks / units)
    compute = waves * (numbers["start_us"] * 1e-6 + 2 * rows * columns * inner * slower * units / flops)

    result = batch * m * n
    room = torch.clamp(1 - moved / card.l2_bytes, min=0)
    bandwidth = card.bandwidth * numbers["bandwidth"] * (1 + numbers["l2_gain"] * room)
    busy = 1 - torch.exp(-blocks * numbers["fill"] / units)
    memory = moved / (bandwidth * busy)
    l2 = blocks * (rows + columns) * inner * element / (card.bandwidth * numbers["l2_bandwidth"] * busy)

    exponent = 1 + numbers["overlap"]
    together = (compute**exponent + memory**exponent + l2**exponent) ** (1 / exponent)
    # The results of the parts are written in f32, and read again to be added up.
    adding = numbers["reduce_us"] * 1e-6 + 8 * parts * result / bandwidth
    times = together + torch.where(parts > 1, adding, torch.zeros_like(adding))
    # Exclude a number of parts if the last part would have no work.
    times = torch.where((inner * (parts - 1) < k) | (parts == 1), times, torch.full_like(times, torch.inf))
    return numbers["floor_us"] * 1e-6 + times.flatten(1).min(1).values
