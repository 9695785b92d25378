"""Pooling: averages, maxima and norms over windows. Full windows are counted, even at padded borders.

The gradient of an average is added to its whole window. The gradient of a maximum is added at the maximum's position.

An int as kernel size means this length in every dim. (torch_flops reads an int as a one-dimensional window.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import (
    FORMAT,
    Cost,
    Sizes,
    Spec,
    Specs,
    Strided,
    contiguous,
    each,
    first,
    formula,
    named,
    times,
    unwatched,
    zero,
)


@formula(nn.AvgPool1d, *named("avg_pool1d"), op="avg_pool")
def avg_pool1d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k-1 adds and 1 divide per output, with windows of k elements."""
    return _average(window(kernel_size, 1), out)


@formula(nn.AvgPool2d, *named("avg_pool2d"), op="avg_pool")
def avg_pool2d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k-1 adds and 1 divide per output, with windows of k elements."""
    return _average(window(kernel_size, 2), out)


@avg_pool2d.shape(nn.AvgPool2d, F.avg_pool2d, layout=FORMAT)
def avg_pool2d_shape(
    input: Spec,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], or None with ``divisor_override``."""
    return None if divisor_override is not None else pooled(2, input, kernel_size, stride, padding, 1, ceil_mode)


@avg_pool2d.backward(*named("avg_pool2d_backward"), op="avg_pool_backward")
def avg_pool2d_backward(grad_output: Spec, input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """grad[*, y, x] -> out[*, h, w]: 1 divide and k adds per element of grad, minus 1 add per output."""
    return _average_backward(grad_output, window(kernel_size, 2) * grad_output.numel(), out)


@formula(nn.AvgPool3d, *named("avg_pool3d"), op="avg_pool")
def avg_pool3d(input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k-1 adds and 1 divide per output, with windows of k elements."""
    return _average(window(kernel_size, 3), out)


@avg_pool3d.backward(*named("avg_pool3d_backward"), op="avg_pool_backward")
def avg_pool3d_backward(grad_output: Spec, input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """grad[*, z, y, x] -> out[*, d, h, w]: 1 divide and k adds per element of grad, minus 1 add per output."""
    return _average_backward(grad_output, window(kernel_size, 3) * grad_output.numel(), out)


@formula(
    nn.MaxPool1d, *named("max_pool1d", "max_pool1d_with_indices", "_max_pool1d", "quantized_max_pool1d"), op="max_pool"
)
def max_pool1d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, n] -> out[*, m]: k-1 compares per output, with windows of k elements."""
    return _maximum(window(kernel_size, 1), out)


@unwatched(torch.max_pool1d, F.max_pool1d)
def unindexed(tensors: Sequence[Strided], input: Spec, *_: Any, needs_grad: bool, **__: Any) -> Specs | None:
    """Return (), or the copy of a non-contiguous input, because no indices are kept. Return None if autograd needs the indices."""
    sizes, strides = tensors[0]
    if needs_grad:
        return None
    return () if strides == contiguous(sizes) else (Spec(input, input.dtype),)


def indexed(tensors: Sequence[Strided], out: Spec, *args: Any, **kwargs: Any) -> Specs:
    """Return the maxima and their indices, which the kernel also writes."""
    return out, Spec(out, torch.int64)


@formula(
    *(nn.MaxPool2d, nn.FractionalMaxPool2d),
    *named("max_pool2d", "max_pool2d_with_indices", "_max_pool2d", "quantized_max_pool2d", "mkldnn_max_pool2d"),
    *named("fractional_max_pool2d", "fractional_max_pool2d_with_indices"),
    op="max_pool",
)
def max_pool2d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k-1 compares per output, with windows of k elements."""
    return _maximum(window(kernel_size, 2), out)


@max_pool2d.shape(nn.MaxPool2d, F.max_pool2d, torch.max_pool2d, layout=FORMAT, alive_at_peak=indexed)
def max_pool2d_shape(
    input: Spec,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], or None with ``return_indices``."""
    return None if return_indices else pooled(2, input, kernel_size, stride, padding, dilation, ceil_mode)


@formula(
    *(nn.MaxPool3d, nn.FractionalMaxPool3d),
    *named("max_pool3d", "max_pool3d_with_indices", "_max_pool3d", "quantized_max_pool3d", "mkldnn_max_pool3d"),
    *named("fractional_max_pool3d", "fractional_max_pool3d_with_indices"),
    op="max_pool",
)
def max_pool3d(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k-1 compares per output, with windows of k elements."""
    return _maximum(window(kernel_size, 3), out)


@formula(
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *named("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *named("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "mkldnn_adaptive_avg_pool2d"),
)
def adaptive_avg_pool(input: Spec, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k-1 adds and 1 divide per output, where output i has the window n*i//m .. ceil(n*(i+1)/m)."""
    return Cost(adds=max(adaptive_window_elements(input, out) - out.numel(), 0), others=out.numel())


@adaptive_avg_pool.shape(nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, layout=FORMAT)
def adaptive_avg_pool2d_shape(input: Spec, output_size: Any) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *output_size], where a None in ``output_size`` keeps the input's size."""
    wanted = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)
    if input.ndim != 4 or len(wanted) != 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    sizes = [s if w is None else w for s, w in zip(input[2:], wanted, strict=True)]
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None


@adaptive_avg_pool.backward(
    *named("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward"),
    *named("mkldnn_adaptive_avg_pool2d_backward"),
)
def adaptive_avg_pool_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, m] -> out[*, n]: 1 divide and k adds per element of grad with a window of k, minus 1 add per output."""
    return _average_backward(grad_output, adaptive_window_elements(out, grad_output), out)


@formula(
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *named("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *named("adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices"),
)
def adaptive_max_pool(input: Spec, *, out: Any) -> Cost:
    """input[*, n] -> out[*, m]: k-1 compares per output, where output i has the window n*i//m .. ceil(n*(i+1)/m)."""
    return Cost(others=max(adaptive_window_elements(input, first(out)) - first(out).numel(), 0))


