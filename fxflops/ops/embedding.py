"""Embeddings: a lookup moves data and computes nothing (see free); a bag adds up what it looked up."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..records import Cost, Spec
from ._registry import formula


@formula(nn.EmbeddingBag, nn.functional.embedding_bag)
def embedding_bag(
    input: Spec, weight: Spec, offsets: Any = None, mode: str = "mean", per_sample_weights: Any = None, *, out: Spec
) -> Cost:
    """input[n], weight[v, d] -> out[bags, d]: n - bags adds (max: compares) per column; the mean 1 divide per output, sample weights 1 multiply per element looked up."""
    looked_up = input.numel() * weight[-1]
    joined = max(looked_up - out.numel(), 0)
    return Cost(
        muls=looked_up if isinstance(per_sample_weights, Spec) else 0,
        adds=0 if mode == "max" else joined,
        others=(joined if mode == "max" else 0) + (out.numel() if mode == "mean" else 0),
    )
