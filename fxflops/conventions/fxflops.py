"""fxflops itself: the base of every other convention. It has no rows: the formulas of the ops say what it counts."""

from __future__ import annotations

from ._convention import Convention

CONVENTION = Convention(
    "fxflops",
    "every arithmetic operation of the forward, the same however an op is written, "
    "but for normalizations' mean and deviation",
)
