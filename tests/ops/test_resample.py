"""Resampling against the sum of weighted taps, each number of taps worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.oracle import Tally, cost_of, numbers, tallying

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
    """10 to 4 spreads 2 taps over 2*10/4 = 5, and 10 to 3 over 6.67: 7; growing to 20 leaves them 2."""
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
