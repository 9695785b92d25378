"""Pooling: averages, maxima and norms over windows. Windows are counted whole, also at padded borders.

A plain int as kernel size means that length in every dim (torch_flops takes it for a window of one dim).
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..records import Cost, Spec
from ._cost import first, times
from ._registry import formula, zero
from ._spellings import named


@formula(nn.AvgPool1d, *named("avg_pool1d"), op="avg_pool")
def avg_pool1d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k-1 adds and 1 divide per output, for a window of k."""
    return _average(window(kernel_size, 1), out)


@formula(nn.AvgPool2d, *named("avg_pool2d"), op="avg_pool")
def avg_pool2d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k-1 adds and 1 divide per output, for a window of k."""
    return _average(window(kernel_size, 2), out)


@formula(nn.AvgPool3d, *named("avg_pool3d"), op="avg_pool")
def avg_pool3d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k-1 adds and 1 divide per output, for a window of k."""
    return _average(window(kernel_size, 3), out)


@formula(
    nn.MaxPool1d,
    *named("max_pool1d", "max_pool1d_with_indices", "_max_pool1d", "quantized_max_pool1d"),
    op="max_pool",
)
def max_pool1d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, n] -> out[*, m]: k-1 compares per output, for a window of k."""
    return _maximum(window(kernel_size, 1), out)


@formula(
    *(nn.MaxPool2d, nn.FractionalMaxPool2d),
    *named("max_pool2d", "max_pool2d_with_indices", "_max_pool2d", "quantized_max_pool2d", "mkldnn_max_pool2d"),
    *named("fractional_max_pool2d", "fractional_max_pool2d_with_indices"),
    op="max_pool",
)
def max_pool2d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k-1 compares per output, for a window of k."""
    return _maximum(window(kernel_size, 2), out)


@formula(
    *(nn.MaxPool3d, nn.FractionalMaxPool3d),
    *named("max_pool3d", "max_pool3d_with_indices", "_max_pool3d", "quantized_max_pool3d", "mkldnn_max_pool3d"),
    *named("fractional_max_pool3d", "fractional_max_pool3d_with_indices"),
    op="max_pool",
)
def max_pool3d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k-1 compares per output, for a window of k."""
    return _maximum(window(kernel_size, 3), out)


@formula(
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *named("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *named("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "mkldnn_adaptive_avg_pool2d"),
)
def adaptive_avg_pool(input: Spec, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k-1 adds and 1 divide per output, where output i has the window n*i//m .. ceil(n*(i+1)/m)."""
    return Cost(adds=max(adaptive_window_elements(input, out) - out.numel(), 0), others=out.numel())


@formula(
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *named("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *named("adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices"),
)
def adaptive_max_pool(input: Spec, *, out: Any) -> Cost:
    """input[*, n] -> out[*, m]: k-1 compares per output, where output i has the window n*i//m .. ceil(n*(i+1)/m)."""
    return Cost(others=max(adaptive_window_elements(input, first(out)) - first(out).numel(), 0))


@formula(nn.LPPool1d, *named("lp_pool1d"), op="lp_pool")
def lp_pool1d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k powers, k-1 adds and 1 root per output, for a window of k."""
    return _norm(norm_type, window(kernel_size, 1), out)


@formula(nn.LPPool2d, *named("lp_pool2d"), op="lp_pool")
def lp_pool2d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k powers, k-1 adds and 1 root per output, for a window of k."""
    return _norm(norm_type, window(kernel_size, 2), out)


@formula(nn.LPPool3d, *named("lp_pool3d"), op="lp_pool")
def lp_pool3d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k powers, k-1 adds and 1 root per output, for a window of k."""
    return _norm(norm_type, window(kernel_size, 3), out)


zero(
    "move",
    *(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d),
    *named("max_unpool1d", "max_unpool2d", "max_unpool3d"),
    op="max_unpool",
)


def window(kernel_size: Any, dims: int) -> int:
    """Elements in a window given as one length for all ``dims``, or as a tuple of one or of ``dims`` lengths."""
    lengths: tuple[int, ...] = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
    return math.prod(lengths * dims if len(lengths) == 1 else lengths)


def adaptive_window_elements(input: Spec, out: Spec) -> int:
    """Elements of all windows together. A dim that keeps its length has windows of 1: batch and channels need no care."""
    return math.prod(
        sum((n * (i + 1) + m - 1) // m - n * i // m for i in range(m)) if n != m else n
        for n, m in zip(input, out, strict=True)
    )


def _average(k: int, out: Spec) -> Cost:
    return Cost(adds=(k - 1) * out.numel(), others=out.numel())


def _maximum(k: int, out: Any) -> Cost:
    return Cost(others=(k - 1) * first(out).numel())


def _norm(norm_type: float, k: int, out: Spec) -> Cost:
    each = Cost(others=k + k - 1) if math.isinf(norm_type) else Cost(adds=k - 1, others=k + 1)
    return times(out.numel(), each)
