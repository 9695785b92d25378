"""Why the sides differ: patterns that match the set and case, the way and the place, then the reason as in CHANGELOG.md.

An entry reads ``("fuzz/.*", "train", r"calls.* einsum .*", "an einsum's backward was counted twice")``. Remove entries that
explain nothing any more: a new reference starts with an empty list.
"""

from __future__ import annotations

CAUSES: list[tuple[str, str, str, str]] = []
