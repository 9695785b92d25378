"""Statistics, histograms, integrals and norms along kept dims: textbook definitions on counting numbers, or by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fxflops.records import Cost
from tests.oracle import cost_of, numbers, tallying

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
    """Weights multiply the values summed for the mean, and the centered values. Two kinds of weights are first multiplied together."""
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
    """Like histc: 1 subtraction and 1 divide find the bin, 1 add counts; without a range, search both ends. Among 5 edges, 3 compares."""
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
    """5 samples in 2 dims with 4 and 2 bins: as above in each dim, and 1 add per sample."""
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
