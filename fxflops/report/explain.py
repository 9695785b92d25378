"""Explain why two conventions differ on one run: which calls they count differently, and how each of them counts these calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..conventions import IN_MACS
from ..counting.counted_run import CountedRun
from ..counting.module_charges import NOT_COUNTED
from ..records import PARTS, Counted, grouped, prefixes
from ..render.columns import Column, Kind
from ..render.exports import Cells, Table, Tabular
from ..render.fold import pattern
from ..render.table import grid
from ..render.text import cells, plain, terminal_width, wrapped
from ..units import count as readable

COLUMNS: tuple[tuple[str, str, Kind], ...] = (
    ("op", "op", "text"), ("where", "where", "text"), ("calls", "calls", "number"), ("flops_a", "{a}", "flops"),
    ("flops_b", "{b}", "flops"), ("difference", "difference", "flops"), ("counts_a", "{a} counts", "text"),
    ("counts_b", "{b} counts", "text"),
)  # fmt: skip
"""The key, title and kind of each column. ``{a}`` and ``{b}`` are placeholders for the names of the conventions."""
ABSENT = "no separate charge"
MOST_PLACES = 2


class Difference(NamedTuple):
    """Calls of one op that two conventions count differently. Each row has the FLOPs of these calls under each convention.

    ``paths`` are the modules that made the calls, without repetitions, in run order. ``how_a`` and ``how_b`` describe what the
    conventions count.
    """

    op: str
    paths: tuple[str, ...]
    calls: int
    flops_a: int
    flops_b: int
    how_a: str
    how_b: str

    @property
    def difference(self) -> int:
        return self.flops_b - self.flops_a

    @property
    def where(self) -> str:
        """The modules' paths, with ``*`` for varying numbers, e.g. ``layer*.*.bn1``. The root module is shown as ``(root)``."""
        by_pattern = grouped((pattern(path), path) for path in self.paths)
        places = [name if len(paths) > 1 else paths[0] or name for name, paths in by_pattern.items()]
        more = len(places) - MOST_PLACES
        return ", ".join(places[:MOST_PLACES]) + (f", {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Tabular):
    """A table of the differences between the totals of conventions ``a`` and ``b``. The largest difference is first.

    The differences of all rows add up to ``total_b - total_a``. ``same`` is the FLOPs of all other calls, which both conventions
    count identically. ``missing_a`` has the ops that convention ``a`` cannot count, each with its number of calls; ``missing_b`` has the
    ops that ``b`` cannot count. The total of a convention with missing ops is a lower bound. ``free`` has the ops with multiply-accumulates
    that both conventions count as 0, each with its number of calls.
    """

    a: str
    b: str
    total_a: int
    total_b: int
    rows: tuple[Difference, ...]
    provenance: str = field(default="", compare=False)
    missing_a: Mapping[str, int] = field(default_factory=dict)
    missing_b: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)

    @property
    def same(self) -> int:
        return self.total_a - sum(row.flops_a for row in self.rows)

    @property
    def table(self) -> Table:
        rows = [(r.op, r.where, r.calls, r.flops_a, r.flops_b, r.difference, r.how_a, r.how_b) for r in self.rows]
        columns = [Column(key, title.format(a=self.a, b=self.b), kind) for key, title, kind in COLUMNS]
        return Table("differences", tuple(columns), tuple(rows), provenance=self.provenance)

    def _text(self) -> str:
        limit = terminal_width()
        top, *bottom_lines = self._around()
        bottom = "\n".join(wrapped(line, limit, 4) for line in bottom_lines)
        if not self.rows:
            return f"{wrapped(top, limit, 4)}\n{bottom}"
        table = grid(self.table.columns, self._brief(), elidable=("where",))
        if limit is not None and max(map(cells, table.splitlines())) > limit:
            table = "\n".join(self._narrow(limit))
        return f"{wrapped(top, limit, 4)}\n{table}\n{bottom}"

    def _blocks(self) -> Iterable[str]:
        from ..render.html import cells_table, note

        top, *bottom = map(note, self._around())
        return top, cells_table(self.table.columns, self._brief(), None) if self.rows else "", *bottom

    def _around(self) -> list[str]:
        """Return the line above the table, followed by the lines below the table."""
        bound_a, bound_b = (">= " if missing else "" for missing in (self.missing_a, self.missing_b))
        totals = f"{self.a} {bound_a}{self.total_a:,}   {self.b} {bound_b}{self.total_b:,}   {self.total_b - self.total_a:+,}"
        in_macs = [name for name in (self.a, self.b) if name in IN_MACS]
        if in_macs:
            totals += "   in MACs" if len(in_macs) == 2 else f"   {in_macs[0]} counts MACs, the other counts FLOPs"
        same = f"other calls: {readable(self.same)} under both"
        if not self.rows:
            same = "both conventions count every call the same"
        if not self.rows and (self.missing_a or self.missing_b):
            same = "both conventions count all other calls the same"
        free = ", ".join(f"{plain(op)} x{calls}" for op, calls in self.free.items())
        return [
            totals,
            same,
            *([f"counted as 0 by both, though with multiply-accumulates: {free}"] if free else []),
            *self._not_counted(),
        ]

    def _not_counted(self) -> Iterator[str]:
        """Yield a line with the ops that are not counted. If the conventions differ in these ops, yield a line per convention."""
        if self.missing_a == self.missing_b:
            sides = [("", self.missing_a)]
        else:
            sides = [(f" by {self.a}", self.missing_a), (f" by {self.b}", self.missing_b)]
        for whose, missing in sides:
            if missing:
                yield f"not counted{whose}: {', '.join(f'{plain(op)} x{calls}' for op, calls in missing.items())}"

    def _brief(self) -> list[Cells]:
        return [(*row[:-2], *map(_brief, row[-2:])) for row in self.table.rows]

    def _narrow(self, limit: int) -> Iterator[str]:
        """Yield three lines for each row. The three lines are for a terminal that is too narrow for the table."""
        name = max(map(len, (self.a, self.b)))
        number = max(len(f"{flops:,}") for row in self.rows for flops in (row.flops_a, row.flops_b))
        for row in self.rows:
            yield wrapped(f"{plain(row.op)} x{row.calls} in {plain(row.where)}   {row.difference:+,}", limit, 4)
            for convention, flops, how in ((self.a, row.flops_a, row.how_a), (self.b, row.flops_b, row.how_b)):
                line = f"  {convention:<{name}}  {flops:>{number},}  {_brief(how)}"
                yield wrapped(line, limit, indent=name + number + 6)


