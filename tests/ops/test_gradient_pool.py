"""Gradients of pooling by loops over windows, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fxflops.records import Cost, Spec
from tests.ops.textbook import Sums, agrees
from tests.oracle import cost_by_name, cost_of

aten = torch.ops.aten
X = torch.randn(2, 3, 6, 6, dtype=torch.double)
VOLUME = torch.randn(1, 2, 6, 4, 4, dtype=torch.double)


def averages(g, size, windows: Any) -> Any:
    """Each output's gradient, divided by the elements of its window, to all of them."""
    out = Sums(*size)
    for at in np.ndindex(g.shape[2:]):
        places = windows(at)
        k = np.prod([place.stop - place.start for place in places])
        each = g[(..., *at)] / k
        out.add((..., *places), each[(..., *[None] * len(places))])
    return out.result()


def average(g, x, kernel, stride, *settings):
    return averages(
        g, x.shape, lambda at: [slice(p * s, p * s + k) for p, s, k in zip(at, stride, kernel, strict=True)]
    )


@pytest.mark.parametrize(("kernel", "stride"), [([2, 2], [2, 2]), ([3, 2], [1, 2]), ([2, 2], [1, 1])])
def test_average(kernel: list[int], stride: list[int]) -> None:
    settings = kernel, stride, [0, 0], False, True, None
    g = torch.randn_like(aten.avg_pool2d(X, *settings))
    agrees(aten.avg_pool2d_backward.default, average, g, X, *settings)


def test_average_of_volumes() -> None:
    settings = [3, 2, 2], [1, 2, 2], [0, 0, 0], False, True, None
    g = torch.randn_like(aten.avg_pool3d(VOLUME, *settings))
    agrees(aten.avg_pool3d_backward.default, average, g, VOLUME, *settings)


def adaptive(g, x):
    def windows(at: tuple[int, ...]) -> Iterator[slice]:
        sizes = zip(at, x.shape[2:], g.shape[2:], strict=True)
        return [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in sizes]

    return averages(g, x.shape, windows)


def test_adaptive_average() -> None:
    g = torch.randn(2, 3, 4, 2, dtype=torch.double)
    agrees(aten._adaptive_avg_pool2d_backward.default, adaptive, g, X)
    expected = cost_of(aten._adaptive_avg_pool2d_backward.default, g, X)
    args = Spec(g.shape), Spec(X.shape)
    assert expected == cost_by_name("aten::mkldnn_adaptive_avg_pool2d_backward", *args, out=args[1])
    g = torch.randn(1, 2, 4, 3, 1, dtype=torch.double)
    agrees(aten._adaptive_avg_pool3d_backward.default, adaptive, g, VOLUME)


def maximum(g, x, indices):
    """Each output's gradient to where its maximum was; several may have had the same."""
    out = Sums(*x.shape[:2], int(np.prod(x.shape[2:])), starts=True)
    for b, c, *at in np.ndindex(g.shape):
        out.add((b, c, indices[(b, c, *at)]), g[(b, c, *at)])
    return out.array.reshape(x.shape)


def test_maximum() -> None:
    settings = [3, 3], [1, 1], [0, 0], [1, 1], False
    pooled, indices = aten.max_pool2d_with_indices(X, *settings)
    overload = aten.max_pool2d_with_indices_backward.default
    agrees(overload, lambda g, x, *rest: maximum(g, x, rest[-1]), torch.randn_like(pooled), X, *settings, indices)
    pooled, indices = F.max_pool3d(VOLUME, 2, return_indices=True)
    settings = [2] * 3, [2] * 3, [0] * 3, [1] * 3, False
    overload = aten.max_pool3d_with_indices_backward.default
    agrees(overload, lambda g, x, *rest: maximum(g, x, rest[-1]), torch.randn_like(pooled), VOLUME, *settings, indices)


def test_adaptive_and_fractional_maximum() -> None:
    pooled, indices = F.adaptive_max_pool2d(X, 4, return_indices=True)
    agrees(aten.adaptive_max_pool2d_backward.default, maximum, torch.randn_like(pooled), X, indices)
    pooled, indices = F.fractional_max_pool2d(X, 2, output_size=(3, 3), return_indices=True)
    args = torch.randn_like(pooled), X, [2, 2], [3, 3], indices
    agrees(aten.fractional_max_pool2d_backward.default, lambda g, x, *rest: maximum(g, x, rest[-1]), *args)


def test_maximum_by_other_kernels() -> None:
    g, x = Spec((2, 3, 4, 4)), Spec((2, 3, 6, 6))
    for name, args in [("max_pool2d_backward", (g, x)), ("mkldnn_max_pool2d_backward", (g, g, x))]:
        assert cost_by_name(f"aten::{name}", *args, [3, 3], out=x) == Cost(adds=2 * 3 * 4 * 4)
