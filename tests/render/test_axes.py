"""Axes: positions in proportion, and labels at round values."""

from __future__ import annotations

import pytest

from fxflops.render.axes import Axis


def test_a_linear_axis_is_in_proportion() -> None:
    axis = Axis(0, 200)
    assert [axis.place(value) for value in (0, 50, 200)] == [0, 25, 100]


def test_a_logarithmic_axis_gives_each_factor_the_same_room() -> None:
    axis = Axis(1, 1000, is_log=True)
    assert [axis.place(value) for value in (1, 10, 100)] == pytest.approx([0, 100 / 3, 200 / 3])


def test_values_that_span_a_factor_of_20_are_logarithmic_with_room_beside_them() -> None:
    close, far = Axis.around([1, 2, 3]), Axis.around([1, 10, 100])
    assert close.place(2) == pytest.approx(50)
    assert far.place(10) == pytest.approx(50)
    for axis, ends in ((close, (1, 3)), (far, (1, 100))):
        assert 0 < axis.place(ends[0]) < 10
        assert 90 < axis.place(ends[1]) < 100


def test_a_margin_does_not_reach_below_zero() -> None:
    assert Axis.around([0, 10]).place(0) == 0


@pytest.mark.parametrize("high", [3, 7, 10, 99, 1000, 12345.6])
def test_ticks_are_few_round_and_on_the_axis(high: float) -> None:
    ticks = Axis(0, high).ticks()
    assert 3 <= len(ticks) <= 9
    assert ticks[0] == 0
    assert ticks[-1] <= high


def test_bytes_have_ticks_at_powers_of_two() -> None:
    assert Axis(0, 5 * 2**20, in_bytes=True).ticks() == [n * 2**20 for n in range(6)]
    assert Axis(2**10, 2**13, is_log=True, in_bytes=True).ticks() == [2**10, 2**11, 2**12, 2**13]
