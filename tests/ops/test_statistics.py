"""Statistics, histograms, integrals and norms kept: textbook definitions on counting numbers, or by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.oracle import cost_by_name, cost_of, numbers, tallying

V, N = 3, 5
X = torch.rand(V, N)
aten = torch.ops.aten


def covariance(x: Any) -> Any:
    centered = x - x.sum(1, keepdims=True) / N
    return centered @ centered.T / (N - 1)


def test_cov_and_corrcoef() -> None:
    with tallying() as tally:
        covariance(numbers(V, N))
    cost = cost_of(torch.cov, X)
    assert tally == cost
    assert cost.macs == V * V * N
    with tallying() as tally:
        c = covariance(numbers(V, N))
        deviations = np.sqrt(numbers(V))
        np.exp(c / deviations / deviations)
    assert tally == cost_of(torch.corrcoef, X)
    assert cost_of(torch.cov, X[0]) == Cost(macs=N, muls=N, adds=(N - 1) + N + (N - 1), others=2)


def test_weighted_cov() -> None:
    """Weights multiply the sum for the mean and the centered values; two of them are multiplied first."""
    plain = cost_of(torch.cov, X)
    frequencies, importances = torch.ones(N, dtype=torch.int64), torch.rand(N)
    one = cost_of(torch.cov, X, fweights=frequencies)
    assert one == plain.plus(Cost(muls=2 * V * N, adds=N - 1))
    assert cost_of(torch.cov, X, fweights=frequencies, aweights=importances) == one.plus(Cost(muls=N))


def test_trapezoid() -> None:
    with tallying() as tally:
        y = numbers(V, N)
        (y.sum(1) - (y[:, 0] + y[:, -1]) * 0.5) * 2
    assert tally == cost_of(torch.trapezoid, X, dx=2.0)
    assert tally == cost_of(torch.trapz, X)
    with tallying() as tally:
        x, y = numbers(N), numbers(V, N)
        ((y[:, 1:] + y[:, :-1]) * (x[1:] - x[:-1])).sum(1) / 2
    assert tally == cost_of(torch.trapezoid, X, torch.rand(N))
    assert tally == cost_of(torch.trapezoid, X.T.contiguous(), torch.rand(N, 1).expand(N, 1), dim=0)


def test_cumulative_trapezoid() -> None:
    with tallying() as tally:
        y = numbers(V, N)
        np.cumsum((y[:, 1:] + y[:, :-1]) * 0.5, axis=1)
    assert tally == cost_of(torch.cumulative_trapezoid, X)
    with tallying() as tally:
        x, y = numbers(N), numbers(V, N)
        np.cumsum((y[:, 1:] + y[:, :-1]) * ((x[1:] - x[:-1]) / 2), axis=1)
    assert tally == cost_of(torch.cumulative_trapezoid, X, torch.rand(N))


def test_gradient() -> None:
    with tallying() as tally:
        for _ in range(2):
            (numbers(V, N) - numbers(V, N)) / 2
    assert tally == cost_of(torch.gradient, X)
    assert cost_of(torch.gradient, X, dim=0).flops * 2 == tally.flops
    with tallying() as tally:
        numbers(V, N) * 1 + numbers(V, N) * 2 + numbers(V, N) * 3
    assert tally == cost_of(torch.gradient, X, spacing=(torch.arange(float(N)),), dim=1)


def test_histogram() -> None:
    """As histc: 1 subtraction and 1 divide to find the bin, 1 add to count; both ends; a search between 5 edges is 3 deep."""
    n = X.numel()
    ranged = cost_of(torch.histogram, X, 4, range=(0.0, 1.0))
    assert ranged == Cost(adds=2 * n, others=n)
    assert cost_of(torch.histogram, X, 4) == ranged.plus(Cost(others=2 * (n - 1)))
    edges = torch.linspace(0, 1, 5)
    assert cost_of(torch.histogram, X, edges) == Cost(adds=n, others=3 * n)
    with tallying() as tally:
        counts, widths = numbers(4), numbers(5)
        counts / counts.sum() / (widths[1:] - widths[:-1])
    density = cost_of(torch.histogram, X, 4, range=(0.0, 1.0), density=True)
    assert density.plus(Cost(0, 0, -ranged.adds, -ranged.others)) == Cost(0, tally.muls, tally.adds, tally.others)


def test_histogramdd() -> None:
    """5 samples in 2 dims, of 4 and 2 bins: as above in each dim, and 1 add per sample."""
    samples, limits = torch.rand(5, 2), [0.0, 1.0, 0.0, 1.0]
    found = Cost(adds=2 * 5 + 5, others=2 * 5)
    assert cost_of(torch.histogramdd, samples, [4, 2], range=limits) == found
    ends = Cost(others=2 * 2 * (5 - 1))
    assert cost_of(torch.histogramdd, samples, [4, 2]) == found.plus(ends)
    assert cost_of(aten._histogramdd_bin_edges.default, samples, [4, 2]) == ends
    assert cost_of(aten._histogramdd_bin_edges.default, samples, [4, 2], range=limits) == Cost()
    assert cost_of(aten._histogramdd_from_bin_cts.default, samples, [4, 2], range=limits) == found
    edges = [torch.linspace(0, 1, 5), torch.linspace(0, 1, 3)]
    assert cost_of(aten._histogramdd_from_bin_tensors.default, samples, edges) == Cost(adds=5, others=5 * (3 + 2))


def test_renorm() -> None:
    """Of each row the norm, is it too long, maxnorm / (norm + eps); each element times that."""
    with tallying() as tally:
        x = numbers(V, N)
        norms = np.sqrt((x * x).sum(1))
        x * np.exp(1 / (norms + 1e-7))[:, None]
    assert tally == cost_of(torch.renorm, X, 2, 0, 1.0)
    assert tally == cost_of("renorm_", X.clone(), 2, 0, 1.0)


def test_norm_except_dim() -> None:
    with tallying() as tally:
        v = numbers(V, N)
        np.sqrt((v * v).sum(1))
    assert tally == cost_of(torch.norm_except_dim, X, 2, 0)


@pytest.mark.parametrize(("p", "power"), [(2, lambda x: x * x), (1, abs), (3, lambda x: x**3)], ids=["2", "1", "3"])
def test_powers_and_their_sum(p: int, power: Any) -> None:
    with tallying() as tally:
        power(numbers(V, N)).sum(1)
    cost = cost_by_name("aten::linalg__powsum", Spec((V, N)), p, out=Spec((V,)))
    assert tally == cost


def test_joined_to_one() -> None:
    assert cost_by_name("aten::hash_tensor", Spec((V, N)), out=Spec(())) == Cost(others=V * N - 1)
    flags = torch.ones(4, dtype=torch.bool)
    assert cost_of(aten._is_any_true.default, flags) == Cost(others=3)


def test_as_their_public_forms() -> None:
    given = torch.empty(V, N), torch.empty(V, N, dtype=torch.int64)
    assert cost_of(aten._cummax_helper.default, X, *given, 1) == cost_of(torch.cummax, X, 1)
    assert cost_of(aten._cummin_helper.default, X, *given, 1) == cost_of(torch.cummin, X, 1)
    consecutive = cost_of(aten.unique_dim_consecutive.default, X, 0)
    assert consecutive == cost_of(torch.unique_consecutive, X, dim=0) != Cost()
