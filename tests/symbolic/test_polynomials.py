"""Polynomials through values: the coefficients that produced the values come back exactly."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy
import pytest

from fxflops.symbolic.polynomials import evaluated, extrapolation, fixed, interpolation, total, value

HALVES = {(2, 1): Fraction(1, 2), (1, 1): Fraction(1, 2), (0, 0): Fraction(7)}  # x(x + 1)/2 y + 7


def test_coefficients_come_back_from_values() -> None:
    nodes = [(1, 2, 5), (10, 42)]
    assert interpolation(nodes)([x * (x + 1) // 2 * y + 7 for x, y in product(*nodes)]) == HALVES
    assert value(HALVES, (4, 3)) == 37


def test_a_constant_has_one_term_and_zero_none() -> None:
    through = interpolation([(1, 2), (1, 2)])
    assert through([4, 4, 4, 4]) == {(0, 0): 4}
    assert through([0, 0, 0, 0]) == {}


def test_the_value_elsewhere_is_that_of_the_polynomial_through_the_values() -> None:
    nodes, cubic = (3, 7, 8, 20), [x**3 // 3 + 5 * x for x in range(0, 600, 3)]
    for at in (0, 7, 100, 199):
        weights, denominator = extrapolation(nodes, at)
        assert sum(w * cubic[node] for w, node in zip(weights, nodes, strict=True)) == denominator * cubic[at]


def test_sums_drop_what_cancels() -> None:
    assert total([{(1,): Fraction(2)}, {(1,): Fraction(-2), (0,): Fraction(1)}]) == {(0,): 1}


def test_a_variable_is_fixed() -> None:
    assert fixed(HALVES, 0, 2) == {(0, 1): 3, (0, 0): 7}


@pytest.mark.parametrize(("factor", "dtype"), [(1, "int64"), (2**50, "object")])
def test_arrays_have_the_values_of_points_where_64_bits_do_not_hold_them(factor: int, dtype: str) -> None:
    polynomial = {monomial: each * factor for monomial, each in HALVES.items()}
    xs, ys = numpy.array([1, 3, 2001]), numpy.array([7, 1, 4096])
    found = evaluated(polynomial, [xs, ys], [2001, 4096])
    assert found.dtype == dtype
    assert [*found] == [(x * (x + 1) // 2 * y + 7) * factor for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
