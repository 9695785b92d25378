"""Gradients of torchvision's operators, by factors written out."""

from __future__ import annotations

import pytest

from fxflops.records import Cost, Spec
from tests.oracle import cost_by_name

BOXES, CHANNELS, POOLED = 3, 8, 2
IMAGE = Spec((2, CHANNELS, 10, 8))
ROIS = Spec((BOXES, 5))
GRAD = Spec((BOXES, CHANNELS, POOLED, POOLED))
N = BOXES * CHANNELS * POOLED * POOLED


@pytest.mark.parametrize(("ratio", "samples"), [(3, 3 * 3), (-1, 5 * 4)])
def test_roi_align_gives_each_sample_back_to_four_pixels(ratio: int, samples: int) -> None:
    """Without a ratio the plane of 10x8 in bins of 5x4."""
    expected = Cost(muls=4 * N * samples, adds=4 * N * samples, others=N)
    args = GRAD, ROIS, 1.0, POOLED, POOLED, *IMAGE, ratio, False
    assert cost_by_name("torchvision::_roi_align_backward", *args, out=IMAGE) == expected
    args = GRAD, ROIS, GRAD, 1.0, POOLED, POOLED, ratio, *IMAGE
    assert cost_by_name("torchvision::_ps_roi_align_backward", *args, out=IMAGE) == expected


def test_roi_pool_gives_each_maximum_back() -> None:
    args = GRAD, ROIS, GRAD, 1.0, POOLED, POOLED, *IMAGE
    assert cost_by_name("torchvision::_roi_pool_backward", *args, out=IMAGE) == Cost(adds=N)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 4)])
def test_deform_conv(masked: bool, groups: int, offset_groups: int) -> None:
    batch, inputs, outputs, taps, places = 2, 8, 6, 3 * 3, 5 * 4
    samples = batch * inputs * taps * places
    weight = Spec((outputs, inputs // groups, 3, 3))
    to_samples = samples * (outputs // groups)
    to_weight = weight.numel() * batch * places
    offsets, masks = (batch * many * offset_groups * taps * places for many in (2, 1))
    expected = Cost(
        macs=to_samples + to_weight,
        muls=to_samples + to_weight + 4 * samples + 2 * samples * (4 + 1) + 2 * samples * masked,
        adds=(to_samples - samples)
        + (to_weight - weight.numel())
        + 4 * samples
        + (2 * samples * (3 + 1) - offsets)
        + (samples - masks) * masked
        + (batch * places - 1) * outputs,
    )
    image, grad = Spec((batch, inputs, 7, 6)), Spec((batch, outputs, 5, 4))
    offset, mask = Spec((batch, 2 * offset_groups * taps, 5, 4)), Spec((batch, offset_groups * taps, 5, 4))
    given = grad, image, weight, offset, mask, Spec((outputs,)), 1, 1, 0, 0, 1, 1, groups, offset_groups, masked
    out = image, weight, offset, mask, Spec((outputs,))
    assert cost_by_name("torchvision::_deform_conv2d_backward", *given, out=out) == expected
