"""Read and search the catalogue of formulas, the page ``fxflops/ops/README.md``, without importing torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, did_you_mean

README = Path(__file__).parents[1] / "ops" / "README.md"
FORMULAS, ZEROS = "Formulas", "Declared to compute nothing"
"""The sections of the page that have tables of ops."""
REASONS = {
    "view": "The result is a view of the input, or a copy of it in another shape.",
    "move": "Values are moved or copied, but not computed.",
    "create": "A tensor is created without reading other tensors.",
    "query": "A property of a tensor is read; no tensor is created.",
}
NAMESPACES = ("nn", "F", "torch", "torch.special", "torch.linalg", "torch.fft", "operator", "Tensor")
"""The namespaces of the ops' names, in the order in which a page shows them."""


class Row(NamedTuple):
    """An op with its formula. For an op declared to compute nothing, ``family`` is "" and ``doc`` is the reason."""

    op: str
    family: str
    doc: str
    targets: tuple[str, ...]


def catalogue() -> list[Row]:
    """Return the rows of the catalogue's page in the repository."""
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
    """Return the rows whose op or spelling contains the word. An op named exactly like the word comes first.

    All rows after the exact match are sorted by the length of the spelling that contains the word. Among equal lengths, modules come first.
    Raises InputError with similar names if no row contains the word.
    """
    wanted, rows = word.lower(), catalogue()
    matching = [row for row in rows if any(wanted in name.lower() for name in (row.op, *row.targets))]
    if not matching:
        names = {bare(name).lower() for row in rows for name in (row.op, *row.targets)}
        raise InputError(f"no op has a name that contains {word!r}{did_you_mean(wanted, sorted(names))}")
    return sorted(matching, key=lambda row: _distance(wanted, row))


def counts(row: Row) -> str:
    """Return a sentence that says what a row counts, or why its op computes nothing."""
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
    """Return the rank of a spelling by its namespace; lower ranks are listed first."""
    prefix = name.rpartition(".")[0]
    return NAMESPACES.index(prefix) if prefix in NAMESPACES else len(NAMESPACES)


def bare(name: str) -> str:
    return name.replace("::", ".").rpartition(".")[2].strip("_")
