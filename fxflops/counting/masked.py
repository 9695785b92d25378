"""Attention as if it had no mask, and what of its gradients a mask leaves."""

from __future__ import annotations

from ..records import Cost, Operation
from ..records.pairs import ATTENTIONS, SHARE, fact_in, pairs_in, with_facts


def dense(ran: Operation) -> Operation:
    """Return an operation of attention without the fact ``pairs``, so that its formula counts all pairs."""
    if ran.op not in ATTENTIONS or pairs_in(ran.out) is None:
        return ran
    return ran._replace(out=with_facts(ran.out, pairs=None))


def of_pairs_left(cost: Cost, ran: Operation) -> Cost:
    """Return the cost of an operation that computes attention's gradients, of the pairs that the mask left alone.

    That is known of its result (:data:`~fxflops.records.pairs.SHARE`). What is added up into fewer numbers keeps them: an
    output that is the sum of k products has k - 1 adds, of however many pairs.
    """
    share = fact_in(ran.out, SHARE)
    if share is None:
        return cost
    left, pairs, summed = share
    if left == pairs:
        return cost
    of_pair = Cost(*(-(-part // pairs) for part in cost))  # rounded up: by what is missing, the outputs, it stays less
    if cost.macs and summed:
        of_pair = of_pair._replace(adds=cost.macs // pairs)
    return Cost(*(max(part - each * (pairs - left), 0) for part, each in zip(cost, of_pair, strict=True)))
