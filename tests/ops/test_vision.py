"""torchvision's operators, by hand and against counting numbers. They are found by name: none need be installed."""

from __future__ import annotations

import numpy as np

from fxflops.records import Spec
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
    """4 boxes: 4 areas of 3 operations, 6 pairs of 13."""
    assert cost_by_name("torchvision::nms", Spec((4, 4)), Spec((4,)), 0.5, out=Spec((2,))).flops == 4 * 3 + 6 * 13
