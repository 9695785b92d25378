"""The few sums that many formulas share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from ..records import Cost, Spec

COMPLEX = Cost(macs=4, muls=6, adds=2, others=1)
"""Real operations in one on complex numbers: (a + bi)(c + di) is 4 products, and 2 sums of them.

A real operand beside complex ones is made complex first, as torch does in the few products that let them meet.
"""


def contraction(k: int, outputs: int, bias: bool = False) -> Cost:
    """``outputs`` dot products of length ``k``: k multiplies and k-1 adds each, one add more with a bias."""
    if k == 0:
        return Cost()
    return Cost(macs=k * outputs, muls=k * outputs, adds=(k - 1 + bias) * outputs)


def added_up(products: int, outputs: int) -> Cost:
    """``products`` multiply-accumulates into ``outputs``: the first on each needs no add."""
    return Cost(macs=products, muls=products, adds=max(products - outputs, 0))


def reduced(input: Sequence[int], dim: int | Sequence[int] | None) -> int:
    """The number of elements that a reduction over ``dim`` (None or (): all dims) makes each result from."""
    dims = (dim,) if isinstance(dim, int) else dim or range(len(input))
    return math.prod(input[d] for d in dims) if len(input) else 1


def rows_of(n: int, k: int) -> int:
    """The number of rows of ``k`` in ``n`` elements."""
    return n // k if k else 0


def first(out: Any) -> Spec:
    """The result itself of an op that returns more with it (indices, statistics)."""
    spec: Spec = out if isinstance(out, Spec) else out[0]
    return spec


def summed(*costs: Cost) -> Cost:
    """The sum of these costs."""
    return reduce(Cost.plus, costs, Cost())


def when(condition: object, cost: Cost) -> Cost:
    """This cost under a condition, otherwise nothing."""
    return cost if condition else Cost()


def times(n: int, cost: Cost) -> Cost:
    """``n`` times this cost."""
    return Cost(*(n * count for count in cost))


def is_complex(*operands: Any) -> bool:
    """Whether an operation on these tensors and numbers is one on complex numbers."""
    return any(value.dtype.is_complex if isinstance(value, Spec) else isinstance(value, complex) for value in operands)


def real_ones(cost: Cost) -> Cost:
    """This cost, of an operation on complex numbers, in real operations: others, which count as they are (:data:`COMPLEX`)."""
    return Cost(others=cost.muls + cost.adds + cost.others)


def by_parts(n: int, muls: int = 0, adds: int = 0, others: int = 0) -> Cost:
    """``n`` operations on complex numbers, of so many real operations each."""
    return times(n, real_ones(Cost(muls=muls, adds=adds, others=others)))
