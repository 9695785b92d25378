"""Attention as if it had no mask."""

from __future__ import annotations

from ..records import Operation, Spec, specs_in


def dense(ran: Operation) -> Operation:
    """Return an operation of attention without the fact ``pairs``, so that its formula counts all pairs."""
    if ran.op != "attention" or not any("pairs" in spec.facts for spec in specs_in(ran.out)):
        return ran
    specs = [_without(spec, "pairs") for spec in specs_in(ran.out)]
    return ran._replace(out=specs[0] if isinstance(ran.out, Spec) else tuple(specs))


def _without(spec: Spec, fact: str) -> Spec:
    return Spec(spec, spec.dtype, spec.layout, {name: value for name, value in spec.facts.items() if name != fact})
