"""The query-key pairs that a mask leaves of attention, as facts of results: no shape has their number."""

from __future__ import annotations

from typing import Any

from .specs import Spec, specs_in

ATTENTION = "attention"
ATTENTIONS = frozenset({ATTENTION, "attention_backward"})
"""The ops whose results have the fact ``pairs``: how many the mask left."""
SHARE = "share"
"""The fact of what computes attention's gradients outside of a fused kernel: the pairs that the mask left, and all pairs."""


def pairs_in(out: Any, all_pairs: int | None = None) -> Any:
    """Return the query-key pairs that the mask of a call of attention left, known of its result; if they were not read, ``all_pairs``."""
    return next((spec.facts["pairs"] for spec in specs_in(out) if "pairs" in spec.facts), all_pairs)


def with_facts(out: Any, **facts: Any) -> Any:
    """Return the result of a call, its first tensor with these facts; one that is None is taken away."""
    if isinstance(out, Spec):
        return out.with_facts(**facts)
    at = next((i for i, each in enumerate(out) if isinstance(each, Spec)), len(out))
    return *out[:at], *(each.with_facts(**facts) for each in out[at : at + 1]), *out[at + 1 :]
