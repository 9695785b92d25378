"""Reductions, scans, sorts and norms: against the textbook definition run on counting numbers, or by hand."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxflops.records import Cost
from tests.oracle import Number, Tally, cost_of, numbers, tallying

ROWS, K = 3, 5
X = torch.rand(ROWS, K)


def by_row(reduce: Any) -> Tally:
    """The tally of a reduction written for one row, over all rows."""
    with tallying() as tally:
        for row in numbers(ROWS, K):
            reduce(list(row))
    return tally


def total(values: list[Number]) -> Number:
    return functools.reduce(operator.add, values)


def product(values: list[Number]) -> Number:
    return functools.reduce(operator.mul, values)


def largest(values: list[Number]) -> Number:
    return functools.reduce(lambda a, b: a.maximum(b), values)


def mean(values: list[Number]) -> Number:
    return total(values) / len(values)


def variance(values: list[Number]) -> Number:
    m = mean(values)
    differences = [v - m for v in values]
    return total([d * d for d in differences]) / (len(values) - 1)


def root_of_squares(values: list[Number]) -> Number:
    return total([v * v for v in values]).sqrt()


CASES = [
    ("sum", total), ("nansum", total), ("mean", mean), ("nanmean", mean), ("prod", product), ("amax", largest),
    ("amin", largest), ("max", largest), ("min", largest), ("argmax", largest), ("argmin", largest), ("var", variance),
    ("std", lambda row: variance(row).sqrt()), ("var_mean", variance), ("std_mean", lambda row: variance(row).sqrt()),
    ("logsumexp", lambda row: total([v.exp() for v in row]).log()), ("cumsum", total), ("cumprod", product),
    ("cummax", largest), ("cummin", largest), ("logcumsumexp", total), ("any", largest), ("all", largest),
    ("count_nonzero", lambda row: total([v.compare() for v in row])), ("norm", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "textbook"), CASES, ids=[name for name, _ in CASES])
def test_over_the_last_dim(name: str, textbook: Any) -> None:
    if name == "norm":
        assert by_row(root_of_squares) == cost_of(torch.norm, X, 2, -1)
        assert by_row(root_of_squares) == cost_of(torch.linalg.vector_norm, X, 2, -1)
        assert by_row(root_of_squares) == cost_of(torch.linalg.norm, X, dim=-1)
        return
    expected = by_row(textbook)
    function = getattr(torch, name)
    assert expected == cost_of(function, X, -1)
    assert expected == cost_of(function, X.T.contiguous(), dim=0)
    if hasattr(torch.Tensor, name):
        assert expected == cost_of(name, X, -1)
    if name in ("sum", "mean", "prod", "amax", "var", "std", "logsumexp"):
        assert expected == cost_of(function, X, dim=1, keepdim=True)


@pytest.mark.parametrize(("name", "textbook"), CASES[:4] + CASES[7:9], ids=[name for name, _ in CASES[:4] + CASES[7:9]])
def test_over_everything(name: str, textbook: Any) -> None:
    with tallying() as tally:
        textbook(list(numbers(ROWS * K)))
    assert tally == cost_of(getattr(torch, name), X)
    assert tally == cost_of(name, X)


def test_over_several_dims() -> None:
    x = torch.rand(2, 3, 4)
    with tallying() as tally:
        for row in np.moveaxis(numbers(2, 3, 4), 1, 0).reshape(3, 8):
            mean(list(row))
    assert tally == cost_of(torch.mean, x, (0, 2))
    assert tally == cost_of(x.mean.__name__, x, dim=(0, -1), keepdim=True)


@pytest.mark.parametrize("shape", [(), (0, 4)], ids=["scalar", "empty"])
def test_nothing_to_add(shape: tuple[int, ...]) -> None:
    assert cost_of(torch.sum, torch.ones(shape)) == Cost()


def test_extrema_of_two_tensors_and_both_ends() -> None:
    assert cost_of(torch.max, X, X) == Cost(others=ROWS * K)
    assert cost_of(torch.aminmax, X, dim=1) == Cost(others=2 * ROWS * (K - 1))


@pytest.mark.parametrize(
    ("p", "textbook"),
    [
        (1, lambda row: total([abs(v) for v in row])),
        (2, root_of_squares),
        (float("inf"), lambda row: largest([abs(v) for v in row])),
        (3, lambda row: total([v**3 for v in row]).sqrt()),
    ],
    ids=["1", "2", "inf", "3"],
)
def test_norms(p: float, textbook: Any) -> None:
    assert by_row(textbook) == cost_of(torch.norm, X, p, 1)
    assert by_row(textbook) == cost_of(torch.linalg.vector_norm, X, ord=p, dim=1)


def test_sorting_is_counted_as_comparing() -> None:
    rows, k, log2 = 3, 8, 3
    x = torch.rand(rows, k)
    for name in ("sort", "argsort", "mode"):
        assert cost_of(getattr(torch, name), x) == Cost(others=rows * k * log2)
    assert cost_of(torch.sort, x.T, dim=0) == cost_of(torch.msort, x.T) == Cost(others=rows * k * log2)
    assert cost_of(torch.topk, x, 2) == Cost(others=rows * k * log2)
    assert cost_of("kthvalue", x, 2) == Cost(others=rows * k * log2)
    assert cost_of(torch.median, x, 1) == Cost(others=rows * k * log2)
    assert cost_of(torch.median, x) == cost_of(torch.unique, x) == Cost(others=24 * 5)
    assert cost_of(torch.quantile, x, 0.5, 1) == Cost(muls=rows, adds=2 * rows, others=rows * k * log2)


def test_scattered_adds() -> None:
    index = torch.tensor([0, 2, 0])
    source = torch.ones(3, K)
    assert cost_of(torch.index_add, torch.zeros(4, K), 0, index, source) == Cost(adds=3 * K)
    assert cost_of("scatter_add", torch.zeros(4, K), 0, torch.zeros(2, K, dtype=torch.long), source) == Cost(adds=3 * K)


def test_putting_is_free_and_accumulating_adds() -> None:
    x, index, values = torch.zeros(6), torch.tensor([0, 2, 0]), torch.ones(3)
    for accumulate, adds in ((False, 0), (True, 3)):
        assert cost_of("index_put", x, (index,), values, accumulate) == Cost(adds=adds)
        assert cost_of("index_put_", x, (index,), values, accumulate=accumulate) == Cost(adds=adds)
        assert cost_of("put", x, index, values, accumulate) == Cost(adds=adds)
    assert cost_of("scatter", x, 0, index, values) == Cost()
    assert cost_of("scatter", x, 0, index, 1.0, reduce="add") == Cost(others=3)
    assert cost_of(torch.unique_consecutive, torch.zeros(8)) == Cost(others=8 * 3)


def test_similarities() -> None:
    def cosine(a: list[Number], b: list[Number]) -> Number:
        dot, aa, bb = (total([x * y for x, y in zip(p, q, strict=True)]) for p, q in ((a, b), (a, a), (b, b)))
        return dot / (aa.sqrt() * bb.sqrt())

    with tallying() as tally:
        for a, b in zip(numbers(ROWS, K), numbers(ROWS, K), strict=True):
            cosine(list(a), list(b))
    assert tally == cost_of(nn.CosineSimilarity(), X, X)
    assert tally == cost_of(torch.cosine_similarity, X, X)

    with tallying() as tally:
        for a, b in zip(numbers(ROWS, K), numbers(ROWS, K), strict=True):
            root_of_squares([x - y + 1e-6 for x, y in zip(a, b, strict=True)])
    assert tally == cost_of(nn.PairwiseDistance(), X, X)


def test_cross_diff_bincount() -> None:
    a = torch.rand(4, 3)
    with tallying() as tally:
        for x, y in zip(numbers(4, 3), numbers(4, 3), strict=True):
            _ = [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]
    assert tally == cost_of(torch.cross, a, a, dim=1)
    assert cost_of(torch.diff, X) == Cost(adds=ROWS * (K - 1))
    assert cost_of(torch.bincount, torch.tensor([0, 1, 1, 3])) == Cost(adds=4)
