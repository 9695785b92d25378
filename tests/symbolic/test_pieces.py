"""Periods and pieces of costs written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fxflops.symbolic.pieces import Costs, Sample, period_and_pieces

KEY = "forward", "", "op"


def costs_of(cost: Callable[[int], int | None]) -> Costs:
    def costs(length: int) -> Sample | None:
        found = cost(length)
        return None if found is None else {KEY: (found,)}

    return costs


def found(cost: Callable[[int], int | None], example: int, low: int = 1, high: int = 3000) -> object:
    result = period_and_pieces(costs_of(cost), example, low, high)
    return result and (result[0], [(piece.first, piece.last) for piece in result[1]])


@pytest.mark.parametrize("cost", [lambda n: 7, lambda n: 3 * n, lambda n: n**4 - n, lambda n: n * (n + 1) // 2])
def test_a_polynomial_is_one_piece(cost: Callable[[int], int]) -> None:
    assert found(cost, 100) == (1, [(1, 3000)])
    assert found(cost, 3000) == (1, [(1, 3000)])  # there are no lengths above the example


@pytest.mark.parametrize("stride", [2, 3, 16, 32, 224])
def test_rounding_has_the_period_of_the_stride(stride: int) -> None:
    assert found(lambda n: -((-n // stride) ** 2), 224 * 3) == (stride, [(stride, 3000 // stride * stride)])


def test_the_period_is_found_where_the_example_is_no_multiple() -> None:
    assert found(lambda n: n // 16, 225) == (16, [(1, 2993)])


def test_a_stride_is_found_in_a_short_range() -> None:
    def outputs(n: int) -> int | None:  # of a kernel of 7 with stride 3
        return (n - 7) // 3 + 1 if n >= 7 else None

    assert found(outputs, 34, high=256) == (3, [(7, 256)])


@pytest.mark.parametrize("high", [600, 4096])
@pytest.mark.parametrize("example", [33, 100])
@pytest.mark.parametrize("remainder", [0, 1, -1])
@pytest.mark.parametrize("number", [2, 3, 5, 6, 7, 8, 16, 24, 64])
def test_another_way_at_some_multiples_is_not_missed(number: int, remainder: int, example: int, high: int) -> None:
    def is_other(n: int) -> bool:
        return (n - remainder) % number == 0

    result = period_and_pieces(costs_of(lambda n: 3 * n + n * is_other(n)), example, 1, high)
    assert result is not None
    period, pieces = result
    for piece in pieces:
        assert len({is_other(n) for n in range(piece.first, piece.last + 1, period)}) == 1


def test_lengths_that_recur_are_found_by_one_that_was_met() -> None:
    assert found(lambda n: n + (n % 11 == 0), 64) == (11, [(9, 2990)])
    assert found(lambda n: n + (n % 100 == 0), 100) == (100, [(100, 3000)])
    assert found(lambda n: 2 * n + (n == 100), 100) == (1, [(1, 99), (100, 100), (101, 3000)])  # it does not recur


def test_a_window_makes_two_pieces() -> None:
    assert found(lambda n: n * min(n, 1000), 64) == (1, [(1, 1000), (1001, 3000)])
    assert found(lambda n: n * min(n, 1000), 2048) == (1, [(1, 999), (1000, 3000)])  # both are right at 1000


def test_one_length_may_be_a_piece() -> None:
    assert found(lambda n: n + (n == 1), 64) == (1, [(1, 1), (2, 3000)])


def test_a_piece_ends_where_the_model_raises() -> None:
    assert found(lambda n: None if n > 512 or n < 9 else n, 64) == (1, [(9, 512)])


def test_what_is_no_polynomial_below_holds_from_there_on() -> None:
    assert found(lambda n: n * -(-max(1000, n) // n), 1024) == (1, [(1000, 3000)])
    assert found(lambda n: n // 16 * -(-max(1000, n) // n), 1024) == (16, [(1008, 2992)])


def test_no_polynomial_has_no_pieces() -> None:
    assert found(lambda n: 2 ** n.bit_count() + n % 7, 64) is None
    assert found(lambda n: 2 ** n.bit_count(), 8, high=400) is None
