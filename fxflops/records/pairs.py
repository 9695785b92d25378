"""The query-key pairs that a mask leaves of attention, as facts of results: no shape has their number."""

from __future__ import annotations

from typing import Any

from .calls import Call
from .specs import Spec, specs_in

ATTENTION = "attention"
ATTENTIONS = frozenset({ATTENTION, "attention_backward"})
"""The ops whose results have the fact ``pairs``: how many the mask left."""
LOOKUP = "embedding"
"""The op whose result has the fact ``row`` if it looked up one that its table does not have: that, and the rows of the table."""
SHARE = "share"
"""The fact of what computes attention's gradients pair by pair outside of a fused kernel: the pairs that the mask left, all
pairs, and whether their numbers are summed up, or each pair has results of its own."""


def pairs_in(out: Any, all_pairs: int | None = None) -> Any:
    """Return the query-key pairs that the mask of a call of attention left, known of its result; if they were not read, ``all_pairs``."""
    return fact_in(out, "pairs", all_pairs)


def fact_in(out: Any, name: str, default: Any = None) -> Any:
    """Return a fact of the first tensor in the result of a call that has it."""
    return next((spec.facts[name] for spec in specs_in(out) if name in spec.facts), default)


def absent_row(call: Call) -> str:
    """Return a sentence on a call that looks up a row which its table does not have; "" for any other call."""
    row = fact_in(call.out, "row") if call.op == LOOKUP else None
    return "looks up row {:,} of {:,}: the model itself raises an IndexError".format(*row) if row else ""


def with_facts(out: Any, **facts: Any) -> Any:
    """Return the result of a call, its first tensor with these facts; one that is None is taken away."""
    if isinstance(out, Spec):
        return out.with_facts(**facts)
    at = next((i for i, each in enumerate(out) if isinstance(each, Spec)), len(out))
    return *out[:at], *(each.with_facts(**facts) for each in out[at : at + 1]), *out[at + 1 :]
