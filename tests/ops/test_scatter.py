"""Values written, added or reduced into indexed places, by hand. Segments' gradients run on counting numbers and give torch's values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fxflops.records import Cost
from tests.ops.textbook import agrees, equals, pick
from tests.oracle import cost_of

aten = torch.ops.aten
K = 5


def test_scattered_adds() -> None:
    x, source, index = torch.zeros(4, K), torch.ones(3, K), torch.tensor([0, 2, 0])
    assert cost_of(torch.index_add, x, 0, index, source) == Cost(adds=3 * K)
    assert cost_of("index_add_", x.clone(), 0, index, source, alpha=2) == Cost(muls=3 * K, adds=3 * K)
    rows = torch.zeros(2, K, dtype=torch.long)  # source may have more rows than are read
    assert cost_of("scatter_add", x, 0, rows, source) == cost_of(torch.scatter_add, x, 0, rows, src=source)
    assert cost_of("scatter_add_", x.clone(), 0, rows, source) == Cost(adds=2 * K)


@pytest.mark.filterwarnings("ignore:.*_reduce.* beta")
def test_scattered_reductions() -> None:
    x, source = torch.zeros(4, K), torch.ones(2, K)
    rows, index = torch.zeros(2, K, dtype=torch.long), torch.tensor([0, 2])
    for reduce, cost in {
        "prod": Cost(muls=2 * K),
        "mean": Cost(adds=2 * K, others=4 * K),
        "amax": Cost(others=2 * K),
    }.items():
        assert cost_of("scatter_reduce", x, 0, rows, source, reduce) == cost
        assert cost_of(torch.scatter_reduce, x, 0, rows, source, reduce=reduce, include_self=False) == cost
        assert cost_of("index_reduce", x, 0, index, source, reduce) == cost
    assert cost_of(torch.scatter_reduce, x, 0, rows, source, "sum") == Cost(adds=2 * K)


def test_segments() -> None:
    lengths = torch.tensor([2, 3])
    assert cost_of(torch.segment_reduce, torch.ones(5), "sum", lengths=lengths) == Cost(adds=(2 - 1) + (3 - 1))
    assert cost_of(torch.segment_reduce, torch.ones(5, 4), "mean", lengths=lengths) == Cost(adds=3 * 4, others=2 * 4)


def test_putting_is_free_and_accumulating_adds() -> None:
    x, index, values = torch.zeros(6), torch.tensor([0, 2, 0]), torch.ones(3)
    for accumulate, adds in ((False, 0), (True, 3)):
        assert cost_of("index_put", x, (index,), values, accumulate) == Cost(adds=adds)
        assert cost_of("index_put_", x, (index,), values, accumulate=accumulate) == Cost(adds=adds)
        assert cost_of("put", x, index, values, accumulate) == Cost(adds=adds)
        assert cost_of(torch.index_put, x, (index,), torch.tensor(1.0), accumulate) == Cost(adds=adds)
    mask = torch.tensor([True, False, True, True, False, False])
    assert cost_of("index_put", x, (mask,), values, True) == Cost(adds=3)
    assert cost_of(torch.ops.aten.index_put, torch.zeros(4, 5, 6), [None, index], values[:, None], True) == Cost(
        adds=4 * 3 * 6
    )
    assert cost_of("scatter", x, 0, index, values) == Cost()
    assert cost_of("scatter", x, 0, index, 1.0, reduce="add") == Cost(adds=3)
    assert cost_of("scatter_", x.clone(), 0, index, 2.0, reduce="multiply") == Cost(muls=3)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_the_gradient_of_segments(reduce: str) -> None:
    """Segments of 2 and 3 rows."""
    x, lengths = torch.randn(5, 2, dtype=torch.double), torch.tensor([2, 3])
    owner = [0, 0, 1, 1, 1]

    def segments(g, y, x, reduce, *, lengths):
        if reduce == "mean":
            g = np.stack([g[0] / 2, g[1] / 3])
        if reduce == "prod":
            return (g * y)[owner] / x
        if reduce in ("sum", "mean"):
            return g[owner]
        chosen = equals(x, y[owner])
        return pick(chosen, (g / 1)[owner], 0)

    y = torch.segment_reduce(x, reduce, lengths=lengths)
    g = torch.randn_like(y)
    agrees(aten._segment_reduce_backward.default, segments, g, y, x, reduce, lengths=lengths)
