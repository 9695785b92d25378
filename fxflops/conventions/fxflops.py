"""fxflops itself: the base of every other convention. It has no rows: the formulas of the ops say what it counts."""

from __future__ import annotations

from ._convention import CONVENTIONS, Convention

CONVENTION = Convention(
    "fxflops",
    CONVENTIONS["fxflops"],
)
