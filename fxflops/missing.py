"""Calls that no formula knows, and the lines to paste that count them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .records import Call, Counted


class Missing(NamedTuple):
    """An op that no formula knows: how often it was called, first in which module, on which shapes, at which line."""

    op: str
    calls: int
    path: str
    shapes: str
    site: str


def missing_in(counted: Iterable[Counted]) -> tuple[Missing, ...]:
    """The ops without a formula, in order of appearance."""
    groups: dict[str, list[Call]] = {}
    for each in counted:
        if each.cost is None:
            groups.setdefault(each.call.op, []).append(each.call)
    return tuple(
        Missing(op, len(calls), calls[0].path, _shapes(calls[0]), calls[0].site) for op, calls in groups.items()
    )


def recipe_for(call: Call) -> str:
    """The lines to paste that count a call's op as one operation per output element."""
    name = call.op.rpartition("::")[2].rpartition(".")[2]
    if "::" in call.op:
        target = "torch.ops." + call.op.replace("::", ".")
    else:
        target = repr(name) if call.op.startswith("Tensor.") else call.op
    names = [f"x{i}" for i in range(1, len(call.args) + 1)] if len(call.args) > 1 else ["x"] * len(call.args)
    return f"@fxflops.formula({target})\ndef {name}({', '.join([*names, '*', 'out'])}): return out.numel()"


def _shapes(call: Call) -> str:
    return f"{', '.join(map(repr, call.inputs()))} -> {call.out!r}"
