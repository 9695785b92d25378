"""Normalizations count, for each element, subtracting the mean, dividing by the deviation, the weight and the bias.

Computing the mean and the deviation is NOT counted, not even in training, and not for layer_norm, which always computes them.
torch_flops counts this way (https://github.com/zugexiaodui/torch_flops), and its published totals depend on it.

Gradients also flow through the mean and the deviation, whose values the forward saved. With X = (x - mean) / std and
G = grad * weight, the input's gradient is (G - mean(G) - X * mean(G * X)) / std. Each mean is over the same elements as in the
forward (https://arxiv.org/abs/1607.06450). The weight's gradient is the sum of grad * X, and the bias's gradient is the sum of grad.
Only requested gradients are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from ._extend import ANY, Cost, Spec, Specs, Strided, first, fits, formula, named, rows_of, summed, times, when
from .reduce import norm


@formula(nn.LayerNorm, *named("layer_norm", "native_layer_norm"))
def layer_norm(input: Spec, *, weight: Spec | None = None, bias: Spec | None = None, out: Any) -> Cost:
    """input[*, k], weight[k], bias[k] -> out[*, k]: 2 per output, plus 1 with a weight and 1 with a bias."""
    return normalized(out, weight, bias)


def moments(
    tensors: Sequence[Strided], out: Spec, input: Spec, normalized_shape: Any, *args: Any, **kwargs: Any
) -> Specs:
    """Return the result, and the mean and deviation of each row, which the kernel also returns."""
    row = per_row(input, normalized_shape)
    return out, row, row


def per_row(input: Spec, normalized_shape: Sequence[int]) -> Spec:
    """Return the spec of a tensor with one number per normalized row."""
    dims = len(normalized_shape)
    return Spec((*input[:-dims], *[1] * dims), input.dtype)


@layer_norm.shape(nn.LayerNorm, F.layer_norm, layout=ANY, alive_at_peak=moments)
def layer_norm_shape(
    input: Spec, normalized_shape: Sequence[int], weight: Spec | None = None, bias: Spec | None = None
) -> Spec | None:
    """x[*, *n] -> out[*, *n], or None if weight or bias has another shape or dtype."""
    sizes = tuple(normalized_shape)
    if not sizes or tuple(input[-len(sizes) :]) != sizes or not input.dtype.is_floating_point or not input.numel():
        return None
    fit = all(w is None or (tuple(w) == sizes and w.dtype is input.dtype) for w in (weight, bias))
    return Spec(input, input.dtype) if fit else None


@layer_norm.backward(*named("native_layer_norm_backward"))
def layer_norm_backward(
    *, input: Spec, normalized_shape: Sequence[int], weight: Spec | None, output_mask: Sequence[bool], out: Any
) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k], out_bias[k]: 13 per element, minus 1 per element of weight and of bias."""
    k = math.prod(normalized_shape)
    return normalized_backward(input, k, k, weight, output_mask)


