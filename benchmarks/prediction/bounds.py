"""Check the bounds: a bound should be above a measured time only where operands may stay in the L2 cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fxflops.prediction.hardware import Card
from fxflops.roofline.devices import LAUNCH

from .fit import Measured

ROOM = 4
"""Operands smaller than this many times the L2 cache may be in the cache when a kernel starts."""


def least_seconds(name: str, card: Card, dtype: str, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower bounds of measured kernels in seconds, and the bytes that the kernels move."""
    if name in ("linear", "batched"):
        batch, m, n, k, element = features.unbind(1)
        flops, moved = 2 * batch * m * n * k, element * batch * (m * n + m * k + n * k)
        moved = moved - element * (batch - 1) * n * k if name == "linear" else moved
    elif name == "attention":
        sequences, queries, _, heads, key_heads, size, _, element = features.unbind(1)
        flops = 4 * sequences * heads * queries * (queries + 1) / 2 * size
        moved = 2 * element * sequences * queries * size * (heads + key_heads)
    elif name == "conv":
        flops, moved = 2 * features[:, :4].prod(1), features[:, 5]
    elif name == "depthwise":
        moved, flops = features.unbind(1)
    else:
        moved, flops = features[:, 0], torch.zeros(len(features), dtype=features.dtype)
    compute, memory = flops / card.peak(dtype), moved / card.device.bandwidth
    return torch.maximum(compute, memory).clamp(min=LAUNCH), moved


def table(measurements: Iterator[tuple[str, str, Card, Measured]]) -> str:
    """Return the section of the results about bounds."""
    lines = []
    for name, dtype, card, measured in measurements:
        if dtype == "nccl" or name == "attention_backward":
            continue
        bound, moved = least_seconds(name, card, dtype, measured.features)
        above, cached = bound > measured.seconds, moved < ROOM * card.l2_bytes
        outside = above & ~cached
        most = (bound / measured.seconds - 1)[outside].max().item() if outside.any() else 0.0
        lines.append(
            f"| {name} {dtype} | {card.device.name} | {len(bound)} | {int((above & cached).sum())} | {int(outside.sum())} "
            f"| {most:.1%} |"
        )
    return "\n".join([*HEAD.strip().splitlines(), *sorted(lines), ""])


HEAD = """
## Bounds and measured rows

How many of the measured rows are faster than their bound: where the operands take less than four times the L2 cache, of which a kernel may find
some there, and otherwise.

| family | card | rows | faster, operands below 4 x L2 | faster otherwise | by at most |
|---|---|---:|---:|---:|---:|
"""
