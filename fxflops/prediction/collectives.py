"""How long an NCCL collective takes within a node: the faster of two protocols, each a latency plus bytes over bandwidth.

NCCL sends small messages by a low-latency protocol, which halves the bandwidth, and large ones by another; it chooses by a similar
model (https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc). The numbers depend on the number of GPUs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("ranks", "bytes")
"""How many GPUs take part, and the bytes that each sends: (n-1)/n of all, twice that for an all_reduce."""
SIZES = (2, 4, 8)
"""Numbers of GPUs that were measured."""
START = {"quick_us": 8.0, "quick_gbs": 40.0, "wide_us": 25.0, "wide_gbs": 300.0}
NUMBERS = {f"{number}_{ranks}": start for ranks in SIZES for number, start in START.items()}
"""The numbers of a card: for each number of GPUs the latency and bandwidth (microseconds, GB/s) of the protocol for short messages, and of
the one for long messages."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of collectives: ``features[collectives, 2] -> seconds[collectives]``.

    Between measured numbers of GPUs the logarithm is interpolated. For more GPUs than were measured the seconds are unknown: NaN.
    """
    ranks, moved = features.unbind(1)
    sizes = [size for size in SIZES if f"wide_us_{size}" in numbers]
    times = []
    for size in sizes:
        quick, wide = (
            numbers[f"{protocol}_us_{size}"] * 1e-6 + moved / (numbers[f"{protocol}_gbs_{size}"] * 1e9)
            for protocol in ("quick", "wide")
        )
        times.append(torch.minimum(quick, wide).log())
    at = torch.log2(ranks).clamp(1, len(sizes)) - 1
    below = at.floor().clamp(max=len(sizes) - 2).long()
    share = at - below
    logarithms = torch.stack(times, 1)
    low, high = (logarithms.gather(1, (below + more)[:, None])[:, 0] for more in (0, 1))
    return torch.where(ranks > sizes[-1], torch.nan, torch.exp(low * (1 - share) + high * share))
