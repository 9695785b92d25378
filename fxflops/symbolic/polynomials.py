"""Exact polynomials with rational coefficients, and exact interpolation of values on a grid. All arithmetic uses Python integers."""

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
"""The coefficient of each monomial. Monomials with the coefficient 0 are left out."""


def total(polynomials: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials in the same variables."""
    sums: dict[Monomial, Fraction] = {}
    for each in polynomials:
        for monomial, coefficient in each.items():
            sums[monomial] = sums.get(monomial, Fraction()) + coefficient
    return {monomial: coefficient for monomial, coefficient in sums.items() if coefficient}


def integral(polynomial: Polynomial) -> tuple[dict[Monomial, int], int]:
    """Return the polynomial's coefficients as integers over a common denominator, and this denominator."""
    denominator = math.lcm(*(each.denominator for each in polynomial.values()))
    return {monomial: int(each * denominator) for monomial, each in polynomial.items()}, denominator


def value(polynomial: Polynomial, point: Sequence[int]) -> Fraction:
    """Return the polynomial's value at a point."""
    whole, denominator = integral(polynomial)
    return Fraction(sum(each * math.prod(map(pow, point, m)) for m, each in whole.items()), denominator)


def fixed(polynomial: Polynomial, variable: int, at: int) -> Polynomial:
    """Return the polynomial with one variable set to the number ``at``. In the new monomials, the variable has the exponent 0."""
    return total({(*m[:variable], 0, *m[variable + 1 :]): each * at ** m[variable]} for m, each in polynomial.items())


def interpolation(nodes: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Polynomial]:
    """Return a function that takes values on a grid and returns the polynomial through these values.

    The values are in the order of the grid points ``product(*nodes)``. In each variable, the degree of the polynomial is lower than the
    number of nodes of this variable.
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
    """A polynomial is known by its values at ``nodes``. Return integer weights and a divisor that give its value at ``at``.

    The value at ``at`` is the weighted sum of the values at ``nodes``, divided by the divisor. The polynomial itself is not built. The
    polynomial's coefficients are fractions, and computing them would take most of the time of a comparison.
    """
    exact = [
        math.prod((Fraction(at - other, node - other) for other in nodes if other != node), start=Fraction(1))
        for node in nodes
    ]
    denominator = math.lcm(*(each.denominator for each in exact))
    return [int(each * denominator) for each in exact], denominator


def _basis(nodes: Sequence[int]) -> list[list[Fraction]]:
    """Return the Lagrange basis. For each node, it has the coefficients of the polynomial that is 1 at this node and 0 at the other nodes.

    The coefficient of the lowest power comes first.
    """
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
    """Return the exact values of a polynomial at arrays of sizes.

    The values are 64-bit integers if no term can overflow, otherwise Python integers. ``largest`` has the largest size of each array.
    """
    whole, denominator = integral(polynomial)
    most = sum(abs(each) * math.prod(map(pow, largest, monomial)) for monomial, each in whole.items())
    given = [each.astype("int64" if most < 2**63 else object) for each in sizes]
    return _by_horner(whole, given) // denominator + 0 * sum(given)


def _by_horner(terms: Mapping[Monomial, int], sizes: Sequence[Any]) -> Any:
    """Return the sum of the terms, computed with Horner's method. Terms are grouped by the power of the first size, highest power first."""
    if not sizes:
        return sum(terms.values())
    powers: dict[int, dict[Monomial, int]] = {}
    for (power, *rest), coefficient in terms.items():
        powers.setdefault(power, {})[tuple(rest)] = coefficient
    result: Any = 0
    for power in range(max(powers, default=0), -1, -1):
        result = result * sizes[0] + (_by_horner(powers[power], sizes[1:]) if power in powers else 0)
    return result
