"""torchvision's own operators: regions of interest, deformable convolution, boxes.

Arguments: https://docs.pytorch.org/vision/stable/ops.html. Computing the positions and weights of samples is not counted, like in
grid_sample, neither in the forward nor in the backward pass. Operators are registered by name, so torchvision need not be installed.
"""

from __future__ import annotations

import math
from typing import Any

from ._extend import Cost, Spec, contraction, first, formula, times
from .pool import adaptive_avg_pool, adaptive_max_pool, adaptive_window_elements

SAMPLE = Cost(muls=4, adds=3)
"""A value interpolated from four pixels."""

SPREAD = Cost(muls=4, adds=4)
"""A gradient added to the four pixels of its sample."""


@formula("torchvision::roi_align", "torchvision::qroi_align", "torchvision::ps_roi_align")
def roi_align(
    input: Spec,
    rois: Spec,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    *,
    out: Any,
) -> Cost:
    """input[n, c, h, w], rois[k, 5] -> out[k, c, y, x]: per output, s*s samples of 4 multiplies and 3 adds each, s*s-1 adds and 1 divide.

    If the sampling ratio s depends on the size of each box (s <= 0), each box is assumed to cover the whole image: an upper bound.
    """
    *_, h, w = input
    samples = sampling_ratio**2 if sampling_ratio > 0 else -(-h // pooled_height) * -(-w // pooled_width)
    outputs = first(out).numel()
    return times(outputs * samples, SAMPLE).plus(Cost(adds=outputs * (samples - 1), others=outputs))


@roi_align.backward("torchvision::_roi_align_backward")
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
    """grad[k, c, y, x], rois[k, 5] -> out[n, c, h, w]: per element of grad, 1 divide, and s*s samples of 4 multiplies and 4 adds each.

    If the sampling ratio s depends on the size of each box, each box is assumed to cover the whole image, like in roi_align.
    """
    samples = sampling_ratio**2 if sampling_ratio > 0 else -(-height // pooled_height) * -(-width // pooled_width)
    return times(grad.numel() * samples, SPREAD).plus(Cost(others=grad.numel()))


@roi_align.backward("torchvision::_ps_roi_align_backward", op="roi_align_backward")
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
    """grad[k, c, y, x], rois[k, 5] -> out[n, c, h, w]: counted like _roi_align_backward."""
    sizes = pooled_height, pooled_width, batch_size, channels, height, width
    return roi_align_backward(grad, rois, spatial_scale, *sizes, sampling_ratio, out=out)


@formula("torchvision::roi_pool")
def roi_pool(input: Spec, *, out: tuple[Spec, Spec]) -> Cost:
    """input[n, c, h, w], rois[k, 5] -> out[k, c, y, x], argmax[k, c, y, x]: b-1 compares per output, to find the largest of the b elements in its bin.

    Each box is assumed to cover the whole image, which gives an upper bound.
    """
    return adaptive_max_pool(_plane(input, out[0]), out=out[0])


@roi_pool.backward("torchvision::_roi_pool_backward")
def roi_pool_backward(grad: Spec, *, out: Spec) -> Cost:
    """grad[k, c, y, x], argmax[k, c, y, x] -> out[n, c, h, w]: 1 add per element of grad, at its maximum's position."""
    return Cost(adds=grad.numel())


@formula("torchvision::ps_roi_pool")
def ps_roi_pool(input: Spec, *, out: tuple[Spec, Spec]) -> Cost:
    """input[n, c*y*x, h, w], rois[k, 5] -> out[k, c, y, x], channels[k, c, y, x]: b-1 adds and 1 divide per output, for the mean of the b elements in its bin.

    Each box is assumed to cover the whole image, which gives an upper bound.
    """
    return adaptive_avg_pool(_plane(input, out[0]), out=out[0])


@ps_roi_pool.backward("torchvision::_ps_roi_pool_backward")
def ps_roi_pool_backward(grad: Spec, *, out: Spec) -> Cost:
    """grad[k, c, y, x] -> out[n, c*y*x, h, w]: 1 divide per element of grad, and 1 add for each of the b elements of its bin."""
    return Cost(adds=adaptive_window_elements(_plane(out, grad), grad), others=grad.numel())


def _plane(image: Spec, pooled: Spec) -> Spec:
    """Return the spec of the elements that the bins of a box cover if the box is the whole image."""
    return Spec((*pooled[:2], *image[2:]), image.dtype)


@formula("torchvision::deform_conv2d")
def deform_conv2d(
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
    out: Spec,
) -> Cost:
    """input[n, g*i, h, w], weight[o, i, *k] -> out[n, o, y, x]: the cost of conv with a bias, plus 7 per sample, or 8 with a mask."""
    n, _, y, x = out
    sampled = times(n * input[1] * math.prod(weight[2:]) * y * x, SAMPLE.plus(Cost(muls=0 + use_mask)))
    return contraction(math.prod(weight[1:]), out.numel(), bias=True).plus(sampled)


@deform_conv2d.backward("torchvision::_deform_conv2d_backward")
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

    The gradients of the weight and of the samples (i*g*prod(k) per position) are contractions with grad. The gradient of a
    sample is added to 4 pixels (8 operations). For each of the 2 offsets, the derivative of the sample (4 multiplies, 3 adds)
    is multiplied by the sample's gradient and summed over the channels. A mask takes 1 multiply, and its gradient takes 1
    multiply and a sum over the channels.
    """
    n, o, *places = grad
    at = n * math.prod(places)
    samples = at * input[1] * math.prod(weight[2:])
    products = contraction(o // groups, samples).plus(contraction(at, weight.numel()))
    to_offset = times(2 * samples, SAMPLE.plus(Cost(muls=1, adds=1))).plus(Cost(adds=-offset.numel()))
    to_mask = Cost(muls=2 * samples, adds=samples - mask.numel()) if use_mask else Cost()
    return products.plus(times(samples, SPREAD)).plus(to_offset).plus(to_mask).plus(Cost(adds=(at - 1) * o))


@formula("torchvision::nms")
def nms(dets: Spec, scores: Spec, iou_threshold: float, *, out: Spec) -> Cost:
    """dets[n, 4] -> out[k]: 3 for the area of each box, 13 for the overlap of each pair; an upper bound, because all pairs are counted.

    The overlap takes 4 corners (max or min), 2 lengths, 2 clamps to 0, the product of the lengths, the union (2), the quotient and
    a compare with the threshold. Sorting by score is not counted.
    """
    pairs = times(math.comb(dets[0], 2), Cost(muls=1, adds=2 + 2, others=4 + 2 + 2))
    return times(dets[0], Cost(muls=1, adds=2)).plus(pairs)
