"""Format reports for the command line: as a summary, tree, table or JSON, printed or written to files.

Options are checked without importing torch, since importing torch takes seconds.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..counting.catalogue_page import Row, counts
from ..errors import InputError
from ..records import OPTIMIZER
from ..render.columns import EXPENDABLE, MODULE_COLUMNS, OPERATIONS, Column, check_units, find, pick
from ..render.table import grid, ordered
from ..render.text import align, plain, printable, terminal_width, wrapped
from ..report.comparison import Comparison
from ..report.diff import Diff
from ..report.picture import missing_converter
from ..report.report import Report
from ..roofline.devices import Device
from ..units import billions

if TYPE_CHECKING:
    from ..ops.packages import Package
    from .options import Asked

DEFAULT_COLUMNS = ("phase", "op", "module", "inputs", "output", "macs", "flops", "seconds", "bytes_peak")


@dataclass(frozen=True, slots=True)
class Shown:
    """The options of ``fxflops run`` that choose what to show in addition to the summary."""

    tree: Annotated[bool, typer.Option("--tree", help="Also show the tree of modules.")] = False
    table: Annotated[bool, typer.Option("--table", help="Also show every operation in run order.")] = False
    depth: Annotated[int | None, typer.Option(min=0, metavar="N", help="Number of levels to show in the --tree.")] = (
        None
    )
    top: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of rows to show in the --table.")] = None
    sort_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column to sort by, largest value first: flops, time, memory ..."),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Columns of the --tree or --table. Without these options: columns of a table with one row per model, such as model, flops, latency, fvcore.",
        ),
    ] = None
    names: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Names of the rows, one per model, when several models are compared."),
    ] = None
    units: Annotated[str | None, typer.Option(metavar="UNIT", help="Show all rows in this unit: G, M, ms, MiB ...")] = (
        None
    )
    json: Annotated[bool, typer.Option("--json", help="Print only the report, as JSON, to stdout.")] = False

    def check(self) -> None:
        """Raise InputError, before the model runs, for options that cannot be combined."""
        if self.json and (self.tree or self.table):
            raise InputError("--json prints only the report as data: leave out --tree and --table")
        if self.names is not None:
            raise InputError("--names needs several models, got one")
        of = {"tree": self.tree, "table": self.table, "tree or --table": self.tree or self.table}
        for name, value, view in (
            ("--depth", self.depth, "tree"),
            ("--top", self.top, "table"),
            ("--sort-by", self.sort_by, "tree or --table"),
            ("--units", self.units, "tree or --table"),
        ):
            if value is not None and not of[view]:
                or_columns = ", or --columns" if name in ("--sort-by", "--units") else ""
                raise InputError(f"{name} {value} needs --{view}{or_columns}")
        check_units(self.units)
        for view, is_shown, known in (("tree", self.tree, MODULE_COLUMNS), ("table", self.table, OPERATIONS)):
            if is_shown:
                try:
                    pick(known, self._columns(known))
                    ordered(known, (), self.sort_by)
                except InputError as error:
                    raise InputError(f"--{view}: {error}") from None

    def _columns(self, known: Sequence[Column]) -> list[str] | None:
        """Return the chosen columns for a view that has the columns ``known``; None for the view's default columns.

        If both the tree and the table are shown, a view skips each chosen column that only the other view has.
        """
        names = [] if self.columns is None else [name.strip() for name in self.columns.split(",")]
        shown = [each for is_shown, each in ((self.tree, MODULE_COLUMNS), (self.table, OPERATIONS)) if is_shown]
        return [name for name in names if _has(known, name) or not any(_has(each, name) for each in shown)] or None

    def text(self, report: Report, color: bool = False) -> str:
        """Return the report as JSON or as text. The text is the summary, followed by the tree and the table if they were requested."""
        from ..render.summary import summary

        if self.json:
            return report.to_json() or ""
        views = ([self._tree(report, color)] if self.tree else []) + ([self._table(report)] if self.table else [])
        return printable("\n\n".join([summary(report._summary, color=color), *views]))

    def _tree(self, report: Report, color: bool) -> str:
        """Return the module tree. If there was a backward pass, return two trees: one for the forward and one for the backward."""
        from ..render.tree import tree

        asked: dict[str, Any] = {"depth": self.depth, "sort_by": self.sort_by, "columns": self._columns(MODULE_COLUMNS)}
        trees = {
            phase: tree(made.root, color=color, **made.options)
            for phase in report._counted_run.phases
            if phase in ("forward", "backward")
            for made in [report.tree(phase=phase, units=self.units, **asked)]
        }
        return "\n\n".join(trees.values() if len(trees) == 1 else (f"{p}\n{text}" for p, text in trees.items()))

    def _table(self, report: Report) -> str:
        """Return a table of the operations in run order, with the chosen columns. By default, columns without values are left out."""
        table, columns = report.table, self._columns(OPERATIONS)
        default = [find(OPERATIONS, key) for key in DEFAULT_COLUMNS]
        measured = [i for i in default if any(row[i] not in (None, "forward") for row in table.rows)]
        sorted_by = None if self.sort_by is None else OPERATIONS[find(OPERATIONS, self.sort_by)].key
        return grid(
            table.columns,
            table.rows,
            sort_by=self.sort_by,
            top=self.top,
            columns=columns or [OPERATIONS[i].key for i in measured],
            units=self.units or "auto",
            noun=table.name,
            shares=("seconds", "flops") if report.total_time else ("flops",),
            elidable=("inputs", "output", "module", "target", "counts"),
            expendable=[] if columns else [key for key in EXPENDABLE if key != sorted_by],
        )


def _has(known: Sequence[Column], name: str) -> bool:
    with suppress(InputError):
        return find(known, name) >= 0
    return False


def listed(lines: Iterable[str]) -> str:
    """Join lines that contain a name and its explanation. On a terminal, a long explanation is wrapped within its own column."""
    width = terminal_width()
    return "\n".join(wrapped(line, width, len(line) - len(line.partition("  ")[2].lstrip())) for line in lines)


def ops_text(rows: Iterable[Row], brief: bool) -> str:
    """Return a list of the ops, with the counting rule of each op. Unless ``brief``, also list the functions and modules that are counted
    as the op."""
    if brief:
        return listed(align([(row.op, counts(row)) for row in rows], [False, False]))
    width = min(terminal_width() or 100, 100)
    wrapper = textwrap.TextWrapper(width, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    blocks = []
    for row in rows:
        reached = [f"as {', '.join(row.targets)}"] if row.targets else []
        blocks += [row.op, *map(wrapper.fill, [counts(row), *reached])]
    return "\n".join(blocks)


def packages_text(packages: Sequence[Package], group: str) -> str:
    """List the libraries that add formulas. Each line shows a library's ops, or the error raised when its formulas were loaded."""
    if not packages:
        return f"no installed library adds formulas: none has an entry point in {group}"
    rows = [
        (
            each.distribution or each.name,
            each.place,
            f"failed to load: {each.error}" if each.error else ", ".join(each.ops),
        )
        for each in packages
    ]
    return listed(align(rows, [False, False, False]))


