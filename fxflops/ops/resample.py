"""Resampling: each output is the weighted sum of its taps. Finding the places and the weights is not counted.

torch_flops counts 1 per output, and the spatial size alone where ``size`` is given; here it is what the mode computes.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..records import Cost, FormulaFunction, Spec
from ._cost import contraction
from ._registry import formula, zero
from ._spellings import named
from .pool import adaptive_avg_pool

TAPS = {"nearest": 0, "nearest-exact": 0, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4, "lanczos": 6}


@formula(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, *named("interpolate", "upsample"))
def interpolate(
    input: Spec,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    out: Spec,
) -> Cost:
    """input[n, c, *i] -> out[n, c, *o]: t multiplies and t-1 adds per output, for t taps.

    Taps per dim: linear 2, cubic 4, lanczos 6; with antialias as many times more as the dim shrinks, rounded up.
    Nearest moves values; area is an adaptive average pool.
    """
    if mode == "area":
        return adaptive_avg_pool(input, out=out)
    return weighted(TAPS[mode], input, out, antialias)


def upsampling(name: str, taps: int, antialias: bool) -> FormulaFunction:
    """The formula of the operators that resample by so many taps per dim, whatever their settings are."""

    def upsample(input: Spec, *, out: Spec) -> Cost:
        return weighted(taps, input, out, antialias)

    counted = f"ceil({taps}i/o) taps in a dim that shrinks" if antialias else f"{taps} taps per dim"
    upsample.__name__ = name
    upsample.__doc__ = f"input[n, c, *i] -> out[n, c, *o]: {counted}, t multiplies and t-1 adds per output."
    return upsample


UPSAMPLINGS = {
    ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"): (2, False),
    ("upsample_bicubic2d",): (4, False),
    ("_upsample_bilinear2d_aa",): (2, True),
    ("_upsample_bicubic2d_aa",): (4, True),
    ("_upsample_lanczos2d_aa",): (6, True),
}
"""Taps per dim, and whether they are as many times more as the dim shrinks, by the operators' names."""
for _names, _settings in UPSAMPLINGS.items():
    formula(*named(*_names), op="interpolate")(upsampling(_names[0], *_settings))


zero(
    "move",
    *named("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *named("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    op="interpolate",
)


@formula(
    *named("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback"),
    "aten::cudnn_grid_sampler",
)
def grid_sample(input: Spec, grid: Spec, mode: str | int = "bilinear", *, out: Spec) -> Cost:
    """input[n, c, *i], grid[n, *o, d] -> out[n, c, *o]: t multiplies and t-1 adds per output, for 2**d or 4**d taps."""
    taps = {"bilinear": 2, 0: 2, "nearest": 0, 1: 0, "bicubic": 4, 2: 4}[mode]
    return _mixed(taps ** grid[-1], out)


@formula(*named("affine_grid", "affine_grid_generator"), "aten::cudnn_affine_grid_generator")
def affine_grid(theta: Spec, *, out: Spec) -> Cost:
    """theta[n, d, k] -> out[n, *, d]: k multiplies and k-1 adds per output, for a point of k-1 coordinates and 1."""
    return contraction(theta[-1], out.numel())


def weighted(taps: int, input: Spec, out: Spec, antialias: bool = False) -> Cost:
    """Of so many taps per dim."""
    dims = zip(input[2:], out[2:], strict=True)
    return _mixed(math.prod(-(-taps * max(i, o) // o) if antialias and o else taps for i, o in dims), out)


def _mixed(taps: int, out: Spec) -> Cost:
    return Cost(muls=taps * out.numel(), adds=max(taps - 1, 0) * out.numel())
