"""Count attention as if it had no mask, and its gradients only for the pairs that a mask leaves."""

from __future__ import annotations

from ..records import Cost, Operation
from ..records.pairs import ATTENTIONS, SHARE, fact_in, pairs_in, with_facts


def without_mask(operation: Operation) -> Operation:
    """Return an attention operation without the fact ``pairs``, so that its formula counts all pairs."""
    if operation.op not in ATTENTIONS or pairs_in(operation.out) is None:
        return operation
    return operation._replace(out=with_facts(operation.out, pairs=None))


def scaled_to_pairs_left(cost: Cost, operation: Operation) -> Cost:
    """Return the cost of an operation that computes attention's gradients, only for the pairs that the mask left.

    The fact :data:`~fxflops.records.pairs.SHARE` of its result has their number. A sum over pairs keeps all its outputs: each
    is a sum of k products with k - 1 adds, whatever number of pairs is left.
    """
    share = fact_in(operation.out, SHARE)
    if share is None:
        return cost
    left, pairs, sums_over_pairs = share
    if left == pairs:
        return cost
    # Rounded up, since each summed output has one add fewer than products.
    cost_per_pair = Cost(*(-(-part // pairs) for part in cost))
    if cost.macs and sums_over_pairs:
        cost_per_pair = cost_per_pair._replace(adds=cost.macs // pairs)
    return Cost(*(max(part - per_pair * (pairs - left), 0) for part, per_pair in zip(cost, cost_per_pair, strict=True)))
