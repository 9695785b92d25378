"""Compare two reports in total, by module and by operator. For example, compare two models, or a model before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting import totals
from ..counting.counted_run import CountedRun
from ..counting.rollup import by_operator
from ..counting.steps import NO_OPERATION, unsteady
from ..errors import InputError
from ..records import PARTS, grouped, prefixes
from ..render.columns import Column, Kind
from ..render.conclusion import Compared, compared
from ..render.exports import Cells, Rows, Table, Tabular
from ..render.files import Path, method_for, written
from ..render.fold import pattern
from ..render.text import align, plain, terminal_width, wrapped
from ..units import count, seconds, size
from .tables import highest

Readable = Callable[[float | None], str]
BOTH, ONLY_A, ONLY_B = "both", "only in a", "only in b"
SORTS = {"flops": "flops", "macs": "macs", "params": "params", "time": "seconds", "memory": "bytes_peak"}
TITLES: dict[str, tuple[str, Kind]] = {
    "flops": ("FLOPs", "flops"),
    "macs": ("MACs", "flops"),
    "params": ("params", "elements"),
    "seconds": ("time", "s"),
    "bytes_peak": ("replay peak", "B"),
}
TOTALS: dict[str, tuple[Callable[[CountedRun], float | None], Readable]] = {
    "MACs": (lambda side: side.forward.macs, count),
    "FLOPs": (lambda side: side.forward.flops, count),
    "backward FLOPs": (totals.backward_flops, count),
    "training FLOPs": (totals.training_flops, count),
    "recompute FLOPs": (totals.recompute_flops, count),
    "optimizer FLOPs": (lambda side: totals.flops_of(side, "optimizer"), count),
    "integer ops": (lambda side: side.forward.int_ops, count),
    "MAC outputs": (lambda side: side.forward.activations, count),
    "params": (lambda side: side.run.params and side.run.params.total, count),
    "trainable": (lambda side: side.run.params and side.run.params.trainable, count),
    "buffers": (lambda side: side.run.params and side.run.params.buffers, count),
    "bytes of params": (lambda side: side.run.params and side.run.params.bytes, size),
    "latency": (lambda side: totals.latency(side.run), seconds),
    "backward latency": (lambda side: totals.backward_latency(side.run), seconds),
    "block time": (totals.block_seconds, seconds),
    "forward time": (lambda side: _phase_seconds(side, "forward"), seconds),
    "backward time": (lambda side: _phase_seconds(side, "backward"), seconds),
    "optimizer time": (lambda side: _phase_seconds(side, "optimizer"), seconds),
    "data loading": (lambda side: _phase_seconds(side, "loading"), seconds),
    "outside time": (lambda side: _phase_seconds(side, "between"), seconds),
    "sum of operations": (lambda side: totals.nodes_seconds(side.run), seconds),
    "peak memory": (lambda side: side.run.memory.peak, size),
}
"""Maps each total's name to the function that computes the total from a counted run, and the function that formats it."""
COMPARED: dict[str, Readable] = {"flops": count, "params": count, "seconds": seconds}
"""The quantities by which to compare modules and operators. The first quantity in which the reports differ is shown."""
TOP_MODULES, TOP_OPERATORS = 10, 5
NUMBERS = ("a", "b", "difference", "ratio")


def _phase_seconds(side: CountedRun, phase: str) -> float | None:
    """Return the time of a phase of a profiled block in seconds; None if the time is 0, or if no block was profiled."""
    return sum(getattr(time, phase) for time in side.step_times.values()) or None