@formula(nn.GroupNorm, *named("group_norm", "native_group_norm"))
def group_norm(input: Spec, *, weight: Spec | None = None, bias: Spec | None = None, out: Any) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: 2 per output, plus 1 with a weight and 1 with a bias."""
    return normalized(out, weight, bias)


def group_moments(
    tensors: Sequence[Strided], out: Spec, input: Spec, num_groups: int, *args: Any, **kwargs: Any
) -> Specs:
    """Return the result, and the mean and deviation of each group, which the kernel also returns."""
    group = Spec((input[0], num_groups), out.dtype)
    return out, group, group


@group_norm.shape(nn.GroupNorm, F.group_norm, alive_at_peak=group_moments)
def group_norm_shape(input: Spec, num_groups: int, weight: Spec | None = None, bias: Spec | None = None) -> Spec | None:
    """x[n, c, *] -> out[n, c, *], or None if weight or bias has another shape or dtype."""
    if input.ndim < 3 or not input.dtype.is_floating_point or input[1] % num_groups or input.numel() <= input[1]:
        return None
    return Spec(input, input.dtype) if all(fits(w, input[1], input) for w in (weight, bias)) else None


@group_norm.backward(*named("native_group_norm_backward"))
def group_norm_backward(
    *, input: Spec, weight: Spec | None, C: int, HxW: int, group: int, output_mask: Sequence[bool], out: Any
) -> Cost:
    """grad[n, c, *], x[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: counted like layer_norm_backward, with groups as rows."""
    return normalized_backward(input, C * HxW // group, C, weight, output_mask)


@formula(nn.RMSNorm, *named("rms_norm", "_fused_rms_norm"))
def rms_norm(input: Spec, *, weight: Spec | None = None, out: Any) -> Cost:
    """input[*, k], weight[k] -> out[*, k]: 1 divide per output, plus 1 multiply with a weight."""
    return times(first(out).numel(), Cost(muls=0 if weight is None else 1, others=1))


def squares(
    tensors: Sequence[Strided],
    out: Spec,
    input: Spec,
    normalized_shape: Any,
    weight: Spec | None = None,
    *args: Any,
    device: str,
    **kwargs: Any,
) -> Specs | None:
    """Return the result and the deviation of each row; on a CPU, also the result before the multiply by the weight.

    A CPU computes step by step. Without a weight, the memory peak is earlier: at the squares, their means and the deviations. Return None
    for half precision on a CPU.
    """
    row = per_row(input, normalized_shape)
    if device == "cuda":  # one kernel
        return out, row
    if out.dtype.itemsize < FULL:
        return None
    return (out, row, row) if weight is None else (out, out, row)


FULL = 4
"""The bytes of an element in single precision."""


@rms_norm.shape(nn.RMSNorm, F.rms_norm, alive_at_peak=squares)
def rms_norm_shape(input: Spec, normalized_shape: Sequence[int], weight: Spec | None = None) -> Spec | None:
    """x[*, *n] -> out[*, *n]."""
    return layer_norm_shape(input, normalized_shape, weight)


@rms_norm.backward(*named("_fused_rms_norm_backward"))
def rms_norm_backward(
    *, input: Spec, normalized_shape: Sequence[int], weight: Spec | None, output_mask: Sequence[bool], out: Any
) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k]: counted like layer_norm_backward without the means of x and grad."""
    k = math.prod(normalized_shape)
    return normalized_backward(input, k, k, weight, (*output_mask, False), centered=False)


@formula(nn.LocalResponseNorm, *named("local_response_norm"))
def local_response_norm(input: Spec, size: int, *, out: Spec) -> Cost:
    """input[n, c, *] -> out[n, c, *]: size+4 per output.

    x / (k + alpha/size * sum of size squares) ** beta: 2 multiplies, size adds, 1 power, 1 divide.
    """
    return Cost(muls=2 * out.numel(), adds=size * out.numel(), others=2 * out.numel())


@formula(*named("_weight_norm", "_weight_norm_interface"))
def weight_norm(v: Spec, g: Spec, *, out: Any) -> Cost:
    """v[*, k], g[k] -> out[*, k]: the norm of each slice, 1 divide of g by the norm, and 1 multiply per output."""
    return norm(v, 2, out=g).plus(Cost(muls=v.numel(), others=g.numel()))


@weight_norm.backward(*named("_weight_norm_interface_backward"))
def weight_norm_backward(*, saved_v: Spec, saved_norms: Spec, out: Any) -> Cost:
    """grad[n, *], v[n, *], g[n], norms[n] -> out_v[n, *], out_g[n]: 5 per element and 3 per row, for w = g * v / norm.

    s = sum of grad * v; out_g = s / norm; out_v = g / norm * (grad - v * s / (norm * norm)).
    """
    n, rows = saved_v.numel(), saved_norms.numel()
    return Cost(muls=3 * n + rows, adds=max(n - rows, 0) + n, others=3 * rows)


def normalized(out: Any, weight: Spec | None, bias: Spec | None, centered: bool = True) -> Cost:
    """Return the cost, for each element, of a division, the weight and the bias, and of subtracting the mean if ``centered``."""
    each = Cost(muls=0 if weight is None else 1, adds=centered + (bias is not None), others=1)
    return times(first(out).numel(), each)


def normalized_backward(
    input: Spec, k: int, weights: int, weight: Spec | None, mask: Sequence[bool], centered: bool = True
) -> Cost:
    """Return the cost of a norm's gradients over rows of ``k`` elements. ``weights`` is the number of elements of the weight, and of the bias."""
    n, rows = input.numel(), rows_of(input.numel(), k)
    to_input, to_weight, to_bias = mask
    means = times(1 + centered, Cost(adds=max(n - rows, 0), others=rows))
    return summed(
        when(to_input or to_weight, Cost(muls=n, adds=n * centered)),
        when(to_input, means.plus(Cost(muls=(3 + (weight is not None)) * n, adds=(1 + centered) * n))),
        when(to_weight, Cost(muls=n, adds=max(n - weights, 0))),
        when(to_bias, Cost(adds=max(n - weights, 0))),
    )
