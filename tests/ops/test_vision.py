"""torchvision's operators and their gradients, by hand and against counting numbers. They are found by name: it need not be installed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fxflops.records import Cost, Spec
from tests.oracle import cost_by_name, numbers, tallying


def test_roi_align_averages_samples_between_four_pixels():
    outputs = 5 * 3 * 2 * 2
    with tallying() as tally:
        samples = np.sum(numbers(outputs, 4, 4) * numbers(outputs, 4, 4), axis=2)
        samples.sum(axis=1) / 4
    given = Spec((1, 3, 16, 16)), Spec((5, 5)), 0.5, 2, 2
    assert tally == cost_by_name("torchvision::roi_align", *given, 2, True, out=Spec((5, 3, 2, 2)))
    adaptive = cost_by_name("torchvision::roi_align", *given, -1, True, out=Spec((5, 3, 2, 2)))
    assert adaptive.muls == outputs * (8 * 8) * 4


def test_deformable_convolution_is_a_convolution_of_samples():
    pixels, taps = 2 * 6 * 6, 3 * 3
    with tallying() as tally:
        samples = np.sum(numbers(pixels, 4 * taps, 4) * numbers(pixels, 4 * taps, 4), axis=2)
        samples = samples * numbers(pixels, 4 * taps)
        samples @ numbers(4 * taps, 8) + numbers(8)
    given = Spec((2, 4, 8, 8)), Spec((8, 4, 3, 3)), Spec((2, 18, 6, 6)), Spec((2, 9, 6, 6)), Spec((8,))
    result = cost_by_name("torchvision::deform_conv2d", *given, 1, 1, 0, 0, 1, 1, 1, 1, True, out=Spec((2, 8, 6, 6)))
    assert tally == result
    assert result.macs == pixels * 8 * (4 * taps)


def test_nms_compares_every_pair_of_boxes():
    """4 areas of 3 operations for 4 boxes, and 13 operations for each of 6 pairs."""
    assert cost_by_name("torchvision::nms", Spec((4, 4)), Spec((4,)), 0.5, out=Spec((2,))).flops == 4 * 3 + 6 * 13


BOXES, CHANNELS, POOLED = 3, 8, 2
IMAGE = Spec((2, CHANNELS, 10, 8))
ROIS = Spec((BOXES, 5))
GRAD = Spec((BOXES, CHANNELS, POOLED, POOLED))
N = BOXES * CHANNELS * POOLED * POOLED


@pytest.mark.parametrize(("ratio", "samples"), [(3, 3 * 3), (-1, 5 * 4)])
def test_roi_align_gives_each_sample_back_to_four_pixels(ratio: int, samples: int) -> None:
    """Without a ratio, the 10x8 plane has bins of 5x4 samples."""
    expected = Cost(muls=4 * N * samples, adds=4 * N * samples, others=N)
    args = GRAD, ROIS, 1.0, POOLED, POOLED, *IMAGE, ratio, False
    assert cost_by_name("torchvision::_roi_align_backward", *args, out=IMAGE) == expected
    args = GRAD, ROIS, GRAD, 1.0, POOLED, POOLED, ratio, *IMAGE
    assert cost_by_name("torchvision::_ps_roi_align_backward", *args, out=IMAGE) == expected


def bins_of(length: int) -> list[range]:
    """The bins that torchvision cuts a box of this length into."""
    return [range(math.floor(i * length / POOLED), math.ceil((i + 1) * length / POOLED)) for i in range(POOLED)]


@pytest.mark.parametrize(("op", "is_mean"), [("roi_pool", False), ("ps_roi_pool", True)])
@pytest.mark.parametrize("plane", [(10, 8), (7, 5)])
def test_roi_pools_look_at_each_element_of_their_bins(op: str, is_mean: bool, plane: tuple[int, int]) -> None:
    with tallying() as tally:
        for rows, columns in itertools.product(*map(bins_of, plane)):
            for _ in range(BOXES * CHANNELS):
                first, *rest = numbers(len(rows), len(columns)).ravel()
                for other in rest:
                    first = first + other if is_mean else first.compare(other)
                if is_mean:
                    first / 4
    image = Spec((2, CHANNELS * POOLED**2 if is_mean else CHANNELS, *plane))
    assert tally == cost_by_name(f"torchvision::{op}", image, ROIS, 1.0, POOLED, POOLED, out=(GRAD, GRAD))


@pytest.mark.parametrize("plane", [(10, 8), (7, 5)])
def test_ps_roi_pool_gives_each_element_of_a_bin_its_share(plane: tuple[int, int]) -> None:
    inside = sum(len(rows) * len(columns) for rows, columns in itertools.product(*map(bins_of, plane)))
    image = Spec((2, CHANNELS * POOLED**2, *plane))
    args = GRAD, ROIS, GRAD, 1.0, POOLED, POOLED, *image
    expected = Cost(adds=BOXES * CHANNELS * inside, others=N)
    assert cost_by_name("torchvision::_ps_roi_pool_backward", *args, out=image) == expected


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
