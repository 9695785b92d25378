"""Why the sides differ: patterns that match the set and case, the way, and the place with both values as they are printed;
then the reason as in CHANGELOG.md.

An entry reads ``("fuzz/.*", "train", r"calls.* einsum .*: 12 -> 6", "an einsum's backward was counted twice")``. Remove entries that
explain nothing any more: a new reference starts with an empty list.
"""

from __future__ import annotations

CAUSES: list[tuple[str, str, str, str]] = [
    (
        "programs/.*",
        "count",
        r"timeline\[\d+\]: \d+ items, here 1: dropout in \(root\) -> \d+ items, here 0: ",
        "a dropout that returns its input made an entry in the memory over time, with the bytes of the entry before it",
    ),
]
