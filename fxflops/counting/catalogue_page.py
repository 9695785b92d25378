"""Read the catalogue from its page, ``fxflops/ops/README.md``, and search it, without importing torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, did_you_mean

README = Path(__file__).parents[1] / "ops" / "README.md"
FORMULAS, ZEROS = "Formulas", "Declared to compute nothing"
"""The sections of the page that have rows."""
REASONS = {
    "view": "The result is a view of the input, or a copy of it in another shape.",
    "move": "Values are moved or copied, and none is computed.",
    "create": "Values are made from nothing.",
    "query": "A property is read, and no tensor is made.",
}
NAMESPACES = ("nn", "F", "torch", "torch.special", "torch.linalg", "torch.fft", "operator", "Tensor")
"""The namespaces of spellings, in the order shown."""


class Row(NamedTuple):
    """An op with its formula, or an op declared to compute nothing (``family`` is "", ``doc`` the reason)."""

    op: str
    family: str
    doc: str
    targets: tuple[str, ...]


def catalogue() -> list[Row]:
    """Return the rows of the committed page."""
    return list(rows_of(README.read_text(encoding="utf8")))


def rows_of(page: str) -> Iterator[Row]:
    """Parse a page back into the rows that it was written from, in order."""
    section = group = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("### "):
            group = line[4:]
        elif line.startswith("| ") and not line.startswith(("| op |", "| --- |")) and section in (FORMULAS, ZEROS):
            op, *counted, names = (_plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            family, doc = (group, re.sub("^`(.*?)`: ", r"\1: ", counted[0])) if counted else ("", group)
            yield Row(op, family, doc, tuple(re.findall("`(.*?)`", names)))


def _plain(cell: str) -> str:
    return re.sub(r"\\([|*])", r"\1", cell.strip())


def search(word: str) -> list[Row]:
    """Return the rows whose op or spelling contains the word: the op with that name first, then by length of spelling.

    Modules come before functions and operators. Raises InputError with similar names if there is no such row.
    """
    wanted, rows = word.lower(), catalogue()
    matching = [row for row in rows if any(wanted in name.lower() for name in (row.op, *row.targets))]
    if not matching:
        names = {bare(name).lower() for row in rows for name in (row.op, *row.targets)}
        raise InputError(f"no op has {word!r} in its name{did_you_mean(wanted, sorted(names))}")
    return sorted(matching, key=lambda row: _distance(wanted, row))


def counts(row: Row) -> str:
    """Return what a row counts, or why it computes nothing, as a sentence."""
    if row.family:
        return row.doc
    reason = REASONS.get(row.doc)
    return f"nothing ({row.doc}). {reason}" if reason else f"nothing: {row.doc}"


def _distance(wanted: str, row: Row) -> tuple[int, int, int]:
    """Return the sort key of a row for a search word: rows with a shorter matching spelling come first."""
    names = row.targets or (row.op,)
    place = min(map(place_of, names))
    length = min(
        (len(each) for name in names for each in (name, bare(name)) if wanted in each.lower()), default=sys.maxsize
    )
    return (0, place, length) if row.op.lower() == wanted else (1, length, place)


def place_of(name: str) -> int:
    """Return the rank of a spelling in a list, by its namespace."""
    prefix = name.rpartition(".")[0]
    return NAMESPACES.index(prefix) if prefix in NAMESPACES else len(NAMESPACES)


def bare(name: str) -> str:
    return name.replace("::", ".").rpartition(".")[2].strip("_")