class Change(NamedTuple):
    """The value of a quantity in report ``a`` and in report ``b``. A value that was not measured is None."""

    a: float | None
    b: float | None

    @property
    def difference(self) -> float | None:
        """``b`` minus ``a``; None if ``a`` or ``b`` was not measured."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def ratio(self) -> float | None:
        """``b`` divided by ``a``; None if ``a`` is 0, or if ``a`` or ``b`` was not measured."""
        return None if self.b is None or not self.a else self.b / self.a


class Changes(NamedTuple):
    """FLOPs, MACs, number of parameters, time in seconds, and peak memory in bytes, each in both reports."""

    flops: Change
    macs: Change
    params: Change
    seconds: Change
    bytes_peak: Change


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A module or operator in both reports. ``total`` is for a module's subtree; ``own`` is for the module's own operations.

    ``where`` is "both", "only in a" or "only in b". A report without the module or operator has the value 0. The ``own``
    differences of all modules add up to the difference between the reports. The ``own``
    differences of all operators do, too.
    """

    key: str
    where: str
    total: Changes
    own: Changes


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Tabular):
    """A comparison of report ``b`` with report ``a``: ``totals`` by name, and a row for each module and each operator.

    Printing a Diff shows one screen. ``to_html`` makes a page. All ``to_*`` methods except ``to_html`` export the table of modules.
    """

    a: str
    b: str
    totals: Mapping[str, Change]
    modules: tuple[DiffRow, ...]
    operators: tuple[DiffRow, ...]
    provenance: str = field(default="", compare=False)
    phase: str = "forward"

    def by_module(self, sort_by: str = "flops") -> Rows[DiffRow]:
        """Return the modules of both reports by path, the largest difference first. ``sort_by`` is "flops", "macs", "params",
        "time" or "memory" (the highest memory while the module ran)."""
        return _rows(self.modules, "module", sort_by, self.provenance)

    def by_operator(self, sort_by: str = "flops") -> Rows[DiffRow]:
        """Return the operators of both reports by name, the largest difference first. The parameters of an operator are the parameters of
        the leaf modules that called the operator."""
        return _rows(self.operators, "operator", sort_by, self.provenance)

    @property
    def table(self) -> Table:
        return self.by_module().table

    def _text(self) -> str:
        lines = [wrapped(compared(*self._compared()), terminal_width(), 0)]
        lines += [wrapped(name, terminal_width(), 3) for name in self._names()]
        for header, rows, more in self._tables():
            numbers = [title in NUMBERS for title in header]
            lines += ["", *align([header, *rows], numbers), *([more] if more else [])]
        del lines[3]  # no blank line above the totals
        return "\n".join(lines)

    def _blocks(self) -> Iterator[str]:
        from ..render.html import cells_table, note

        yield from map(note, [compared(*self._compared()), *self._names()])
        for header, rows, more in self._tables():
            columns = [Column(title, title, "number" if title in NUMBERS else "text") for title in header]
            yield cells_table(columns, rows, None)
            yield note(more)

    def _names(self) -> list[str]:
        return [f"{name}  {plain(line)}" for name, line in (("a", self.a), ("b", self.b))]

    def _tables(self) -> Iterator[tuple[list[str], list[list[str]], str]]:
        """Yield tables of texts, each with a line about the rows that the table omits.

        The first table has the totals. All tables after the totals have the modules, grouped by path pattern, and the operators that
        differ. Modules and operators are compared by FLOPs. If all FLOPs are equal, the reports are compared by parameters. If all
        parameters are equal too, they are compared by time.
        """
        measured = ((name, change) for name, change in self.totals.items() if change != (None, None))
        yield ["", *NUMBERS], [_line(name, change, TOTALS[name][1]) for name, change in measured], ""
        for title, groups, top in self._groups():
            changes = ((key, _changed(groups, key)) for key in COMPARED)
            key, shown = next(((key, changed) for key, changed in changes if changed), ("", {}))
            if not shown:
                continue
            names, readable = [*shown], COMPARED[key]
            lines = [[*_line(name, shown[name], readable), _whereabouts(groups[name])] for name in names[:top]]
            omitted = [shown[name].difference or 0 for name in names[top:]]
            more = f"{len(omitted)} more: {_signed(sum(omitted), readable)}" if omitted else ""
            yield [self._heading(key, title), *NUMBERS, ""], lines, more

    def _heading(self, key: str, kind: str) -> str:
        """Return a heading such as ``FLOPs by module``. If a report has several phases, the heading names the phase."""
        has_backward = self.totals["backward FLOPs"] != (None, None)
        return f"{TITLES[key][0]} by {kind}{f', {self.phase}' * has_backward}"

    def _groups(self) -> Iterator[tuple[str, Mapping[str, Sequence[DiffRow]], int]]:
        """First yield "module" with the modules, grouped by their path with ``*`` in place of varying numbers. After the modules, yield
        "operator" with the operators. The last value of each tuple is the number of groups to show."""
        by_pattern = grouped((pattern(row.key), row) for row in self.modules)
        modules = {rows[0].key if rows[0].key and len(rows) == 1 else name: rows for name, rows in by_pattern.items()}
        yield "module", modules, TOP_MODULES
        yield "operator", {row.key: [row] for row in self.operators}, TOP_OPERATORS

    def to_html(self, path: Path | None = None, *, title: str = "") -> str | None:
        """Return one HTML page with both reports side by side. With ``path``, write the page to this file instead. The page needs no
        server, loads no other files and runs no script. ``title`` is the page's heading; the default heading has the models' names."""
        from ..render.diff_page import diff_page

        return written(diff_page(title, self.a, self.b, *self._compared(), self.provenance), path)

    def save(self, path: Path) -> None:
        """Write the comparison to ``path``. For the suffix ``.html`` it is written as a page, for other suffixes as a table of the modules."""
        getattr(self, method_for(path))(path)

    def _compared(self) -> tuple[list[Compared], dict[str, list[Compared]]]:
        """Return the totals. For each heading, also return the differences of modules or operators, with the largest difference first."""
        changes = [
            Compared(_line(name, change, TOTALS[name][1]), *change)
            for name, change in self.totals.items()
            if change != (None, None)
        ]
        parts = {
            self._heading(key, kind): [
                Compared(_line(name, change, readable), *change, _whereabouts(groups[name]))
                for name, change in _changed(groups, key).items()
            ]
            for key, readable in COMPARED.items()
            for kind, groups, _ in self._groups()
        }
        return changes, {heading: rows for heading, rows in parts.items() if rows}


