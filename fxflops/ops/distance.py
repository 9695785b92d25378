"""Distances between the points of two sets, or within one set: the norm of every difference."""

from __future__ import annotations

import math

from ._extend import Cost, Spec, formula, named, times
from .reduce import norm_of


@formula(*named("cdist", "_cdist_forward"))
def cdist(x1: Spec, x2: Spec, p: float = 2.0, *, out: Spec) -> Cost:
    """x1[*, m, d], x2[*, n, d] -> out[*, m, n]: d subtractions, d powers, d-1 adds and 1 root per output.

    The count is the same where torch uses a matrix product (for large m or n). For p = 2 the powers are multiplies. p = 0 takes d
    compares and no root. p = 1 takes d absolute values and no root. p = infinity takes d absolute values, d-1 compares and no root.
    Any other p takes d absolute values before the powers.
    """
    d = x1[-1]
    if d == 0:
        return Cost()
    differences = d * out.numel()
    absolutes = 0 if p in (0, 1, 2, math.inf) else differences
    return norm_of(p, Spec((differences,)), out.numel()).plus(Cost(adds=differences, others=absolutes))


@cdist.backward(*named("_cdist_backward"))
def cdist_backward(grad_output: Spec, x1: Spec, x2: Spec, p: float, cdist: Spec, *, out: Spec) -> Cost:
    """grad[*, m, n], x1[*, m, d], x2[*, n, d] -> out[*, m, d]: the derivative of each distance, plus n-1 adds per output.

    With z = x1 - x2, the derivative is z * (grad / distance) for p = 2 and sign(z) * grad for p = 1. For infinity it is
    sign(z) * grad where |z| is the distance. For any other p it is sign(z) * |z|**(p - 1) * (grad / distance**(p - 1)).
    """
    differences, pairs = grad_output.numel() * x1[-1], grad_output.numel()
    return _distances(p, differences, pairs).plus(Cost(adds=max(differences - out.numel(), 0)))


@formula(*named("pdist", "_pdist_forward"))
def pdist(input: Spec, p: float = 2, *, out: Spec) -> Cost:
    """x[n, d] -> out[n(n - 1)/2]: d subtractions per output, plus the cost of norm."""
    return norm_of(p, Spec((input[1] * out.numel(),)), out.numel()).plus(Cost(adds=input[1] * out.numel()))


@pdist.backward(*named("_pdist_backward"))
def pdist_backward(grad_output: Spec, input: Spec, p: float, pdist: Spec, *, out: Spec) -> Cost:
    """grad[n*(n-1)/2], x[n, d] -> out[n, d]: counted like _cdist_backward, but with 2 adds per difference: 1 for each point of the pair."""
    differences, pairs = grad_output.numel() * input[-1], grad_output.numel()
    return _distances(p, differences, pairs).plus(Cost(adds=2 * differences))


def _distances(p: float, differences: int, pairs: int) -> Cost:
    if p == 0:
        return Cost()
    if p == 2:
        return Cost(muls=differences, adds=differences, others=pairs)
    if p == 1:
        return times(differences, Cost(muls=1, adds=1, others=1))
    if math.isinf(p):
        return times(differences, Cost(muls=1, adds=1, others=3))
    return times(differences, Cost(muls=2, adds=1, others=3)).plus(Cost(others=2 * pairs))
