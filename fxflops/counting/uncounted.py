"""Calls that no formula knows, and the lines to paste that count them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..records import Call, Counted, Spec

IMPORT = "import fxflops"
NO_FORMULA = "no formula"
PASTE = "paste where the model is made"
"""What is to be done with the lines of a recipe."""


class Missing(NamedTuple):
    """An op that no formula counts: how often it was called, first in which module, on which shapes, at which line, and why."""

    op: str
    calls: int
    path: str = ""
    shapes: str = ""
    site: str = ""
    why: str = NO_FORMULA

    @property
    def reason(self) -> str:
        """Why it is not counted, where that is not that there is no formula."""
        return "" if self.why.startswith(NO_FORMULA) else self.why


def missing_in(counted: Iterable[Counted]) -> tuple[Missing, ...]:
    """The ops without a formula, in order of appearance."""
    groups: dict[str, list[Counted]] = {}
    for each in counted:
        if each.cost is None:
            groups.setdefault(each.call.op, []).append(each)
    return tuple(_missing(op, found) for op, found in groups.items())


def _missing(op: str, found: list[Counted]) -> Missing:
    call = found[0].call
    shapes = f"{', '.join(map(repr, call.inputs()))} -> {call.out!r}"
    return Missing(op, len(found), call.path, shapes, call.site, found[0].missing)


def recipe_for(call: Call) -> str:
    """The lines to paste after :data:`IMPORT` that count a call's op as one operation per output element, which is a guess."""
    name = call.op.rpartition("::")[2].rpartition(".")[2]
    if "::" in call.op:
        target = "torch.ops." + call.op.replace("::", ".")
    else:
        target = repr(name) if call.op.startswith("Tensor.") else call.op
    out = "out" if isinstance(call.out, Spec) or not isinstance(call.out, tuple) else "out[0]"
    return (
        f"@fxflops.formula({target})\ndef {name}(*args, out, **kwargs): return {out}.numel()  # 1 per element: a guess"
    )
