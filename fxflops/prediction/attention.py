"""How long fused attention takes: blocks of query rows, each over the keys it may look at.

The query rows of all heads that share a key head are packed together, in blocks of :data:`BLOCK` rows. With a causal mask a
block sees the keys up to its own last row. Blocks have unequal lengths, so the multiprocessors share the work evenly only
if there are many: the time is their average load plus a share of the longest block. A block costs a constant, and each
tile of keys a constant plus its two products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("sequences", "queries", "keys", "heads", "key_heads", "head_size", "causal", "element_bytes")
"""Attention of ``queries`` tokens to ``keys`` tokens in each of ``sequences``; with ``causal`` 1 the last query sees all keys and each
query before it one key less, with 0 each sees all."""
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
"""The numbers of a card. ``other_work`` is the softmax's cost per tile, in products of head size 64; ``longest`` is the share of
the longest block that is waited for."""
BLOCK = 128
TILE = 64


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of attention: ``features[calls, 8] -> seconds[calls]``."""
    sequences, queries, keys, heads, key_heads, head_size, causal, element = features.unbind(1)
    group = heads / key_heads
    blocks = torch.ceil(queries * group / BLOCK) * key_heads * sequences
    # A causal block sees the keys of its last row.
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
