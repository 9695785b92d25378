"""Why something disagrees: a pattern of the entry, one of the check, and the reason."""

from __future__ import annotations

CAUSES: list[tuple[str, str, str]] = []
