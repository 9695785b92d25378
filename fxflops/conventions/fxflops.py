"""The convention of fxflops itself, on which all other conventions are based. Every operation counts by its op's own formula."""

from __future__ import annotations

from ._convention import CONVENTIONS, Convention

CONVENTION = Convention(
    "fxflops",
    CONVENTIONS["fxflops"],
)
