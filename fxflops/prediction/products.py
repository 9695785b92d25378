"""How long a matrix product takes: tiles of the output in waves over the multiprocessors, or the memory's traffic.

A library such as cuBLAS cuts the output into tiles, and a long inner dimension into parts, so that every multiprocessor has
work. Each of a few tile sizes and numbers of parts is tried, and the fastest taken, as a library's heuristic does:

- Blocks run in waves: as many at a time as there are multiprocessors. The last wave takes as long as a full one.
- A block starts up, and then computes 2 x tile x inner dimension at the multiprocessor's share of the peak. A small
  tile is slower for each FLOP.
- The operands are read once from memory, faster where they fit into the L2 cache, and again for each tile from L2. Few
  blocks do not keep the memory busy.
- Parts of the inner dimension are added up in another kernel.

The three times overlap: their sum is a p-norm, between their maximum and their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

NAME = "products"
FEATURES = ("batch", "m", "n", "k", "element_bytes")
"""batch products of [m, k] @ [k, n], with elements of ``element_bytes`` bytes."""
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
"""The numbers of a card, with a fit's starting values. ``peak`` and the bandwidths are shares of the datasheet's figures
(``l2_bandwidth`` of the memory's); ``l2_gain`` is how much faster memory is for operands that take no room in L2;
``fill`` is how many blocks on each multiprocessor keep the memory busy, inversely; ``overlap`` + 1 is the exponent of the norm."""

SIDES = (16, 32, 64, 128, 256)
TILES = [(rows, columns) for rows in SIDES for columns in SIDES[1:] if rows * columns >= 1024]
PARTS = [1, 2, 3, 4, 6, 8, 12, 16, 24]
STEP = 64
"""Elements of the inner dimension in a step."""


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
    # The parts' sums are written in f32, and read again.
    adding = numbers["reduce_us"] * 1e-6 + 8 * parts * result / bandwidth
    times = together + torch.where(parts > 1, adding, torch.zeros_like(adding))
    # Parts without work do not count.
    times = torch.where((inner * (parts - 1) < k) | (parts == 1), times, torch.full_like(times, torch.inf))
    return numbers["floor_us"] * 1e-6 + times.flatten(1).min(1).values