def _changed(groups: Mapping[str, Sequence[DiffRow]], key: str) -> dict[str, Change]:
    """Return, for each group in which the reports differ, the sum of a quantity. The largest difference is first."""
    sums = {name: _sum(group, key) for name, group in groups.items()}
    changed = [name for name in sums if sums[name].difference]
    return {name: sums[name] for name in sorted(changed, key=lambda name: -abs(sums[name].difference or 0))}


def diff(a: CountedRun, b: CountedRun, phase: str = "forward") -> Diff:
    """Compare the totals of ``b`` and ``a``, and the modules and operators in one phase."""
    changes = {name: Change(total_of(a), total_of(b)) for name, (total_of, _) in TOTALS.items()}
    modules = _diff_rows(_modules(a, phase), _modules(b, phase))
    operators = _diff_rows(_operators(a, phase), _operators(b, phase))
    origin = f"a: {a.provenance}; b: {b.provenance}"
    return Diff(_heading_line(a), _heading_line(b), changes, tuple(modules), tuple(operators), origin, phase)


def _heading_line(side: CountedRun) -> str:
    """Return the line that describes a report: the model, inputs, device, mode and counting rules."""
    run = side.run
    where = " · ".join(filter(None, [run.environment.device, run.environment.mode]))
    incomplete = "   INCOMPLETE, a lower bound" if side.missing else ""
    doubt = "   unsteady times" if unsteady(run, totals.nodes_seconds(run)) else ""
    return f"{side.name}   {run.inputs}   {where}   ({side.rules}){incomplete}{doubt}"


Numbers = tuple[float | None, ...]
"""The quantities of one report, in the order of :class:`Changes`. A quantity that was not measured is None."""
Side = dict[str, tuple[Numbers, Numbers]]
"""Maps each module or operator of one report to its total quantities and its own quantities."""


def _modules(counted_run: CountedRun, phase: str) -> Side:
    """Return the quantities of each module's subtree, and of the module's own operations."""
    peaks = highest(counted_run.run.nodes, phase, lambda node: prefixes(node.path))
    return {
        path: (
            (row.total.flops, row.total.macs, row.params, row.total.seconds, peaks.get(path)),
            (row.own.flops, row.own.macs, row.own_params, row.own.seconds, None),
        )
        for path, row in counted_run.modules(phase).items()
    }


