"""Count attention as if it had no mask, and its gradients only for the pairs that a mask leaves."""

from __future__ import annotations

from ..records import Cost, Operation
from ..records.pairs import ATTENTIONS, SHARE, fact_in, pairs_in, with_facts


def dense(ran: Operation) -> Operation:
    """Return an attention operation without the fact ``pairs``, so that its formula counts all pairs."""
    if ran.op not in ATTENTIONS or pairs_in(ran.out) is None:
        return ran
    return ran._replace(out=with_facts(ran.out, pairs=None))


def of_pairs_left(cost: Cost, ran: Operation) -> Cost:
    """Return the cost of an operation that computes attention's gradients, only for the pairs that the mask left.

    The fact :data:`~fxflops.records.pairs.SHARE` of its result has their number. A sum over pairs keeps all its outputs: each
    is a sum of k products with k - 1 adds, whatever number of pairs is left.
    """
    share = fact_in(ran.out, SHARE)
    if share is None:
        return cost
    left, pairs, summed = share
    if left == pairs:
        return cost
    of_pair = Cost(
        *(-(-part // pairs) for part in cost)
    )  # rounded up, since each summed output has one add fewer than products
    if cost.macs and summed:
        of_pair = of_pair._replace(adds=cost.macs // pairs)
    return Cost(*(max(part - each * (pairs - left), 0) for part, each in zip(cost, of_pair, strict=True)))
