"""Reductions, scans and norms, against textbook definitions run on counting numbers, or by hand."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from fxflops.ops.reduce import amax_shape, mean_shape
from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, same, tensor
from tests.oracle import Number, Tally, cost_by_name, cost_of, numbers, tallying

ROWS, K = 3, 5
X = torch.rand(ROWS, K)


def by_row(reduce: Any) -> Tally:
    """The tally over all rows of a reduction that is written for one row."""
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
    ("cummax", largest), ("cummin", largest), ("logcumsumexp", lambda row: (total([v.exp() for v in row]), [v.log() for v in row])), ("any", largest), ("all", largest),
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
    x = torch.ones(shape)
    assert cost_of(torch.sum, x) == cost_of(torch.prod, x) == cost_of(torch.cumsum, x, 0) == Cost()
    assert cost_of(torch.amax, torch.ones(())) == cost_of(torch.sort, x) == cost_of(torch.unique, x) == Cost()
    assert cost_of(torch.mean, torch.ones(())) == Cost(others=1)
    assert cost_of(torch.sum, torch.ones(0, 4), 0) == cost_of(torch.cummax, x, 0) == Cost()


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


def test_norm_counts_what_is_not_zero() -> None:
    assert by_row(lambda row: total([v.compare() for v in row])) == cost_of(torch.norm, X, 0, 1)


@pytest.mark.parametrize("order", [1, -1, float("inf")])
def test_matrix_norms(order: float) -> None:
    """The largest (smallest) sum over a column, or over a row."""
    with tallying() as tally:
        matrix = numbers(ROWS, K)
        largest([total([abs(v) for v in line]) for line in (matrix.T if abs(order) == 1 else matrix)])
    assert tally == cost_of(torch.linalg.norm, X, order)
    assert tally == cost_of(torch.linalg.matrix_norm, X, order)
    assert tally == cost_of(torch.linalg.norm, X[None], order, (1, 2))
    assert cost_of(torch.linalg.norm, X[0], order) == cost_of(torch.linalg.vector_norm, X[0], order)
    assert cost_of(torch.linalg.norm, X, order, dim=1) == cost_of(torch.linalg.vector_norm, X, order, 1)


def test_frobenius_norm() -> None:
    with tallying() as tally:
        root_of_squares(list(numbers(ROWS * K)))
    for cost in (
        cost_of(torch.norm, X),
        cost_of("norm", X, "fro"),
        cost_of(torch.linalg.norm, X),
        cost_of(torch.linalg.norm, X, "fro"),
        cost_of(torch.linalg.matrix_norm, X),
        cost_of(torch.linalg.vector_norm, X),
    ):
        assert tally == cost


@pytest.mark.parametrize(
    ("function", "order"), [(torch.norm, "nuc"), (torch.linalg.norm, 2), (torch.linalg.matrix_norm, "nuc")]
)
def test_norms_of_singular_values_are_their_decomposition_and_what_joins_them(function: Any, order: Any) -> None:
    """For a 7 x 3 matrix: 4 m n^2 - 4/3 n^3 for its 3 singular values, then 2 adds or compares."""
    assert cost_of(function, torch.randn(7, 3), order).flops == 4 * 7 * 3**2 - 4 * 3**3 // 3 + 2


def test_similarities() -> None:
    def cosine(a: list[Number], b: list[Number]) -> Number:
        dot, aa, bb = (total([x * y for x, y in zip(p, q, strict=True)]) for p, q in ((a, b), (a, a), (b, b)))
        return dot / (aa.sqrt() * bb.sqrt()).maximum(1e-8)

    with tallying() as tally:
        for a, b in zip(numbers(ROWS, K), numbers(ROWS, K), strict=True):
            cosine(list(a), list(b))
    assert tally == cost_of(nn.CosineSimilarity(), X, X)
    assert tally == cost_of(torch.cosine_similarity, X, X)
    assert tally == cost_of(nn.functional.cosine_similarity, X[:1], X, dim=-1)
    assert tally == cost_of(torch.cosine_similarity, X.T, X.T, 0)

    with tallying() as tally:
        for a, b in zip(numbers(ROWS, K), numbers(ROWS, K), strict=True):
            root_of_squares([x - y + 1e-6 for x, y in zip(a, b, strict=True)])
    assert tally == cost_of(nn.PairwiseDistance(), X, X)
    assert tally == cost_of(nn.functional.pairwise_distance, X, X[:1], keepdim=True)

    with tallying() as tally:
        for a, b in zip(numbers(ROWS, K), numbers(ROWS, K), strict=True):
            total([abs(x - y + 1e-6) for x, y in zip(a, b, strict=True)])
    assert tally == cost_of(nn.PairwiseDistance(p=1), X, X)
    assert tally == cost_of(torch.pairwise_distance, X, X, 1.0)


def test_distances() -> None:
    with tallying() as tally:
        root_of_squares([x - y for x, y in zip(numbers(ROWS * K), numbers(ROWS * K), strict=True)])
    assert tally == cost_of(torch.dist, X, X) == cost_of("dist", X, X[:1])


def test_cross_diff_bincount() -> None:
    a = torch.rand(4, 3)
    with tallying() as tally:
        for x, y in zip(numbers(4, 3), numbers(4, 3), strict=True):
            _ = [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]
    assert tally == cost_of(torch.cross, a, a, dim=1)
    assert cost_of(torch.diff, X) == Cost(adds=ROWS * (K - 1))
    assert cost_of(torch.diff, X, 2, 0) == Cost(adds=K * ((ROWS - 1) + (ROWS - 2)))
    assert cost_of(torch.bincount, torch.tensor([0, 1, 1, 3])) == Cost(adds=4)
    with tallying() as tally:
        total(list(numbers(4, 4).diagonal()))
    assert tally == cost_of(torch.trace, torch.rand(4, 4)) == cost_of("trace", torch.rand(6, 4))
    assert cost_of("sum_to_size", X, 1, K) == Cost(adds=(ROWS - 1) * K)


def test_histc() -> None:
    """(x - low) / width and a count per element. Without a range, the minimum and maximum are searched first."""
    x = torch.rand(6)
    assert cost_of(torch.histc, x, 4, 0, 1) == Cost(adds=6 + 6, others=6)
    assert cost_of("histc", x) == Cost(adds=6 + 6, others=6 + 2 * (6 - 1))


@pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks are implicitly disabled"
)  # torch 2.11 warns even where they are enabled
def test_the_sum_of_a_sparse_tensor_is_of_what_it_holds() -> None:
    """A [3, 4] matrix with 6 stored entries of 2 elements: summed over the columns into 3 rows, then over everything."""
    held = [(0, 0), (0, 1), (0, 3), (1, 2), (2, 0), (2, 3)]
    x = torch.sparse_coo_tensor(torch.tensor(held).T, torch.rand(6, 2), (3, 4, 2), check_invariants=True)
    rows: dict[int, Any] = {}
    with tallying() as tally:
        for row, _ in held:
            rows[row] = rows[row] + numbers(2) if row in rows else numbers(2)
    assert tally == cost_of(torch.ops.aten._sparse_sum.dim, x, [1]) == cost_of(torch.sum, x, 1) == Cost(adds=6)
    assert cost_of(torch.sum, x) == Cost(adds=6 * 2 - 1)
    grad = torch.sparse.sum(x, 1)
    assert cost_of(torch.ops.aten._sparse_sum_backward.default, grad, x, [1]) == Cost()


MATRIX = Spec((3, 4), torch.float32)


def test_renorm() -> None:
    """For each row: the norm, whether it is too large, maxnorm / (norm + eps). Each element is multiplied by the latter."""
    with tallying() as tally:
        x = numbers(ROWS, K)
        norms = np.sqrt((x * x).sum(1))
        x * np.exp(1 / (norms + 1e-7))[:, None]
    assert tally == cost_of(torch.renorm, X, 2, 0, 1.0)
    assert tally == cost_of("renorm_", X.clone(), 2, 0, 1.0)


def test_norm_except_dim() -> None:
    with tallying() as tally:
        v = numbers(ROWS, K)
        np.sqrt((v * v).sum(1))
    assert tally == cost_of(torch.norm_except_dim, X, 2, 0)


@pytest.mark.parametrize(("p", "power"), [(2, lambda x: x * x), (1, abs), (3, lambda x: x**3)], ids=["2", "1", "3"])
def test_powers_and_their_sum(p: int, power: Any) -> None:
    with tallying() as tally:
        power(numbers(ROWS, K)).sum(1)
    cost = cost_by_name("aten::linalg__powsum", Spec((ROWS, K)), p, out=Spec((ROWS,)))
    assert tally == cost


def test_joined_to_one() -> None:
    assert cost_by_name("aten::hash_tensor", Spec((ROWS, K)), out=Spec(())) == Cost(others=ROWS * K - 1)
    flags = torch.ones(4, dtype=torch.bool)
    assert cost_of(torch.ops.aten._is_any_true.default, flags) == Cost(others=3)


def test_as_their_public_forms() -> None:
    given = torch.empty(ROWS, K), torch.empty(ROWS, K, dtype=torch.int64)
    assert cost_of(torch.ops.aten._cummax_helper.default, X, *given, 1) == cost_of(torch.cummax, X, 1)
    assert cost_of(torch.ops.aten._cummin_helper.default, X, *given, 1) == cost_of(torch.cummin, X, 1)


@pytest.mark.parametrize(
    ("rule", "args", "sizes"),
    [
        (amax_shape, (MATRIX, 1), (3,)),
        (amax_shape, (MATRIX, (0, 1), True), (1, 1)),
        (amax_shape, (Spec((3, 4), torch.int64), 1), None),
        (amax_shape, (MATRIX, 2), None),
        (mean_shape, (MATRIX,), ()),
        (mean_shape, (MATRIX, -2, True), (1, 4)),
        (mean_shape, (MATRIX, (0, 0)), None),
    ],
)
def test_the_shape_rules_answer(rule: Any, args: Any, sizes: Any) -> None:
    told = rule(*args)
    assert (told if told is None else tuple(told)) == sizes


@draws("mean", "amax", kind=same)
def reduced(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0, 4), draw(st.sampled_from(DTYPES)))
    dim = draw(st.sampled_from([0, -1, (0,), (-1, -2), (0, -1), (1, 2), [0, 1]]))
    return (x, dim), {"keepdim": draw(st.booleans())}


@draws("norm")
def normed(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    dim = draw(st.sampled_from([0, 1, -1, -2, (0,), (1, 2), (0, -1), [-1]]))
    return (x, draw(st.sampled_from([2, 2.0, 1])), dim), {"keepdim": draw(st.booleans())}
