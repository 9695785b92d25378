"""Gradients of resampling: each element of the gradient, times the weights of its taps, is added to what they read.

As in resample.py, finding the places and the weights is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Cost, FormulaFunction, Spec
from ._cost import contraction, rows_of, summed, times, when
from ._registry import formula
from ._spellings import named
from .gradient import added_back
from .resample import UPSAMPLINGS, grid_sample, weighted

formula(
    *named("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
    *named("_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward"),
    *named("_upsample_nearest_exact3d_backward"),
    op="interpolate_backward",
)(added_back)


def upsampling_backward(name: str, taps: int, antialias: bool) -> FormulaFunction:
    """The formula of the operators that bring back what was resampled by so many taps per dim."""

    def upsample_backward(grad_output: Spec, *, out: Spec) -> Cost:
        products = weighted(taps, out, grad_output, antialias).muls
        return Cost(muls=products, adds=max(products - out.numel(), 0))

    counted = f"ceil({taps}i/o) taps in a dim that shrank" if antialias else f"{taps} taps per dim"
    upsample_backward.__name__ = name
    upsample_backward.__doc__ = f"grad[n, c, *o] -> out[n, c, *i]: {counted}, t multiplies and t adds per element of grad, less 1 add per output."
    return upsample_backward


for _names, _settings in UPSAMPLINGS.items():
    _backward = [f"{name}_backward" for name in _names]
    formula(*named(*_backward), op="interpolate_backward")(upsampling_backward(_backward[0], *_settings))


@formula(*named("grid_sampler_2d_backward", "grid_sampler_3d_backward"))
def grid_sample_backward(
    grad_output: Spec,
    input: Spec,
    grid: Spec,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool] = (True, True),
    *,
    out: Any,
) -> Cost:
    """grad[n, c, *o], x[n, c, *i], grid[n, *o, d] -> out[n, c, *i], out_grid[n, *o, d]: for t taps t multiplies and t adds per element of grad.

    To the grid, per coordinate: the taps weighted by the weights' derivatives, t multiplies and t-1 adds, times grad,
    summed over the channels, times what the coordinate is scaled by; nearest has no such gradient.
    """
    to_input, to_grid = output_mask
    n, d = grad_output.numel(), grid[-1]
    forward = grid_sample(input, grid, interpolation_mode, out=grad_output)
    over_channels = Cost(muls=d * n + grid.numel(), adds=max(d * n - grid.numel(), 0))
    return summed(
        when(to_input, Cost(muls=forward.muls, adds=forward.muls or n)),
        when(to_grid and forward.muls, times(d, forward).plus(over_channels)),
    )


@formula(*named("_grid_sampler_2d_cpu_fallback_backward"), op="grid_sample_backward")
def grid_sample_fallback_backward(
    grad_output: Spec, input: Spec, grid: Spec, interpolation_mode: int, *, out: Any
) -> Cost:
    """grad[n, c, *o], x[n, c, *i], grid[n, *o, d] -> out[n, c, *i], out_grid[n, *o, d]: as grid_sampler_2d_backward."""
    return grid_sample_backward(grad_output, input, grid, interpolation_mode, 0, False, out=out)


@formula(*named("cudnn_grid_sampler_backward"), op="grid_sample_backward")
def cudnn_grid_sample_backward(input: Spec, grid: Spec, grad_output: Spec, *, out: Any) -> Cost:
    """x[n, c, *i], grid[n, *o, d], grad[n, c, *o] -> out[n, c, *i], out_grid[n, *o, d]: as grid_sampler_2d_backward, bilinear."""
    return grid_sample_backward(grad_output, input, grid, 0, 0, False, out=out)


@formula(*named("affine_grid_generator_backward", "cudnn_affine_grid_generator_backward"))
def affine_grid_backward(grad: Spec, *, out: Spec) -> Cost:
    """grad[n, *, d] -> out[n, d, k]: a multiply and an add per point for each output, the first add is none."""
    n, d, _ = out
    return contraction(rows_of(grad.numel(), n * d), out.numel())
