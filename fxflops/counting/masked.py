"""Count attention as if it had no mask. Count the gradients of attention only for the query-key pairs that the mask allows."""

from __future__ import annotations

from ..records import Cost, Operation
from ..records.facts import ATTENTIONS, SHARE, fact_in, pairs_in, with_facts


def without_mask(operation: Operation) -> Operation:
    """Return the attention operation without the number of allowed pairs (the fact ``pairs``), so that the formula counts all query-key pairs."""
    if operation.op not in ATTENTIONS or pairs_in(operation.out) is None:
        return operation
    return operation._replace(out=with_facts(operation.out, pairs=None))


def scaled_to_pairs_left(cost: Cost, operation: Operation) -> Cost:
    """Return the cost of an operation that computes attention's gradients, for the query-key pairs that the mask allows.

    The result's fact :data:`~fxflops.records.facts.SHARE` has the number of these pairs. An operation that sums over pairs has
    the same number of outputs with any mask. An output that sums k products takes k - 1 additions.
    """
    share = fact_in(operation.out, SHARE)
    if share is None:
        return cost
    left, pairs, sums_over_pairs = share
    if left == pairs:
        return cost
    # Round up: an output that sums k products has k - 1 additions, so the additions per pair are a little below a whole number.
    cost_per_pair = Cost(*(-(-part // pairs) for part in cost))
    if cost.macs and sums_over_pairs:
        cost_per_pair = cost_per_pair._replace(adds=cost.macs // pairs)
    return Cost(*(max(part - per_pair * (pairs - left), 0) for part, per_pair in zip(cost, cost_per_pair, strict=True)))
