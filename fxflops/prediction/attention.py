"""A formula for the time of fused attention.

The kernel divides the query rows into blocks of :data:`BLOCK` rows. Rows of all heads that share a key head are packed
together. A block processes tiles of the keys that its queries may attend to. A query may attend to all keys or, with a causal mask, the
keys up to the block's own last row.

The time of a block is a constant plus the times of its tiles. The time of a tile is a constant plus its two matrix products.
Blocks take unequal times, so the multiprocessors get an equal share of the work only if there are many blocks. The total time is the mean
time that a multiprocessor is busy, plus a share of the time of the longest block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("sequences", "queries", "keys", "heads", "key_heads", "head_size", "causal", "element_bytes")
"""``queries`` tokens attend to ``keys`` tokens in each of ``sequences`` sequences. If ``causal`` is 0, each query sees all keys. If
``causal`` is 1, the last query sees all keys, and every other query sees one key less than the next query."""
NUMBERS = {
    "peak": 0.7,
    "bandwidth": 0.8,
    "floor_us": 5.0,
    "block_us": 1.0,
    "tile_us": 0.05,
    "other_work": 0.3,
    "longest": 0.5,
    "overlap": 1.0,
}
"""The formula's numbers, which are fitted for each card. ``other_work`` is the softmax's cost per tile, in units of the products at head
size 64. ``longest`` is the share of the longest block's time that is added to the average load."""
BLOCK = 128
TILE = 64


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of attention: ``features[calls, 8] -> seconds[calls]``."""
    sequences, queries, keys, heads, key_heads, head_size, causal, element = features.unbind(1)
    group = heads / key_heads
    blocks = torch.ceil(queries * group / BLOCK) * key_heads * sequences
    # With a causal mask, a block of queries processes all keys that the last query of the block sees.
    hidden = causal * torch.clamp(queries - BLOCK / group, min=0) / 2
    seen = torch.clamp(keys - hidden, min=1)
    flops = card.peak(dtype) * numbers["peak"] / card.multiprocessors
    tile = 4 * BLOCK * TILE * (head_size + 64 * numbers["other_work"]) / flops + numbers["tile_us"] * 1e-6
    block = numbers["block_us"] * 1e-6
    average = block + torch.clamp(seen / TILE, min=1) * tile
    longest = block + torch.ceil(keys / TILE) * tile
    compute = average * torch.clamp(blocks / card.multiprocessors, min=1) + numbers["longest"] * longest

    moved = 2 * element * sequences * head_size * (queries * heads + keys * key_heads)
    memory = moved / (card.bandwidth * numbers["bandwidth"])
    exponent = 1 + numbers["overlap"]
    return numbers["floor_us"] * 1e-6 + (compute**exponent + memory**exponent) ** (1 / exponent)