def _operators(counted_run: CountedRun, phase: str) -> Side:
    """Return the quantities of each operator. An operator's parameters are the parameters of the leaf modules that called the operator."""
    calls, modules = counted_run.run.calls, counted_run.modules(phase)
    leaves = {(c.op, c.path) for c in calls if c.phase in PARTS[phase] and isinstance(c.target, type)}
    params = {
        op: sum(modules[p].own_params or 0 for p in paths if p in modules) for op, paths in grouped(leaves).items()
    }
    peaks = highest(counted_run.run.nodes, phase, lambda node: {calls[i].op for i in node.calls} or {NO_OPERATION})
    quantities = {
        op: (row.total.flops, row.total.macs, params.get(op, 0), row.total.seconds, peaks.get(op))
        for op, row in by_operator(counted_run.items(phase)).items()
    }
    return {op: (numbers, numbers) for op, numbers in quantities.items()}


def _diff_rows(a: Side, b: Side) -> Iterator[DiffRow]:
    # If a module is missing from a report, its time in this report is 0 s, or None if the report has no times.
    timed = [any(seconds is not None for (*_, seconds, _), _ in side.values()) for side in (a, b)]
    nothing_a, nothing_b = ((0, 0, 0, 0.0 if is_timed else None, None) for is_timed in timed)
    for key in dict.fromkeys([*a, *b]):
        where = BOTH if key in a and key in b else ONLY_A if key in a else ONLY_B
        of_a, of_b = a.get(key, (nothing_a, nothing_a)), b.get(key, (nothing_b, nothing_b))
        total, own = (Changes(*map(Change, one, other)) for one, other in zip(of_a, of_b, strict=True))
        yield DiffRow(key, where, total, own)


def _rows(rows: Iterable[DiffRow], key: str, sort_by: str, origin: str) -> Rows[DiffRow]:
    if sort_by not in SORTS:
        hint = f"; use report.diff(other, phase={sort_by!r}) to compare this phase" if sort_by in PARTS else ""
        raise InputError(f"cannot sort by {sort_by!r}; expected one of {', '.join(map(repr, SORTS))}{hint}")
    names = [SORTS[sort_by], *(name for name in SORTS.values() if name != SORTS[sort_by])]
    largest_first = sorted(rows, key=lambda row: [-abs(getattr(row.total, name).difference or 0) for name in names])
    columns = [Column(key, key), Column("where", "where")]
    for name, (title, kind) in TITLES.items():
        columns += [
            *(Column(f"{name}_{side}", f"{title} {side}", kind) for side in ("a", "b")),
            Column(f"{name}_difference", f"{title} b-a", kind),
            Column(f"{name}_ratio", f"{title} b/a", "number"),
        ]
    return Rows({row.key: row for row in largest_first}, f"{key}s", tuple(columns), _cells, origin)


def _cells(key: str, row: DiffRow) -> list[Cells]:
    numbers = [number for change in row.total for number in (*change, change.difference, change.ratio)]
    return [(key, row.where, *numbers)]


def _sum(rows: Iterable[DiffRow], key: str) -> Change:
    """Return the sum of an own quantity over the rows. The sum is None for a report that has no value of this quantity."""
    changes = [getattr(row.own, key) for row in rows]
    sides = ([number for number in side if number is not None] for side in zip(*changes, strict=True))
    return Change(*(sum(side) if side else None for side in sides))


def _whereabouts(rows: Sequence[DiffRow]) -> str:
    """Say how many rows each report has, e.g. "only in a", "x3" (3 rows in each) or "x2, x3"; "" if each report has 1 row."""
    in_a, in_b = (sum(row.where != absent for row in rows) for absent in (ONLY_B, ONLY_A))
    if not in_a or not in_b:
        return (ONLY_B if in_b else ONLY_A) + (f", x{len(rows)}" if len(rows) > 1 else "")
    return "" if in_a == in_b == 1 else f"x{in_a}" if in_a == in_b else f"x{in_a}, x{in_b}"


def _line(name: str, change: Change, readable: Readable) -> list[str]:
    ratio = "" if change.ratio is None else f"{change.ratio:,.{0 if change.ratio >= 100 else 2}f}x"
    return [plain(name), readable(change.a), readable(change.b), _signed(change.difference, readable), ratio]


def _signed(number: float | None, readable: Readable) -> str:
    if number == 0:
        return "0"
    return readable(number) if number is None or number < 0 else f"+{readable(number)}"