def incomplete_lines(report: Report, allowed: bool) -> list[str]:
    """Return lines that list the ops missing from the counts. A complete report has no such lines."""
    if report.complete:
        return []
    said = "allowed" if allowed else "give --allow-incomplete to let this pass"
    missing = [f"      {each.op} x{each.calls}, first in {each.path or 'the root'}" for each in report.missing]
    return [f"INCOMPLETE  ({said})  FLOPs and MACs are lower bounds; operations without a formula:", *missing]


def check_suffix(path: Path) -> None:
    """If the suffix or the folder of this file makes it impossible to write the file, raise InputError before a model runs."""
    from ..render.files import FORMATS

    if not path.name.lower().endswith(tuple(FORMATS)):
        raise InputError(f"--save {path}: expected a file name that ends in one of {', '.join(FORMATS)}")
    if missing := missing_converter(path.suffix):
        raise InputError(f"--save {path}: {missing}")
    if not path.parent.is_dir():
        raise InputError(f"--save {path}: there is no folder {str(path.parent)!r}")


def write(result: Report | Comparison | Diff, path: Path) -> None:
    """Write a result to a file, in the format of the file's suffix."""
    try:
        result.save(path)
    except OSError as error:
        raise InputError(f"--save {path}: {error.strerror or error}") from None
    note(f"wrote {path}")


def note(text: str) -> None:
    """Print a note to stderr, since stdout is for results."""
    print(f"fxflops: {text}", file=sys.stderr)


def colored() -> bool:
    """Return True if stdout is a terminal and the user has not turned colours off (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


IN_HALF = "everything is in f32: --autocast bf16 (or f16) halves the memory of matrix products and of the tensors that they save for backward"
WHAT_FITS = (
    "fxflops predict ... --what-fits finds the largest batch",
    "and the modules to checkpoint; fxflops mesh splits a language model over several cards",
)
"""Advice for a run that does not fit in memory, as arguments of :func:`~fxflops.prediction.memory.advice`."""


def subject_line(report: Report, asked: Asked) -> str:
    """Describe in one line what was counted: the model, its parameters and their dtype, the inputs and the phases."""
    data = report._summary
    dtypes = {each.spec.dtype_name for each in report.live_at_peak if each.category == "params"}
    phases = [
        asked.optimizer if phase == OPTIMIZER and asked.optimizer else phase for phase in report._counted_run.phases
    ]
    parts = [
        data.title,
        f"{billions(data.params.total)} parameters in {' and '.join(sorted(dtypes))}" if data.params and dtypes else "",
        f"input {data.inputs}" if data.inputs else "",
        " + ".join(phases),
        f"autocast {asked.autocast}" if asked.autocast else "",
    ]
    return wrapped(plain(" · ".join(filter(None, parts))), terminal_width(), 4)


def fits_text(report: Report, card: Device) -> str:
    """Say whether a run fits in a card's memory ("H100 SXM: fits: 61.9 of 79.2 GiB ...") and, if it does not, what to do."""
    from ..prediction.memory import advice, notes, verdict

    memory = report.reserved(card)
    return "\n".join([f"{card.name}: {verdict(memory)}", *notes(memory), *advice(memory, *WHAT_FITS)])