@max_pool2d.backward(
    *named("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
    *named("max_pool2d_backward", "mkldnn_max_pool2d_backward", "mkldnn_max_pool3d_backward"),
    *named("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    op="max_pool_backward",
)
@adaptive_max_pool.backward(
    *named("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"), op="adaptive_max_pool_backward"
)
def max_pool_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, m], indices[*, m] -> out[*, n]: 1 add per element of grad, at its maximum's position."""
    return Cost(adds=grad_output.numel())


@formula(nn.LPPool1d, *named("lp_pool1d"), op="lp_pool")
def lp_pool1d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, n] -> out[*, m]: k powers, k-1 adds and 1 root per output, with windows of k elements."""
    return _norm(norm_type, window(kernel_size, 1), out)


@formula(nn.LPPool2d, *named("lp_pool2d"), op="lp_pool")
def lp_pool2d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, h, w] -> out[*, y, x]: k powers, k-1 adds and 1 root per output, with windows of k elements."""
    return _norm(norm_type, window(kernel_size, 2), out)


@formula(nn.LPPool3d, *named("lp_pool3d"), op="lp_pool")
def lp_pool3d(input: Spec, norm_type: float, kernel_size: Any, *, out: Spec) -> Cost:
    """input[*, d, h, w] -> out[*, z, y, x]: k powers, k-1 adds and 1 root per output, with windows of k elements."""
    return _norm(norm_type, window(kernel_size, 3), out)


zero(
    "move",
    *(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d),
    *named("max_unpool1d", "max_unpool2d", "max_unpool3d"),
    op="max_unpool",
)


def window(kernel_size: Any, dims: int) -> int:
    """Return the number of elements in a window with ``dims`` dimensions. ``kernel_size`` is an int, or a tuple of 1 or ``dims`` ints."""
    return math.prod(each(kernel_size, dims))


def adaptive_window_elements(input: Spec, out: Spec) -> int:
    """Return the number of elements in all windows together. A dim that keeps its length, e.g. batch or channels, has windows of 1."""
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


def _average_backward(grad_output: Spec, added: int, out: Spec) -> Cost:
    return Cost(adds=max(added - out.numel(), 0), others=grad_output.numel())


def pooled(
    dims: int, input: Spec, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], m = (s + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down.

    With ``ceil_mode``, m is rounded up if the last window then starts inside the input or its left padding.
    """
    if input.ndim != dims + 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    sizes = []
    kernel, pads, gaps = each(kernel_size, dims), each(padding, dims), each(dilation, dims)
    steps = kernel if stride is None or stride == () or stride == [] else each(stride, dims)
    for s, k, step, p, d in zip(input[2:], kernel, steps, pads, gaps, strict=True):
        if p > k // 2 or step < 1:
            return None
        size = (s + 2 * p - d * (k - 1) - 1 + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (size - 1) * step >= s + p:
            size -= 1
        sizes.append(size)
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None
