"""The work that torch did of a call where it is other than what is counted: an einsum of several products, whose order is
opt_einsum's where that is installed, and one and the same for every count."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ops.einsum import by_path, path_taken
from ..records import Cost, Counted, per_operation, specs_in
from .counts import weighed


def executed(counted: Sequence[Counted], strategy: str) -> tuple[Counted, ...]:
    """The calls with the work that torch did for them; opt_einsum chose by this strategy, "" where there is none."""
    if not strategy:
        return tuple(counted)
    count = per_operation(lambda each: each.count._replace(cost=_cost(each, strategy)))
    return tuple(each._replace(count=count(each)) if each.call.target is torch.einsum else each for each in counted)


def remark(counted: Counted, run: Counted) -> str:
    """A sentence on a call of which torch ran other work than is counted; "" on any other."""
    if counted is run or counted.macs == run.macs:
        return ""
    return f"opt_einsum's order of products is what ran: {run.macs:,} MACs; {counted.macs:,}, from left to right, are counted"


def _cost(each: Counted, strategy: str) -> Cost | None:
    path = path_taken(each.call.args, strategy)
    if each.cost is None or not path:
        known: Cost | None = each.cost
        return known
    return weighed(by_path(each.call.args, path), specs_in(each.call.args))
