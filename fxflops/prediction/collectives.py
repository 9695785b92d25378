"""A formula for the time of an NCCL collective within a node. NCCL has two protocols; the formula takes the time of the faster one.

The time of a protocol is its latency plus the bytes divided by its bandwidth. NCCL sends small messages with a low-latency protocol, which
halves the bandwidth. NCCL sends large messages with another protocol. NCCL itself chooses the protocol by a similar model
(https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc). Latencies and bandwidths depend on the number of GPUs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hardware import Card

FEATURES = ("ranks", "bytes")
"""The number n of GPUs, and the bytes that each GPU sends: (n-1)/n of the tensor's bytes; for an all_reduce, twice as many."""
SIZES = (2, 4, 8)
"""The numbers of GPUs for which collectives were measured."""
START = {"quick_us": 8.0, "quick_gbs": 40.0, "wide_us": 25.0, "wide_gbs": 300.0}
NUMBERS = {f"{number}_{ranks}": start for ranks in SIZES for number, start in START.items()}
"""The formula's numbers, which are fitted for each card. For each number of GPUs, they are the latency (us) and the bandwidth (GB/s) of the
protocol for short messages ("quick") and of the protocol for long messages ("wide")."""


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of collectives: ``features[collectives, 2] -> seconds[collectives]``.

    Between measured numbers of GPUs, the logarithm of the seconds is interpolated. For more GPUs than were measured, the result is NaN.
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
