"""Embeddings: a lookup is free, a bag costs its sums, and each row of the gradient is added to the row that was looked up."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from fxflops.ops import BASE
from fxflops.records import Cost
from tests.ops.draws import FLOATS, META, Draw, Made, dims, draws, tensor
from tests.ops.textbook import Sums, agrees, computes, tally_of
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


aten = torch.ops.aten
MODES = ("sum", "mean", "max")
LOOKED = torch.tensor([1, 3, 1, 0, 4, 1])


@pytest.mark.parametrize("scaled", [False, True])
def test_embedding(scaled: bool) -> None:
    def embedding(g, indices, rows, padding, scaled):
        out = Sums(rows, g.shape[1], starts=True)
        for index, row in zip(indices, g, strict=True):
            out.add(int(index), row / (indices == index).sum() if scaled else row)
        return out.array

    g = torch.randn(6, 4, dtype=torch.double)
    agrees(aten.embedding_dense_backward.default, embedding, g, LOOKED, 5, -1, scaled)


@pytest.mark.parametrize(
    ("name", "scaled", "weighted"),
    [("sum", False, False), ("sum", True, False), ("sum", False, True), ("sum", True, True), ("mean", False, False),
     ("mean", True, False), ("max", False, False)],
)  # fmt: skip
def test_embedding_bag(name: str, scaled: bool, weighted: bool) -> None:
    """Bags of 2 and 4 rows. A mean's gradient is divided once per bag."""
    mode = MODES.index(name)

    def bags(g, indices, offsets, owner, sizes, largest, rows, scaled, mode, sparse, weights):
        out = Sums(rows, g.shape[1], starts=True)
        if name == "max":
            for bag, column in np.ndindex(g.shape):
                out.add((largest[bag, column], column), g[bag, column])
            return out.array
        g = np.stack([row / size if name == "mean" else row for row, size in zip(g, (2, 4), strict=True)])
        for at, index in enumerate(indices):
            row = g[0 if at < 2 else 1]
            row = row / (indices == index).sum() if scaled else row
            out.add(int(index), row if weights is None else row * weights[at])
        return out.array

    weights = torch.rand(6, dtype=torch.double) if weighted else None
    table, offsets = torch.randn(5, 3, dtype=torch.double), torch.tensor([0, 2])
    out, *saved = aten._embedding_bag(table, LOOKED, offsets, scaled, mode, False, weights)
    g, rest = torch.randn_like(out), (5, scaled, mode)
    args = g, LOOKED, offsets, *saved, *rest, False, weights
    expected = cost_of(aten._embedding_bag_backward.default, *args)
    assert tally_of(bags, *args) == expected
    if not scaled:  # torch 2.6 divides by the frequencies of the wrong rows
        computes(bags, aten._embedding_bag_backward(*args), *args)
    assert cost_of(aten._embedding_bag_dense_backward.default, g, LOOKED, *saved, *rest, weights) == expected
    if name == "sum" and not scaled:
        sparse = cost_of(aten._embedding_bag_backward.default, g, LOOKED, offsets, *saved, *rest, True, weights)
        assert sparse == expected._replace(adds=0)


def test_the_weights_of_samples() -> None:
    def samples(g, table, indices, offsets, owner, mode):
        return np.stack([(g[owner[at]] * table[index]).sum() for at, index in enumerate(indices)])

    g, table = torch.randn(2, 4, dtype=torch.double), torch.randn(5, 4, dtype=torch.double)
    owner = torch.tensor([0, 0, 1, 1, 1, 1])
    overload = aten._embedding_bag_per_sample_weights_backward.default
    agrees(overload, samples, g, table, LOOKED, torch.tensor([0, 2]), owner, 0)


@draws("embedding")
def embedded(draw: Draw, target: Any) -> Made:
    ids = tensor(draw, dims(draw, 0, 3), draw(st.sampled_from([torch.int64, torch.int32, torch.float32])))
    if isinstance(target, type):
        return (target(7, 5, padding_idx=draw(st.sampled_from([None, 0])), device=META), ids), {}
    return (ids, tensor(draw, (7, 5), draw(st.sampled_from(FLOATS))), draw(st.sampled_from([None, 3, 9]))), {}
