"""Gradients of torchvision's own operators, counted as vision.py counts them forward: places and weights of samples aside."""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._cost import contraction, times
from ._registry import formula
from .vision import SAMPLE

SPREAD = Cost(muls=4, adds=4)
"""A value given back to the four pixels it came from."""


@formula("torchvision::_roi_align_backward")
def roi_align_backward(
    grad: Spec,
    rois: Spec,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    *,
    out: Spec,
) -> Cost:
    """grad[k, c, y, x], rois[k, 5] -> out[n, c, h, w]: 1 divide per element of grad, s*s samples of 4 multiplies and 4 adds.

    Where the sampling ratio s is left to the size of each box, a box is taken to be the whole plane, as in roi_align.
    """
    samples = sampling_ratio**2 if sampling_ratio > 0 else -(-height // pooled_height) * -(-width // pooled_width)
    return times(grad.numel() * samples, SPREAD).plus(Cost(others=grad.numel()))


@formula("torchvision::_ps_roi_align_backward", op="roi_align_backward")
def ps_roi_align_backward(
    grad: Spec,
    rois: Spec,
    channel_mapping: Spec,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    *,
    out: Spec,
) -> Cost:
    """grad[k, c, y, x], rois[k, 5] -> out[n, c, h, w]: as _roi_align_backward."""
    sizes = pooled_height, pooled_width, batch_size, channels, height, width
    return roi_align_backward(grad, rois, spatial_scale, *sizes, sampling_ratio, out=out)


@formula("torchvision::_roi_pool_backward")
def roi_pool_backward(grad: Spec, *, out: Spec) -> Cost:
    """grad[k, c, y, x], argmax[k, c, y, x] -> out[n, c, h, w]: 1 add per element of grad, to where its maximum was."""
    return Cost(adds=grad.numel())


@formula("torchvision::_deform_conv2d_backward")
def deform_conv2d_backward(
    grad: Spec,
    input: Spec,
    weight: Spec,
    offset: Spec,
    mask: Spec,
    bias: Spec,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
    *,
    out: Any,
) -> Cost:
    """grad[n, o, y, x], x[n, g*i, h, w], weight[o, i, *k] -> out[n, g*i, h, w], out_weight, out_offset, out_mask, out_bias: 2 contractions.

    Samples and their gradients, of i*g*prod(k) per place, are contractions with the weight and with grad. Each goes to
    4 pixels (8), and to its 2 offsets by the derivative of its weights (4 multiplies, 3 adds, 1 multiply by its own
    gradient, summed over the channels); with a mask 1 multiply, and to the mask 1 multiply, summed over the channels.
    """
    n, o, *places = grad
    at = n * math.prod(places)
    samples = at * input[1] * math.prod(weight[2:])
    products = contraction(o // groups, samples).plus(contraction(at, weight.numel()))
    to_offset = times(2 * samples, SAMPLE.plus(Cost(muls=1, adds=1))).plus(Cost(adds=-offset.numel()))
    to_mask = Cost(muls=2 * samples, adds=samples - mask.numel()) if use_mask else Cost()
    return products.plus(times(samples, SPREAD)).plus(to_offset).plus(to_mask).plus(Cost(adds=(at - 1) * o))
