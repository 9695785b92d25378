"""Resampling: each output is the weighted sum of its taps, which are input elements. Computing positions and weights is not counted.

In the backward pass, each element of the gradient is multiplied by the weights of its taps and added to the gradients of the taps.

torch_flops counts 1 per output; if ``size`` is passed, it ignores batch and channels. fxflops counts the work of the mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from ._extend import (
    FORMAT,
    Cost,
    FormulaFunction,
    Spec,
    contraction,
    formula,
    named,
    rows_of,
    summed,
    times,
    when,
    zero,
)
from .free import added_back
from .pool import adaptive_avg_pool

TAPS = {"nearest": 0, "nearest-exact": 0, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4, "lanczos": 6}
GRID_TAPS: dict[str | int, int] = {"bilinear": 2, 0: 2, "nearest": 0, 1: 0, "bicubic": 4, 2: 4}
RESAMPLED = {"nearest": (3, 4, 5), "linear": (3,), "bilinear": (4,), "bicubic": (4,), "trilinear": (5,)}
"""The numbers of dims that each mode accepts."""


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
    """input[n, c, *i] -> out[n, c, *o]: t multiplies and t-1 adds per output with t taps.

    Taps per dim: linear 2, cubic 4, lanczos 6. With antialias, the number of taps is multiplied by the factor by which the dim
    shrinks, and rounded up. Nearest only moves values. Area counts like an adaptive average pool.
    """
    if mode == "area":
        return adaptive_avg_pool(input, out=out)
    return weighted(TAPS[mode], input, out, antialias)


@interpolate.shape(nn.Upsample, F.interpolate, layout=FORMAT)
def interpolate_shape(
    input: Spec,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], m = size, or s times the scale, rounded down."""
    dims = input.ndim - 2
    if input.ndim not in RESAMPLED.get(mode, ()) or (size is None) is (scale_factor is None) or antialias:
        return None
    if not input.dtype.is_floating_point or not input.numel() or (mode == "nearest" and align_corners is not None):
        return None
    given = size if scale_factor is None else scale_factor
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * dims
    if len(values) != dims or not all(type(value) in (int, float) for value in values):
        return None
    if scale_factor is None:
        sizes = values if all(type(value) is int for value in values) and not recompute_scale_factor else (0,)
    else:
        sizes = tuple(int(s * float(scale)) for s, scale in zip(input[2:], values, strict=True))
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None


def upsampling(name: str, taps: int, antialias: bool) -> FormulaFunction:
    """Return the formula of operators that resample with ``taps`` taps per dim."""

    def upsample(input: Spec, *, out: Spec) -> Cost:
        return weighted(taps, input, out, antialias)

    counted = f"ceil({taps}i/o) in a dim that shrinks" if antialias else f"{taps} per dim"
    upsample.__name__ = name
    upsample.__doc__ = f"input[n, c, *i] -> out[n, c, *o]: t multiplies and t-1 adds per output with t taps, {counted}."
    return upsample


def upsampling_backward(name: str, taps: int, antialias: bool) -> FormulaFunction:
    """Return the formula of backward operators of resampling with ``taps`` taps per dim."""

    def upsample_backward(grad_output: Spec, *, out: Spec) -> Cost:
        products = weighted(taps, out, grad_output, antialias).muls
        return Cost(muls=products, adds=max(products - out.numel(), 0))

    counted = f"ceil({taps}i/o) in a dim that shrank" if antialias else f"{taps} per dim"
    upsample_backward.__name__ = name
    upsample_backward.__doc__ = f"grad[n, c, *o] -> out[n, c, *i]: t multiplies and t adds per element of grad with t taps, {counted}; minus 1 add per output."
    return upsample_backward


UPSAMPLINGS = {
    ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"): (2, False),
    ("upsample_bicubic2d",): (4, False),
    ("_upsample_bilinear2d_aa",): (2, True),
    ("_upsample_bicubic2d_aa",): (4, True),
    ("_upsample_lanczos2d_aa",): (6, True),
}
"""For each group of operators, the number of taps per dim, and whether antialiasing adds taps in a dim that shrinks."""
for _names, _settings in UPSAMPLINGS.items():
    formula(*named(*_names), op="interpolate")(upsampling(_names[0], *_settings))
    _backward = [f"{name}_backward" for name in _names]
    interpolate.backward(*named(*_backward), op="interpolate_backward")(upsampling_backward(_backward[0], *_settings))


zero(
    "move",
    *named("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *named("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    op="interpolate",
)
interpolate.backward(
    *named("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
    *named("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward"),
    *named("_upsample_nearest_exact3d_backward"),
    op="interpolate_backward",
)(added_back)


@formula(
    *named("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback"),
    "aten::cudnn_grid_sampler",
)
def grid_sample(input: Spec, grid: Spec, mode: str | int = "bilinear", *, out: Spec) -> Cost:
    """input[n, c, *i], grid[n, *o, d] -> out[n, c, *o]: t multiplies and t-1 adds per output, for t = 2**d or 4**d taps."""
    return _mixed(GRID_TAPS[mode] ** grid[-1], out)


@grid_sample.backward(
    *named("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_grid_sampler_2d_cpu_fallback_backward"),
    *named("cudnn_grid_sampler_backward"),
)
def grid_sample_backward(
    *, grad_output: Spec, grid: Spec, interpolation_mode: int = 0, output_mask: Sequence[bool] = (True, True), out: Any
) -> Cost:
    """grad[n, c, *o], x[n, c, *i], grid[n, *o, d] -> out[n, c, *i], out_grid[n, *o, d]: t multiplies and t adds per element of grad with t taps.

    For the grid's gradient, the taps of each coordinate are weighted by the derivatives of their weights (t multiplies and t-1
    adds), multiplied by grad, summed over the channels, and multiplied by the coordinate's scale. The mode "nearest" has no
    gradient for the grid.
    """
    to_input, to_grid = output_mask
    n, d = grad_output.numel(), grid[-1]
    forward = _mixed(GRID_TAPS[interpolation_mode] ** d, grad_output)
    over_channels = Cost(muls=d * n + grid.numel(), adds=max(d * n - grid.numel(), 0))
    return summed(
        when(to_input, Cost(muls=forward.muls, adds=forward.muls or n)),
        when(to_grid and forward.muls, times(d, forward).plus(over_channels)),
    )


@formula(*named("affine_grid", "affine_grid_generator"), "aten::cudnn_affine_grid_generator")
def affine_grid(theta: Spec, *, out: Spec) -> Cost:
    """theta[n, d, k] -> out[n, *, d]: k multiplies and k-1 adds per output, for points of k-1 coordinates and a 1."""
    return contraction(theta[-1], out.numel())


@affine_grid.backward(*named("affine_grid_generator_backward", "cudnn_affine_grid_generator_backward"))
def affine_grid_backward(grad: Spec, *, out: Spec) -> Cost:
    """grad[n, *, d] -> out[n, d, k]: per output, 1 multiply and 1 add for each point, minus 1 add."""
    n, d, _ = out
    return contraction(rows_of(grad.numel(), n * d), out.numel())


def weighted(taps: int, input: Spec, out: Spec, antialias: bool = False) -> Cost:
    """Return the cost of weighted sums of ``taps`` taps per dim. ``antialias`` adds taps in a dim that shrinks."""
    dims = zip(input[2:], out[2:], strict=True)
    return _mixed(math.prod(-(-taps * max(i, o) // o) if antialias and o else taps for i, o in dims), out)


def _mixed(taps: int, out: Spec) -> Cost:
    return Cost(muls=taps * out.numel(), adds=max(taps - 1, 0) * out.numel())
