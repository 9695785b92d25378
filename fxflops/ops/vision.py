"""torchvision's own operators: regions of interest, deformable convolution, boxes.

Their arguments: https://docs.pytorch.org/vision/stable/ops.html. Finding the places and weights of samples is not
counted, as in grid_sample. They are known by name, so that torchvision need not be installed.
"""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._cost import contraction, first, times
from ._registry import formula

SAMPLE = Cost(muls=4, adds=3)
"""A value between four pixels."""


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
    """input[n, c, h, w], rois[k, 5] -> out[k, c, y, x]: s*s samples of 4 multiplies and 3 adds, s*s-1 adds and 1 divide per output.

    Where the sampling ratio s is left to the size of each box (not above 0), a box is taken to be the whole plane: an
    upper bound.
    """
    *_, h, w = input
    samples = sampling_ratio**2 if sampling_ratio > 0 else -(-h // pooled_height) * -(-w // pooled_width)
    outputs = first(out).numel()
    return times(outputs * samples, SAMPLE).plus(Cost(adds=outputs * (samples - 1), others=outputs))


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
    """input[n, g*i, h, w], weight[o, i, *k] -> out[n, o, y, x]: conv with bias of samples, 7 each, 8 if masked."""
    n, _, y, x = out
    sampled = times(n * input[1] * math.prod(weight[2:]) * y * x, SAMPLE.plus(Cost(muls=0 + use_mask)))
    return contraction(math.prod(weight[1:]), out.numel(), bias=True).plus(sampled)


@formula("torchvision::nms")
def nms(dets: Spec, scores: Spec, iou_threshold: float, *, out: Spec) -> Cost:
    """dets[n, 4] -> out[k]: n areas of 3 operations, 13 for the overlap of each pair: an upper bound, all pairs are compared.

    A pair takes 4 corners (max, min), 2 lengths and their clamp to 0, their product, the union (2), the quotient and
    its compare with the threshold. Sorting by score is not counted.
    """
    pairs = times(math.comb(dets[0], 2), Cost(muls=1, adds=2 + 2, others=4 + 2 + 2))
    return times(dets[0], Cost(muls=1, adds=2)).plus(pairs)
