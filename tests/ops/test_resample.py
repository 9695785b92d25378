"""Resampling against a sum of weighted taps, with the number of taps worked out by hand. Gradients are loops over the taps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.ops.resample import interpolate_shape
from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, tensor
from tests.ops.textbook import Sums, agrees, is_counting
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def mix(outputs: int, taps: int) -> Tally:
    with tallying() as tally:
        np.sum(numbers(outputs, taps) * numbers(outputs, taps), axis=1)
    return tally


@pytest.mark.parametrize(
    ("mode", "dims", "taps"),
    [("linear", 1, 2), ("bilinear", 2, 2 * 2), ("trilinear", 3, 2 * 2 * 2), ("bicubic", 2, 4 * 4)],
)
@pytest.mark.parametrize("scale", [2, 0.5])
def test_each_output_mixes_its_taps(mode, dims, taps, scale):
    x = torch.zeros(2, 3, *[8] * dims)
    expected = mix(2 * 3 * int(8 * scale) ** dims, taps)
    assert expected == cost_of(F.interpolate, x, scale_factor=scale, mode=mode)
    assert expected == cost_of(nn.Upsample(scale_factor=scale, mode=mode), x)
    assert expected == cost_of(F.interpolate, x, [int(8 * scale)] * dims, None, mode)


def test_nearest_moves_values():
    x = torch.zeros(2, 3, 8, 8)
    assert cost_of(nn.UpsamplingNearest2d(scale_factor=2), x).flops == 0
    assert cost_of(F.interpolate, x, scale_factor=2).flops == 0
    assert cost_of(F.interpolate, x, scale_factor=2, mode="nearest-exact").flops == 0
    assert cost_of(aten.upsample_nearest2d.default, x, [16, 16]).flops == 0


def test_area_is_an_adaptive_average():
    x = torch.zeros(2, 3, 8, 7)
    assert cost_of(F.interpolate, x, (3, 4), mode="area") == cost_of(F.adaptive_avg_pool2d, x, (3, 4))


def test_bilinear_in_every_spelling():
    x, expected = torch.zeros(2, 3, 8, 8), mix(2 * 3 * 16 * 16, 4)
    assert expected == cost_of(nn.UpsamplingBilinear2d(scale_factor=2), x)
    assert expected == cost_of(aten.upsample_bilinear2d.default, x, [16, 16], False)
    assert mix(2 * 3 * 16 * 16, 16) == cost_of(aten.upsample_bicubic2d.default, x, [16, 16], False)


def test_antialiasing_takes_more_taps_as_it_shrinks():
    """From 10 to 4, 2 taps spread over 2*10/4 = 5 inputs; from 10 to 3 over 6.67, so 7; growing to 20 keeps 2."""
    x = torch.zeros(2, 3, 10, 10)
    expected = mix(2 * 3 * 4 * 3, 5 * 7)
    assert expected == cost_of(F.interpolate, x, (4, 3), mode="bilinear", antialias=True)
    assert expected == cost_of(aten._upsample_bilinear2d_aa.default, x, [4, 3], False)
    assert mix(6 * 20 * 20, 4) == cost_of(F.interpolate, x, (20, 20), mode="bilinear", antialias=True)
    assert mix(6 * 5 * 5, 8 * 8) == cost_of(aten._upsample_bicubic2d_aa.default, x, [5, 5], False)


@pytest.mark.skipif(not hasattr(aten, "_upsample_lanczos2d_aa"), reason="this torch has no lanczos")
def test_lanczos_has_six_taps():
    x = torch.zeros(2, 3, 10, 10, device="meta")
    assert mix(6 * 5 * 5, 12 * 12) == cost_of(aten._upsample_lanczos2d_aa.default, x, [5, 5], False)
    assert mix(6 * 5 * 5, 12 * 12) == cost_of(F.interpolate, x, (5, 5), mode="lanczos", antialias=True)


@pytest.mark.parametrize(("mode", "number", "taps"), [("bilinear", 0, 4), ("nearest", 1, 0), ("bicubic", 2, 16)])
def test_sampling_a_grid(mode, number, taps):
    x, grid = torch.zeros(2, 3, 8, 8), torch.zeros(2, 4, 5, 2)
    expected = mix(2 * 3 * 4 * 5, taps)
    assert expected == cost_of(F.grid_sample, x, grid, mode, align_corners=False)
    assert expected == cost_of(torch.grid_sampler, x, grid, number, 0, False)
    assert expected == cost_of(aten.grid_sampler_2d.default, x, grid, number, 0, False)


def test_sampling_a_volume_has_eight_taps():
    x, grid = torch.zeros(2, 3, 4, 4, 4), torch.zeros(2, 2, 4, 5, 3)
    assert mix(2 * 3 * 2 * 4 * 5, 8) == cost_of(F.grid_sample, x, grid, align_corners=False)


def test_an_affine_grid_is_a_product_with_theta():
    theta, size = torch.zeros(2, 2, 3), (2, 3, 4, 5)
    with tallying() as tally:
        numbers(2, 4 * 5, 3) @ numbers(2, 3, 2)
    assert tally == cost_of(F.affine_grid, theta, size, align_corners=False)
    assert tally == cost_of(aten.affine_grid_generator.default, theta, size, False)


GRID = torch.rand(2, 4, 3, 2, dtype=torch.double) - 0.5
X = torch.randn(2, 3, 5, 6, dtype=torch.double)


def taps(n: int, m: int) -> list[list[tuple[int, float]]]:
    """For each of m outputs, the neighboring inputs (of n) and their weights; corners are aligned."""
    places = [i * (n - 1) / (m - 1) for i in range(m)]
    lower = [min(int(p), n - 2) for p in places]
    return [[(low, 1 - (p - low)), (low + 1, p - low)] for p, low in zip(places, lower, strict=True)]


def linear(g, size, new, *settings):
    """Add every output's gradient, times the weights of its taps, to the inputs."""
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
def test_the_gradient_of_linear_modes(name: str, new: Any, old: Any) -> None:
    g = torch.randn(2, 3, *new, dtype=torch.double)
    agrees(getattr(aten, name).default, linear, g, list(new), [2, 3, *old], True)


