"""Cost arithmetic that many formulas share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from ..records import Cost, Spec

COMPLEX = Cost(macs=4, muls=6, adds=2, others=1)
"""Real operations per complex operation: (a + bi)(c + di) is 4 products and 2 sums.

In a product of a real and a complex tensor, the real tensor counts as complex, because torch first converts it.
"""


def contraction(k: int, outputs: int, bias: bool = False) -> Cost:
    """Return the cost of ``outputs`` dot products of length ``k``: k multiplies and k-1 adds each, plus 1 add with a bias."""
    if k == 0:
        return Cost()
    return Cost(macs=k * outputs, muls=k * outputs, adds=(k - 1 + bias) * outputs)


def added_up(products: int, outputs: int) -> Cost:
    """Return the cost of adding up ``products`` products into ``outputs`` sums. The first product of a sum needs no add."""
    return Cost(macs=products, muls=products, adds=max(products - outputs, 0))


def reduced(input: Sequence[int], dim: int | Sequence[int] | None) -> int:
    """Return the number of elements that a reduction over ``dim`` (None or (): all dims) combines into each result."""
    dims = (dim,) if isinstance(dim, int) else dim or range(len(input))
    return math.prod(input[d] for d in dims) if len(input) else 1


def rows_of(n: int, k: int) -> int:
    """Return the number of rows of length ``k`` in ``n`` elements."""
    return n // k if k else 0


def first(out: Any) -> Spec:
    """Return the first result of an op that may also return indices or statistics."""
    spec: Spec = out if isinstance(out, Spec) else out[0]
    return spec


def summed(*costs: Cost) -> Cost:
    """Return the sum of these costs."""
    return reduce(Cost.plus, costs, Cost())


def when(condition: object, cost: Cost) -> Cost:
    """Return this cost if the condition holds, otherwise a zero cost."""
    return cost if condition else Cost()


def times(n: int, cost: Cost) -> Cost:
    """Return ``n`` times this cost."""
    return Cost(*(n * count for count in cost))


def is_complex(*operands: Any) -> bool:
    """Return whether any of these tensors and numbers is complex."""
    return any(value.dtype.is_complex if isinstance(value, Spec) else isinstance(value, complex) for value in operands)


def real_ones(cost: Cost) -> Cost:
    """Move a cost that is already in real operations to ``others``, which :data:`COMPLEX` does not scale."""
    return Cost(others=cost.muls + cost.adds + cost.others)


def by_parts(n: int, muls: int = 0, adds: int = 0, others: int = 0) -> Cost:
    """Return the cost of ``n`` complex operations, each of which takes these real operations."""
    return times(n, real_ones(Cost(muls=muls, adds=adds, others=others)))
