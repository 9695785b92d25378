"""Embeddings: a lookup is free; a bag costs what it adds up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxflops.ops import BASE
from fxflops.records import Cost
from tests.oracle import cost_of, numbers, tallying

DIM, LOOKED_UP = 4, 6
INDICES = torch.tensor([0, 1, 2, 0, 1, 1])
OFFSETS = torch.tensor([0, 2])


def test_a_lookup_computes_nothing() -> None:
    assert cost_of(nn.Embedding(10, DIM), INDICES) == Cost()
    assert cost_of(nn.functional.embedding, INDICES, torch.rand(10, DIM)) == Cost()
    entry = BASE.find(torch.ops.aten.embedding.default)
    assert entry is not None
    assert entry.reason == "move"


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_joins_what_it_looked_up(mode: str) -> None:
    with tallying() as tally:
        for bag in (numbers(2, DIM), numbers(4, DIM)):
            joined = bag[0]
            for row in bag[1:]:
                joined = joined + row if mode != "max" else [a.maximum(b) for a, b in zip(joined, row, strict=True)]
            if mode == "mean":
                joined = joined / len(bag)
    assert tally == cost_of(nn.EmbeddingBag(10, DIM, mode=mode), INDICES, OFFSETS)
    weight = torch.rand(10, DIM)
    assert tally == cost_of(nn.functional.embedding_bag, INDICES, weight, OFFSETS, mode=mode)


def test_bags_as_rows_and_weighted() -> None:
    bag = nn.EmbeddingBag(10, DIM, mode="sum")
    assert cost_of(bag, INDICES.view(2, 3)) == Cost(adds=2 * (3 - 1) * DIM)
    weighted = cost_of(bag, INDICES, OFFSETS, per_sample_weights=torch.rand(6))
    assert weighted == Cost(muls=LOOKED_UP * DIM, adds=(LOOKED_UP - 2) * DIM)
