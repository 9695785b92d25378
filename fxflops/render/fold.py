"""The rows of a tree as displayed. Consecutive identical siblings share a row, and the work of a module outside its children has its own row."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from .columns import ROOT
from .data import TreeRow
from .text import plain


@dataclass(frozen=True, slots=True)
class Fold:
    """``count`` identical modules under one name ("0..11"). ``row`` is the row of the first module, but its times are the mean times of all
    modules."""

    name: str
    row: TreeRow
    count: int = 1

    @property
    def path(self) -> str:
        """The path of the first module, with the common name of all modules in place of the path's last name."""
        parent, dot, _ = self.row.path.rpartition(".")
        return f"{parent}{dot}{self.name}"

    def label(self) -> tuple[str, str, str]:
        """Return the name, the class, and a note. The note has the number of folded modules if it is above 1. The note also has the number
        of calls, unless each module was called once."""
        row, notes = self.row, []
        if self.count > 1:
            notes.append(f"x{self.count} (each)")
        if row.calls > 1:
            notes.append(f"({row.calls} calls)")
        elif not row.was_called:
            notes.append("(not called)")
        return plain(self.name or row.cls), plain(row.cls) if self.name else "", "  ".join(notes)

    def total(self) -> TreeRow:
        """Return a row without children, which has the sums over all folded modules."""
        row, n = self.row, self.count
        return row._replace(
            calls=row.calls * n,
            params=None if row.params is None else row.params * n,
            macs=row.macs * n,
            flops=row.flops * n,
            missing=row.missing * n,
            seconds=None if row.seconds is None else row.seconds * n,
            children=(),
        )


def folded(rows: Sequence[TreeRow], fold: bool = True) -> list[Fold]:
    """Fold consecutive identical rows; with ``fold`` False, keep each row separate."""
    if not fold:
        return [Fold(row.name, row) for row in rows]
    groups = [list(group) for _, group in groupby(rows, key=fingerprint)]
    return [Fold(common_name([row.name for row in group]), mean(group), len(group)) for group in groups]


def own_row(row: TreeRow) -> TreeRow | None:
    """Return a row ``(own: add x2)`` for a module's work outside its children; None if the module has no children or no such work."""
    if not row.children or not (row.own_flops or row.own_seconds or row.own_missing):
        return None
    return row._replace(
        name=work_name("own", row.own_ops),
        params=row.own_params,
        frozen=row.frozen - sum(child.frozen for child in row.children),
        macs=row.own_macs,
        flops=row.own_flops,
        missing=row.own_missing,
        seconds=row.own_seconds,
        bytes_peak=None,
        inputs="",
        output="",
        children=(),
    )


def work_name(whose: str, ops: Mapping[str, int]) -> str:
    """Return a name for work without its own module. The name lists the work's operators, e.g. ``(own: add x2)``."""
    said = [plain(op) + (f" x{calls}" if calls > 1 else "") for op, calls in ops.items()]
    more = [f"+{len(said) - 3} more"] if len(said) > 3 else []
    return f"({whose}: {', '.join(said[:3] + more)})" if said else f"({whose})"


def fingerprint(row: TreeRow) -> Hashable:
    """Return a key for a module. Two modules have equal keys if their classes, sizes and counts are equal, and if the same holds for all
    modules below them. Times are ignored."""
    counts = (row.cls, row.calls, row.params, row.macs, row.flops, row.own_flops, row.missing, row.frozen)
    return counts, row.own_counting, tuple((child.name, fingerprint(child)) for child in row.children)


def mean(rows: Sequence[TreeRow]) -> TreeRow:
    """Merge identical rows into one row. The merged row's time is the mean of the rows' times, and the merged row's peak is the highest of
    the rows' peaks. Merge the children of these rows in the same way."""
    if len(rows) == 1:
        return rows[0]
    return rows[0]._replace(
        seconds=_mean([row.seconds for row in rows]),
        own_seconds=_mean([row.own_seconds for row in rows]),
        bytes_peak=max((row.bytes_peak for row in rows if row.bytes_peak is not None), default=None),
        children=tuple(mean(same) for same in zip(*(row.children for row in rows), strict=True)),
    )


def common_name(names: Sequence[str]) -> str:
    """Return one name for several modules: ``0..11`` for names that count up, ``query,key,value`` for a few short names, otherwise
    ``first..last``."""
    if len(names) == 1:
        return names[0]
    start = int(names[0]) if names[0].isascii() and names[0].isdigit() else -1
    counts_up = start >= 0 and list(names) == [str(start + i) for i in range(len(names))]
    listed = ",".join(names)
    return listed if not counts_up and len(listed) <= 24 else f"{names[0]}..{names[-1]}"


def pattern(path: str) -> str:
    """Return a path or name with ``*`` in place of numbers, e.g. ``layer*.*.bn*``. Numbers as in ``conv2d`` or ``3x3`` are kept. The path ""
    becomes ``(root)``."""
    return re.sub(r"(?<!\dx)(?<!\d)\d+(?![A-Za-z\d])", "*", path) or ROOT


def place_of(paths: Iterable[str]) -> str:
    """Return the path if all paths are equal; otherwise the :func:`pattern` of the first path."""
    first, *others = dict.fromkeys(paths)
    return pattern(first) if others else first or ROOT


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
