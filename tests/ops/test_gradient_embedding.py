"""Gradients of embeddings, row by row, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.ops.textbook import Sums, agrees, computes, tally_of
from tests.oracle import cost_of

aten = torch.ops.aten
MODES = ("sum", "mean", "max")
INDICES = torch.tensor([1, 3, 1, 0, 4, 1])


@pytest.mark.parametrize("scaled", [False, True])
def test_embedding(scaled: bool) -> None:
    def embedding(g, indices, rows, padding, scaled):
        out = Sums(rows, g.shape[1], starts=True)
        for index, row in zip(indices, g, strict=True):
            out.add(int(index), row / (indices == index).sum() if scaled else row)
        return out.array

    g = torch.randn(6, 4, dtype=torch.double)
    agrees(aten.embedding_dense_backward.default, embedding, g, INDICES, 5, -1, scaled)


@pytest.mark.parametrize(
    ("name", "scaled", "weighted"),
    [("sum", False, False), ("sum", True, False), ("sum", False, True), ("sum", True, True), ("mean", False, False),
     ("mean", True, False), ("max", False, False)],
)  # fmt: skip
def test_embedding_bag(name: str, scaled: bool, weighted: bool) -> None:
    """Bags of 2 and 4; the mean's gradient is divided once a bag."""
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
    out, *saved = aten._embedding_bag(table, INDICES, offsets, scaled, mode, False, weights)
    g, rest = torch.randn_like(out), (5, scaled, mode)
    args = g, INDICES, offsets, *saved, *rest, False, weights
    expected = cost_of(aten._embedding_bag_backward.default, *args)
    assert tally_of(bags, *args) == expected
    if not scaled:  # torch 2.6 divides by the frequencies of other rows
        computes(bags, aten._embedding_bag_backward(*args), *args)
    assert cost_of(aten._embedding_bag_dense_backward.default, g, INDICES, *saved, *rest, weights) == expected
    if name == "sum" and not scaled:
        sparse = cost_of(aten._embedding_bag_backward.default, g, INDICES, offsets, *saved, *rest, True, weights)
        assert sparse == expected._replace(adds=0)


def test_the_weights_of_samples() -> None:
    def samples(g, table, indices, offsets, owner, mode):
        return np.stack([(g[owner[at]] * table[index]).sum() for at, index in enumerate(indices)])

    g, table = torch.randn(2, 4, dtype=torch.double), torch.randn(5, 4, dtype=torch.double)
    owner = torch.tensor([0, 0, 1, 1, 1, 1])
    overload = aten._embedding_bag_per_sample_weights_backward.default
    agrees(overload, samples, g, table, INDICES, torch.tensor([0, 2]), owner, 0)
