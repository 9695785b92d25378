"""Why the sides differ: patterns of the case, of the way and of the place, then the reason, as the CHANGELOG has it."""

from __future__ import annotations

CAUSES: list[tuple[str, str, str, str]] = []
