"""Gradients of resampling by loops over taps, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.ops.textbook import Sums, agrees, is_counting
from tests.oracle import cost_by_name, cost_of

aten = torch.ops.aten
GRID = torch.rand(2, 4, 3, 2, dtype=torch.double) - 0.5
X = torch.randn(2, 3, 5, 6, dtype=torch.double)


def taps(n: int, m: int) -> list[list[tuple[int, float]]]:
    """Which inputs, of n, each of m outputs is between, and their weights; the corners aligned."""
    places = [i * (n - 1) / (m - 1) for i in range(m)]
    lower = [min(int(p), n - 2) for p in places]
    return [[(low, 1 - (p - low)), (low + 1, p - low)] for p, low in zip(places, lower, strict=True)]


def linear(g, size, new, *settings):
    """Every output's gradient times the weights of its taps."""
    out = Sums(*new)
    dims = [taps(n, m) for n, m in zip(new[2:], size, strict=True)]
    for b, c, *at in np.ndindex(g.shape):
        for corner in itertools.product(*(dim[p] for dim, p in zip(dims, at, strict=True))):
            weight = np.prod([w for _, w in corner])
            out.add((b, c, *(place for place, _ in corner)), g[(b, c, *at)] * weight)
    return out.result()


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("upsample_linear1d_backward", (9,), (5,)),
        ("upsample_bilinear2d_backward", (9, 5), (5, 3)),
        ("upsample_trilinear3d_backward", (5, 3, 4), (3, 2, 2)),
    ],
)
def test_linear(name: str, new: Any, old: Any) -> None:
    g = torch.randn(2, 3, *new, dtype=torch.double)
    agrees(getattr(aten, name).default, linear, g, list(new), [2, 3, *old], True)


def test_nearest_adds_up() -> None:
    def nearest(g, size, new, *scales):
        out = Sums(*new)
        for b, c, y, x in np.ndindex(g.shape):
            out.add((b, c, y * new[2] // size[0], x * new[3] // size[1]), g[b, c, y, x])
        return out.result()

    g = torch.randn(2, 3, 6, 9, dtype=torch.double)
    agrees(aten.upsample_nearest2d_backward.default, nearest, g, [6, 9], [2, 3, 3, 4])
    shrunk = torch.randn(2, 3, 2, 2)
    assert cost_of(aten._upsample_nearest_exact2d_backward.default, shrunk, [2, 2], [2, 3, 4, 4]) == Cost()


def test_cubic_has_four_taps_per_dim() -> None:
    """Of 8x8 outputs of 4x4 inputs, 16 products each; the first on each input needs no add."""
    g = torch.randn(2, 3, 8, 8)
    products = 2 * 3 * (8 * 8) * (4 * 4)
    expected = Cost(muls=products, adds=products - 2 * 3 * 4 * 4)
    assert cost_of(aten.upsample_bicubic2d_backward.default, g, [8, 8], [2, 3, 4, 4], True) == expected


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("_upsample_bilinear2d_aa_backward", 2),
        ("_upsample_bicubic2d_aa_backward", 4),
        ("_upsample_lanczos2d_aa_backward", 6),
    ],
)
def test_antialiased_windows_grow_as_a_dim_shrinks(name: str, width: int) -> None:
    """12 to 4: as many taps per dim, three times over; 4 stays 4."""
    out, g = Spec((2, 3, 12, 4)), Spec((2, 3, 4, 4))
    products = 2 * 3 * (4 * 4) * (3 * width) * width
    expected = Cost(muls=products, adds=products - 2 * 3 * 12 * 4)
    assert cost_by_name(f"aten::{name}", g, [4, 4], [2, 3, 12, 4], True, out=out) == expected


def sampler(g, x, grid, mode, padding, aligned, mask):
    """The sum of the taps, weight by weight: its derivatives by them, and by the place along each dim."""
    to_x, to_grid = Sums(*x.shape, starts=True), Sums(*grid.shape)
    scales = [(n - 1) / 2 for n in x.shape[2:]]
    for b, *at in np.ndindex(grid.shape[:-1]):
        known = [0.3] * 2 if is_counting(grid) else list(grid[(b, *at)])
        places = [(p + 1) * s for p, s in zip(reversed(known), scales, strict=True)]
        lower = [int(p) for p in places]
        for c in range(x.shape[1]):
            corners = []
            for tap in itertools.product(*[[0, 1]] * len(places)):
                parts = [p - n if t else 1 - (p - n) for t, p, n in zip(tap, places, lower, strict=True)]
                place = (b, c, *(n + t for n, t in zip(lower, tap, strict=True)))
                corners.append((tap, place, parts))
            here = g[(b, c, *at)]
            if mask[0]:
                for _, place, parts in corners:
                    to_x.add(place, here * np.prod(parts))
            for d in range(len(places)) if mask[1] else ():
                slopes = [
                    x[place] * ((1 if tap[d] else -1) * np.prod(parts[:d] + parts[d + 1 :]))
                    for tap, place, parts in corners
                ]
                to_grid.add((b, *at, len(places) - 1 - d), sum(slopes[1:], slopes[0]) * here)
    out = to_grid.result()
    for d, scale in enumerate(reversed(scales)):
        if mask[1]:
            out[..., d] = out[..., d] * scale
    return to_x.array if mask[0] else None, out if mask[1] else None


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_grid_sample(mask: tuple[bool, bool]) -> None:
    g = torch.randn(2, 3, 4, 3, dtype=torch.double)
    agrees(aten.grid_sampler_2d_backward.default, sampler, g, X, GRID, 0, 0, True, mask)


def test_grid_sample_by_other_kernels() -> None:
    g, x, grid = Spec((2, 3, 4, 3)), Spec(X.shape), Spec(GRID.shape)
    both = x, grid
    expected = cost_by_name("aten::grid_sampler_2d_backward", g, x, grid, 0, 0, True, (True, True), out=both)
    fallback = "aten::_grid_sampler_2d_cpu_fallback_backward"
    assert expected == cost_by_name(fallback, g, x, grid, 0, 0, True, out=both)
    assert expected == cost_by_name("aten::cudnn_grid_sampler_backward", x, grid, g, out=both)


def test_grid_sample_of_other_modes() -> None:
    """2x3 maps of 4x3 places. Nearest: its gradient added to one place. Cubic: 16 taps to x, and 2 x 16 to the grid."""
    n = 2 * 3 * 4 * 3
    g = torch.randn(2, 3, 4, 3, dtype=torch.double)
    given = g, X, GRID
    assert cost_of(aten.grid_sampler_2d_backward.default, *given, 1, 0, True, (True, True)) == Cost(adds=n)
    to_grid = Cost(muls=2 * (16 * n + n) + GRID.numel(), adds=2 * (15 * n + n) - GRID.numel())
    both = Cost(muls=16 * n, adds=16 * n).plus(to_grid)
    assert cost_of(aten.grid_sampler_2d_backward.default, *given, 2, 0, True, (True, True)) == both


def test_affine_grid() -> None:
    """Each of 2x3 numbers sums over all places the gradient times a coordinate."""
    places = 4 * 5
    expected = Cost(macs=2 * 6 * places, muls=2 * 6 * places, adds=2 * 6 * (places - 1))
    g, theta = Spec((2, 4, 5, 2)), Spec((2, 2, 3))
    for name in ("affine_grid_generator_backward", "cudnn_affine_grid_generator_backward"):
        assert cost_by_name(f"aten::{name}", g, out=theta) == expected
