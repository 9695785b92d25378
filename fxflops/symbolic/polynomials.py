"""Polynomials with rational coefficients, and interpolation of values on a grid: exact, in Python's own integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

Monomial = tuple[int, ...]
"""The exponent of each variable."""
Polynomial = Mapping[Monomial, Fraction]
"""The coefficient of each monomial; none is 0."""


def total(polynomials: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials in the same variables."""
    sums: dict[Monomial, Fraction] = {}
    for each in polynomials:
        for monomial, coefficient in each.items():
            sums[monomial] = sums.get(monomial, Fraction()) + coefficient
    return {monomial: coefficient for monomial, coefficient in sums.items() if coefficient}


def integral(polynomial: Polynomial) -> tuple[dict[Monomial, int], int]:
    """Return integer coefficients and their common denominator."""
    denominator = math.lcm(*(each.denominator for each in polynomial.values()))
    return {monomial: int(each * denominator) for monomial, each in polynomial.items()}, denominator


def value(polynomial: Polynomial, point: Sequence[int]) -> Fraction:
    """Return the value at a point."""
    whole, denominator = integral(polynomial)
    return Fraction(sum(each * math.prod(map(pow, point, m)) for m, each in whole.items()), denominator)


def fixed(polynomial: Polynomial, variable: int, at: int) -> Polynomial:
    """Return the polynomial with one variable set to a number; monomials keep an exponent, 0, for it."""
    return total({(*m[:variable], 0, *m[variable + 1 :]): each * at ** m[variable]} for m, each in polynomial.items())


def interpolation(nodes: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Polynomial]:
    """Return the function from values on the grid ``product(*nodes)``, in its order, to the polynomial through them.

    Its degree in each variable is below the number of that variable's nodes.
    """
    bases = [_basis(each) for each in nodes]
    monomials = [*product(*(range(len(each)) for each in nodes))]
    # The coefficient of a monomial is a weighted sum of the values. The weights are scaled to integers, for speed.
    whole = math.lcm(*(c.denominator for basis in bases for row in basis for c in row)) ** len(nodes)
    weights = {
        monomial: [
            int(whole * math.prod(basis[i][power] for basis, i, power in zip(bases, at, monomial, strict=True)))
            for at in monomials
        ]
        for monomial in monomials
    }

    def through(values: Sequence[int]) -> Polynomial:
        sums = {monomial: sum(map(int.__mul__, row, values)) for monomial, row in weights.items()}
        return {monomial: Fraction(each, whole) for monomial, each in sums.items() if each}

    return through


@lru_cache(4096)
def extrapolation(nodes: tuple[int, ...], at: int) -> tuple[list[int], int]:
    """Return integer weights of the values at some lengths, and the divisor of their weighted sum, which is the value at another
    length of the polynomial through them.

    The polynomial itself is not built: its fractions would take most of the time of a comparison.
    """
    exact = [
        math.prod((Fraction(at - other, node - other) for other in nodes if other != node), start=Fraction(1))
        for node in nodes
    ]
    denominator = math.lcm(*(each.denominator for each in exact))
    return [int(each * denominator) for each in exact], denominator


def _basis(nodes: Sequence[int]) -> list[list[Fraction]]:
    """Return the coefficients, lowest power first, of each polynomial that is 1 at one node and 0 at the others."""
    rows = []
    for node in nodes:
        row = [Fraction(1)]
        for other in nodes:
            if other != node:  # multiply by (x - other) / (node - other)
                raised, kept = [Fraction(), *row], [*(-other * each for each in row), Fraction()]
                row = [(a + b) / (node - other) for a, b in zip(raised, kept, strict=True)]
        rows.append(row)
    return rows


def evaluated(polynomial: Polynomial, sizes: Sequence[Any], largest: Sequence[int]) -> Any:
    """Return the exact values at arrays of sizes: in 64-bit integers if these hold every term, else in Python's.

    ``largest`` are the largest sizes in the arrays.
    """
    whole, denominator = integral(polynomial)
    most = sum(abs(each) * math.prod(map(pow, largest, monomial)) for monomial, each in whole.items())
    given = [each.astype("int64" if most < 2**63 else object) for each in sizes]
    return _by_horner(whole, given) // denominator + 0 * sum(given)


def _by_horner(terms: Mapping[Monomial, int], sizes: Sequence[Any]) -> Any:
    """Return the sum of the terms by Horner's method: grouped by powers of the first size, highest power first."""
    if not sizes:
        return sum(terms.values())
    powers: dict[int, dict[Monomial, int]] = {}
    for (power, *rest), coefficient in terms.items():
        powers.setdefault(power, {})[tuple(rest)] = coefficient
    result: Any = 0
    for power in range(max(powers, default=0), -1, -1):
        result = result * sizes[0] + (_by_horner(powers[power], sizes[1:]) if power in powers else 0)
    return result
