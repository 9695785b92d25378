"""fxflops itself: the base of every other convention. It has no rows: the ops' formulas define its counts."""

from __future__ import annotations

from ._convention import CONVENTIONS, Convention

CONVENTION = Convention(
    "fxflops",
    CONVENTIONS["fxflops"],
)
