"""Distances on arrays of counting numbers, computed from every difference. Their gradients also give torch's values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.ops.textbook import absolute, agrees, equals, one, pick, sign
from tests.oracle import Number, cost_of, numbers, tallying

aten = torch.ops.aten
compare = np.frompyfunc(Number.compare, 1, 1)
N, D, K = 5, 3, 4


@pytest.mark.parametrize(
    ("p", "distance"),
    [
        (2.0, lambda d: np.sqrt(np.sum(d * d, axis=-1))),
        (1.0, lambda d: np.sum(abs(d), axis=-1)),
        (3.0, lambda d: np.sum(abs(d) ** 3, axis=-1) ** (1 / 3)),
        (0.0, lambda d: np.sum(compare(d), axis=-1)),
        (float("inf"), lambda d: compare(abs(d)[..., 1:])),
    ],
)
def test_cdist_is_the_norm_of_every_difference(p, distance):
    x, y = numbers(2, 4, 1, 5), numbers(2, 1, 3, 5)
    with tallying() as tally:
        distance(x - y)
    assert tally == cost_of(torch.cdist, torch.zeros(2, 4, 5), torch.zeros(2, 3, 5), p=p)


def test_pdist_is_the_norm_of_every_difference():
    x = numbers(N, D)
    with tallying() as tally:
        for i, j in itertools.combinations(range(N), 2):
            d = x[i] - x[j]
            np.sqrt(np.sum(d * d))
    assert tally == cost_of(torch.pdist, torch.rand(N, D)) == cost_of(nn.functional.pdist, torch.rand(N, D), 2)


def power(x, exponent):
    return one(lambda x: x**exponent)(x)


def of_distance(g, z, distance, p):
    """The gradient of the p-norm of z, times g."""
    if p == 2:
        return z * (g / distance)
    if p == 1:
        return sign(z) * g
    if p == float("inf"):
        return sign(z) * pick(equals(absolute(z), distance), g, 0)
    return sign(z) * power(absolute(z), p - 1) * (g / power(distance, p - 1))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_of_distances_of_two_sets(p: float) -> None:
    def cdist(g, x1, x2, p, distance):
        z = x1[:, None, :] - x2[None]
        return of_distance(g[..., None], z, distance[..., None], p).sum(axis=1)

    x1, x2, g = (torch.randn(*shape, dtype=torch.double) for shape in ((N, D), (K, D), (N, K)))
    agrees(aten._cdist_backward.default, cdist, g, x1, x2, p, torch.cdist(x1, x2, p))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_of_distances_within_a_set(p: float) -> None:
    def pdist(g, x, p, distance):
        out = np.full(x.shape, 0.0, dtype=object)
        for pair, (i, j) in enumerate(itertools.combinations(range(len(x)), 2)):
            moved = of_distance(g[pair : pair + 1], x[i] - x[j], distance[pair : pair + 1], p)
            out[i] = out[i] + moved
            out[j] = out[j] - moved
        return out

    x = torch.randn(N, D, dtype=torch.double)
    g = torch.randn(N * (N - 1) // 2, dtype=torch.double)
    agrees(aten._pdist_backward.default, pdist, g, x, p, torch.pdist(x, p))