def test_the_gradient_of_nearest_adds_up() -> None:
    def nearest(g, size, new, *scales):
        out = Sums(*new)
        for b, c, y, x in np.ndindex(g.shape):
            out.add((b, c, y * new[2] // size[0], x * new[3] // size[1]), g[b, c, y, x])
        return out.result()

    g = torch.randn(2, 3, 6, 9, dtype=torch.double)
    agrees(aten.upsample_nearest2d_backward.default, nearest, g, [6, 9], [2, 3, 3, 4])
    shrunk = torch.randn(2, 3, 2, 2)
    assert cost_of(aten._upsample_nearest_exact2d_backward.default, shrunk, [2, 2], [2, 3, 4, 4]) == Cost()


def test_the_gradient_of_cubic_modes_has_four_taps_per_dim() -> None:
    """16 products for each of 8x8 outputs of a 4x4 input. The first one added to an input needs no add."""
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
def test_the_gradient_of_antialiased_windows(name: str, width: int) -> None:
    """From 12 to 4 there are three times as many taps in that dim; from 4 to 4 as many as before."""
    out, g = Spec((2, 3, 12, 4)), Spec((2, 3, 4, 4))
    products = 2 * 3 * (4 * 4) * (3 * width) * width
    expected = Cost(muls=products, adds=products - 2 * 3 * 12 * 4)
    assert cost_by_name(f"aten::{name}", g, [4, 4], [2, 3, 12, 4], True, out=out) == expected


def sampler(g, x, grid, mode, padding, aligned, mask):
    """The output is a weighted sum of taps: derivatives by the taps, and by the place along each dim."""
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
def test_the_gradient_of_grid_sample(mask: tuple[bool, bool]) -> None:
    g = torch.randn(2, 3, 4, 3, dtype=torch.double)
    agrees(aten.grid_sampler_2d_backward.default, sampler, g, X, GRID, 0, 0, True, mask)


def test_the_gradient_of_grid_sample_by_other_kernels() -> None:
    g, x, grid = Spec((2, 3, 4, 3)), Spec(X.shape), Spec(GRID.shape)
    both = x, grid
    expected = cost_by_name("aten::grid_sampler_2d_backward", g, x, grid, 0, 0, True, (True, True), out=both)
    fallback = "aten::_grid_sampler_2d_cpu_fallback_backward"
    assert expected == cost_by_name(fallback, g, x, grid, 0, 0, True, out=both)
    assert expected == cost_by_name("aten::cudnn_grid_sampler_backward", x, grid, g, out=both)


def test_the_gradient_of_grid_sample_in_other_modes() -> None:
    """2x3 maps of 4x3 places. Nearest adds the gradient to one place. Cubic has 16 taps to x, and 2 x 16 to the grid."""
    n = 2 * 3 * 4 * 3
    g = torch.randn(2, 3, 4, 3, dtype=torch.double)
    given = g, X, GRID
    assert cost_of(aten.grid_sampler_2d_backward.default, *given, 1, 0, True, (True, True)) == Cost(adds=n)
    to_grid = Cost(muls=2 * (16 * n + n) + GRID.numel(), adds=2 * (15 * n + n) - GRID.numel())
    both = Cost(muls=16 * n, adds=16 * n).plus(to_grid)
    assert cost_of(aten.grid_sampler_2d_backward.default, *given, 2, 0, True, (True, True)) == both


def test_the_gradient_of_affine_grid() -> None:
    """Each of 2x3 numbers sums the gradient times a coordinate over all places."""
    places = 4 * 5
    expected = Cost(macs=2 * 6 * places, muls=2 * 6 * places, adds=2 * 6 * (places - 1))
    g, theta = Spec((2, 4, 5, 2)), Spec((2, 2, 3))
    for name in ("affine_grid_generator_backward", "cudnn_affine_grid_generator_backward"):
        assert cost_by_name(f"aten::{name}", g, out=theta) == expected


IMAGE = Spec((1, 2, 4, 4), torch.float32)


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        ((IMAGE, (5, 6)), (1, 2, 5, 6)),
        ((IMAGE, 5), (1, 2, 5, 5)),
        ((IMAGE, None, 2.0), (1, 2, 8, 8)),
        ((IMAGE, None, (2.0, 0.25)), (1, 2, 8, 1)),
        ((IMAGE, (5, 6), None, "nearest", None, True), None),
    ],
)
def test_the_shape_rule_answers(args: Any, sizes: Any) -> None:
    told = interpolate_shape(*args)
    assert (told if told is None else tuple(told)) == sizes


@draws("interpolate")
def resampled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 3, 5), draw(st.sampled_from(DTYPES)))
    modes = {
        3: ["nearest", "linear"],
        4: ["nearest", "bilinear", "bicubic", "nearest-exact"],
        5: ["nearest", "trilinear"],
    }
    kwargs: dict[str, Any] = {"mode": draw(st.sampled_from(modes[x.ndim]))}
    kwargs |= draw(st.sampled_from([{"size": 7}, {"scale_factor": 2}, {"scale_factor": 1.3}, {"scale_factor": 0.5}]))
    if "linear" in kwargs["mode"]:
        kwargs["align_corners"] = draw(st.sampled_from([None, False, True]))
    if "scale_factor" in kwargs and draw(st.booleans()):
        kwargs["recompute_scale_factor"] = draw(st.booleans())
    return ((target(**kwargs), x), {}) if isinstance(target, type) else ((x,), kwargs)
