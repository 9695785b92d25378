"""Embeddings: a lookup is free; a bag costs what it adds up."""

from __future__ import annotations

import functools
import operator

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


def test_a_bound_on_the_norm_costs_the_norms() -> None:
    weight = torch.rand(10, DIM)
    with tallying() as tally:
        for row in numbers(LOOKED_UP, DIM):
            norm = functools.reduce(operator.add, [v * v for v in row]).sqrt()
            _ = row * (1.0 / norm.compare())
    assert tally == cost_of(nn.Embedding(10, DIM, max_norm=1.0), INDICES)
    assert tally == cost_of(nn.functional.embedding, INDICES, weight, None, 1.0)
    assert tally == cost_of(torch.embedding_renorm_, weight, INDICES, 1.0, 2.0)
    assert cost_of(nn.EmbeddingBag(10, DIM, mode="sum", max_norm=1.0), INDICES, OFFSETS) == cost_of(
        nn.EmbeddingBag(10, DIM, mode="sum"), INDICES, OFFSETS
    ).plus(Cost(0, tally.muls, tally.adds, tally.others))


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
    number = ["sum", "mean", "max"].index(mode)
    assert tally == cost_of(torch.embedding_bag, weight, INDICES, OFFSETS, False, number)
    assert tally == cost_of(torch.ops.aten._embedding_bag.default, weight, INDICES, OFFSETS, mode=number)


def test_bags_as_rows_and_weighted() -> None:
    bag = nn.EmbeddingBag(10, DIM, mode="sum")
    assert cost_of(bag, INDICES.view(2, 3)) == Cost(adds=2 * (3 - 1) * DIM)
    assert cost_of(bag, INDICES.view(6, 1)) == Cost()
    weighted = cost_of(bag, INDICES, OFFSETS, per_sample_weights=torch.rand(6))
    assert weighted == Cost(muls=LOOKED_UP * DIM, adds=(LOOKED_UP - 2) * DIM)
