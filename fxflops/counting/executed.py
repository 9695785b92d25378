"""The work that torch really did, where it differs from the count: an einsum of several products.

It is counted from left to right, so that counts do not depend on the machine; opt_einsum, if installed, reorders it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ops.einsum import by_path, path_taken
from ..records import Cost, Counted, per_operation, specs_in
from .counts import weighed


def executed(counted: Sequence[Counted], strategy: str) -> tuple[Counted, ...]:
    """Return the calls with the work that torch did for them under opt_einsum's ``strategy`` ("" for none)."""
    if not strategy:
        return tuple(counted)
    count = per_operation(lambda each: each.count._replace(cost=_cost(each, strategy)))
    return tuple(each._replace(count=count(each)) if each.call.target is torch.einsum else each for each in counted)


def remark(counted: Counted, run: Counted) -> str:
    """Return a sentence on a call for which torch did other work than is counted; "" for any other call."""
    if counted is run or counted.macs == run.macs:
        return ""
    return f"run in opt_einsum's order, {run.macs:,} MACs; counted from left to right, {counted.macs:,}"


def _cost(each: Counted, strategy: str) -> Cost | None:
    path = path_taken(each.call.args, strategy)
    if each.cost is None or not path:
        known: Cost | None = each.cost
        return known
    return weighed(by_path(each.call.args, path), each.call.operation, specs_in(each.call.args))