def explain(a: CountedRun, b: CountedRun, phase: str) -> Explanation:
    """Compare the counts of the same run under two conventions, in one phase."""
    counted_a, counted_b = ([each for each in side.counted if each.call.phase in PARTS[phase]] for side in (a, b))
    # Both lists start with the same calls of the run. The charges for modules follow, and these may differ between the two lists.
    calls = sum(call.phase in PARTS[phase] for call in a.run.calls)
    groups: dict[tuple[str, str, str], list[tuple[str, int, int]]] = {}
    charged = {each.call.path for counted in (counted_a, counted_b) for each in counted[calls:] if each.flops}
    free: Counter[str] = Counter()
    for one, other in _pairs(counted_a, counted_b, calls):
        flops_a, flops_b = (0 if each is None else each.flops for each in (one, other))
        if flops_a == flops_b:
            # A module's charge covers the calls inside the module.
            if (
                one
                and not flops_a
                and one.macs
                and one.cost is not None
                and charged.isdisjoint(prefixes(one.call.path))
            ):
                free[one.call.op] += 1
            continue
        how_a, how_b = (ABSENT if each is None else _how(each) for each in (one, other))
        call = next(each.call for each in (one, other) if each is not None)
        groups.setdefault((call.op, how_a, how_b), []).append((call.path, flops_a, flops_b))
    rows = []
    for (op, how_a, how_b), equal_calls in groups.items():
        paths, of_a, of_b = zip(*equal_calls, strict=True)
        rows.append(Difference(op, tuple(dict.fromkeys(paths)), len(equal_calls), sum(of_a), sum(of_b), how_a, how_b))
    total_a, total_b = (sum(each.flops for each in counted) for counted in (counted_a, counted_b))
    largest_first = tuple(sorted(rows, key=lambda row: -abs(row.difference)))
    missing_a, missing_b = (
        Counter(each.call.op for each in counted if each.cost is None) for counted in (counted_a, counted_b)
    )
    return Explanation(
        a.convention, b.convention, total_a, total_b, largest_first, a.provenance, missing_a, missing_b, free
    )


def _pairs(a: Sequence[Counted], b: Sequence[Counted], calls: int) -> Iterator[tuple[Counted | None, Counted | None]]:
    """Yield both counts of each call, then both counts of each module charge. A count is None if a convention does not charge the module."""
    yield from zip(a[:calls], b[:calls], strict=True)
    left, right = (dict(_numbered(counted[calls:])) for counted in (a, b))
    for key in dict.fromkeys([*left, *right]):
        yield left.get(key), right.get(key)


def _numbered(extra: Iterable[Counted]) -> Iterator[tuple[object, Counted]]:
    """Yield each call for which a module is charged, with a key: the module's path, the module's class, and a running number."""
    seen: Counter[object] = Counter()
    for each in extra:
        key = each.call.path, each.call.target
        seen[key] += 1
        yield (key, seen[key]), each


def _how(each: Counted) -> str:
    """Return a description of what the convention counts for a call. Return "not counted" if the formula returns 0."""
    return each.how if each.flops or each.missing or isinstance(each.rule, str) else NOT_COUNTED


def _brief(how: str) -> str:
    """Return the part of a description before the first semicolon."""
    return how.partition("; ")[0].replace("``", "")
