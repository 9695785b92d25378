"""Gradients of products and distances, written out, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fxflops.records import Spec
from tests.ops.textbook import Sums, absolute, agrees, computes, equals, one, pick, sign, tally_of
from tests.oracle import cost_by_name

aten = torch.ops.aten
N, D, K = 5, 3, 4
ROWS, COLUMNS = Spec((N, D)), Spec((N, K))


def linear(x, g, weight, mask):
    out = g @ weight if mask[0] else None
    return out, g.T @ x if mask[1] else None, g.sum(axis=0) if mask[2] else None


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
def test_linear(mask: tuple[bool, ...]) -> None:
    x, weight, g = torch.randn(N, D), torch.randn(K, D), torch.randn(N, K)
    expected = tally_of(linear, x, g, weight, mask)
    out = ROWS, Spec((K, D)), Spec((K,))
    assert expected == cost_by_name("aten::linear_backward", ROWS, COLUMNS, out[1], mask, out=out)
    assert expected == cost_by_name("aten::mkldnn_linear_backward", ROWS, COLUMNS, out[1], mask, out=out)
    batches = Spec((1, N, D)), Spec((1, N, K))
    assert expected == cost_by_name("aten::linear_backward", *batches, out[1], mask, out=out)


def test_linear_is_what_autograd_computes() -> None:
    x, g = torch.randn(N, D, requires_grad=True), torch.randn(N, K)
    module = torch.nn.Linear(D, K)
    module(x).backward(g)
    computes(linear, (x.grad, module.weight.grad, module.bias.grad), x, g, module.weight, (True, True, True))


def test_parts_of_a_linear() -> None:
    x, weight, g = torch.randn(N, D), torch.randn(K, D), torch.randn(N, K)
    expected = tally_of(linear, x, g, weight, (True, False, False))
    assert expected == cost_by_name("aten::mkldnn_linear_backward_input", (N, D), COLUMNS, Spec((K, D)), out=ROWS)
    expected = tally_of(linear, x, g, weight, (False, True, True))
    args = COLUMNS, ROWS, Spec((K, D)), True
    assert expected == cost_by_name("aten::mkldnn_linear_backward_weights", *args, out=(Spec((K, D)), Spec((K,))))


def test_matmul_broadcast() -> None:
    """The matrix that meets every batch sums over them."""

    def matmul(g, a, b):
        out_a, out_b = Sums(*a.shape), Sums(*b.shape)
        for n, i, j, k in np.ndindex(*g.shape, a.shape[-1]):
            out_a.add((n, i, k), g[n, i, j] * b[k, j])
            out_b.add((k, j), g[n, i, j] * a[n, i, k])
        return out_a.result(), out_b.result()

    a, b = torch.randn(2, N, D, requires_grad=True), torch.randn(D, K, requires_grad=True)
    g = torch.randn(2, N, K)
    (a @ b).backward(g)
    computes(matmul, (a.grad, b.grad), g, a, b)
    expected = tally_of(matmul, g, a.detach(), b.detach())
    args = Spec((2, N, K)), Spec((2, N, D)), Spec((D, K))
    assert expected == cost_by_name("aten::matmul_backward", *args, (True, True), out=args[1:])
    half = cost_by_name("aten::matmul_backward", *args, (True, False), out=args[1:])
    assert half.macs * 2 == expected.muls


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
def test_distances_of_two_sets(p: float) -> None:
    def cdist(g, x1, x2, p, distance):
        z = x1[:, None, :] - x2[None]
        return of_distance(g[..., None], z, distance[..., None], p).sum(axis=1)

    x1, x2, g = (torch.randn(*shape, dtype=torch.double) for shape in ((N, D), (K, D), (N, K)))
    agrees(aten._cdist_backward.default, cdist, g, x1, x2, p, torch.cdist(x1, x2, p))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_distances_within_a_set(p: float) -> None:
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
