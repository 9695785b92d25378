"""``compare``: a table of several models with one row per model, as in papers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..conventions import CONVENTIONS, OF_MACS, check_convention, title_of
from ..errors import InputError, of_kind
from ..render.charts import Chart, picture
from ..render.columns import Column, check_units, pick, titled
from ..render.exports import Table, Tabular
from ..render.files import Path, method_for, written, written_bytes
from .picture import as_pdf, as_png
from .report import Report
from .tables import COUNTS

SUFFIXES = ".csv", ".json", ".md", ".tex", ".html", ".svg", ".png", ".pdf"
"""The file suffixes that :meth:`Comparison.save` accepts."""

Figure = Callable[[Report], Any]
FIGURES: dict[str, tuple[Column, Figure]] = {
    column.key: (column, figure)
    for column, figure in (
        (Column("model", "model"), lambda report: report.name),
        (Column("inputs", "inputs"), lambda report: report.inputs),
        (Column("device", "device"), lambda report: report.environment.device),
        (Column("params", "params", "elements"), lambda report: report.total_params),
        (Column("trainable", "trainable", "elements"), lambda report: report.params and report.params.trainable),
        (Column("params_bytes", "params bytes", "B"), lambda report: report.params and report.params.bytes),
        (Column("macs", "MACs", "flops"), lambda report: report.total_macs),
        (Column("flops", "FLOPs", "flops"), lambda report: report.total_flops),
        (Column("backward_flops", "backward FLOPs", "flops"), lambda report: report.total_backward_flops),
        (Column("training_flops", "training FLOPs", "flops"), lambda report: report.total_training_flops),
        (Column("recompute_flops", "recompute FLOPs", "flops"), lambda report: report.total_recompute_flops or None),
        (Column("int_ops", "int ops", "flops"), lambda report: report.total_int_ops),
        (Column("activations", "MAC outputs", "elements"), lambda report: report.total_activations),
        (Column("latency", "latency", "s"), lambda report: report.latency),
        (
            Column("backward_latency", "backward latency", "s"),
            lambda report: report.backward_timing and report.backward_timing.median,
        ),
        (Column("block_time", "block time", "s"), lambda report: report.block_time),
        (Column("memory", "peak memory", "B"), lambda report: report.max_memory),
        (Column("mfu", "MFU (%)", "%"), lambda report: report._utilization and 100 * report._utilization),
        (Column("missing", "missing", "number"), lambda report: sum(each.calls for each in report.missing)),
        (Column("convention", "convention"), lambda report: report.convention),
    )
}
"""Maps the key of each possible column to the column and a function that reads the column's value from a report."""
OF_TIME = frozenset({"latency", "backward_latency", "block_time", "mfu"})
"""The columns whose values depend on measured times."""
MEASURED = "training_flops", "recompute_flops", "latency", "backward_latency", "block_time", "memory", "missing"
"""Columns that are shown if at least one report has a value for the column."""
SHARED = "inputs", "device"
"""Columns that are shown if the reports have different values in the column."""


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """A table with one row per model, returned by :func:`compare`. ``print`` and notebooks show the table.

    ``reports`` maps the name of each row to its report. A value is None if the report does not contain it. For example, a model that was
    only counted has no latency. FLOPs of an incomplete report are a lower bound. The column ``missing`` is the number of calls without a
    formula.
    """

    reports: Mapping[str, Report]
    columns: tuple[str, ...] | None = None
    conventions: tuple[str, ...] = ()
    units: str = "auto"

    @cached_property
    def table(self) -> Table:
        """The table with raw values, in elements, counts, seconds and bytes."""
        return replace(_table(self.reports, self.columns, self.conventions), units=self.units)

    def to_html(self, path: Path | None = None, *, title: str = "") -> str | None:
        """Return one HTML page with the table and the chart. With ``path``, write the page to this file instead. The page needs no server,
        loads no other files and runs no script. ``title`` is the page's heading; the default heading is the number of models."""
        from ..render.comparison_page import comparison_page

        try:
            chart = self._chart("flops", None)
        except InputError:  # a value is unknown for some models
            chart = None
        title = title or ("1 model" if len(self.reports) == 1 else f"{len(self.reports)} models compared")
        return written(comparison_page(title, self.table, chart), path)

    def to_svg(self, path: Path | None = None, *, x: str = "flops", y: str | None = None) -> str | None:
        """Return a scatter plot as SVG, or write the plot to ``path``. Each model is a point. The axes are two columns of the table.

        The default for ``y`` is the latency if all models were timed. If some models were not timed, ``y`` is the number of parameters. An
        axis that spans a factor of 20 or more is logarithmic. A hollow point is a model with unsteady times. Raises InputError for a column
        without numbers.
        """
        return written(picture(self._chart(x, y), self.table.provenance), path)

    def _chart(self, x: str, y: str | None) -> Chart:
        """Return the scatter plot of the models. Raises InputError if a model has no value for an axis."""
        from ..render.scatter import scatter_chart

        is_timed = all(report.latency is not None for report in self.reports.values())
        keys = [_key(name) for name in (x, y or ("latency" if is_timed else "params"))]
        figures = _table(self.reports, keys, self.conventions)
        points = dict(zip(self.reports, figures.rows, strict=True))
        axes = figures.columns[0], figures.columns[1]
        for i, column in enumerate(axes):
            if not column.is_number:
                raise InputError(f"cannot use {column.key!r} as an axis: the values are not numbers")
            unknown = [name for name, point in points.items() if point[i] is None]
            if unknown:
                raise InputError(f"cannot use {column.key!r} as an axis: the value is unknown for {', '.join(unknown)}")
        is_time = any(column.kind == "s" for column in axes)
        unsteady = [name for name, report in self.reports.items() if is_time and report.unsteady]
        return scatter_chart(points, *axes, _common_inputs(self.reports), unsteady)

    def to_png(self, path: Path | None = None, *, x: str = "flops", y: str | None = None) -> bytes | None:
        """Return the plot of :meth:`to_svg` as PNG, with 2 pixels per SVG pixel. With ``path``, write the PNG to this file instead. Needs
        ``pip install resvg-py``."""
        return written_bytes(as_png(self.to_svg(x=x, y=y) or ""), path)

    def to_pdf(self, path: Path | None = None, *, x: str = "flops", y: str | None = None) -> bytes | None:
        """Return the plot of :meth:`to_svg` as PDF, or write the PDF to ``path``. Needs ``pip install cairosvg``."""
        return written_bytes(as_pdf(self.to_svg(x=x, y=y) or ""), path)

    def save(self, path: Path) -> None:
        """Write the comparison to ``path``. The suffix of ``path``, one of :data:`SUFFIXES`, determines the format."""
        method = getattr(self, method_for(path), None)
        if method is None or not os.fspath(path).lower().endswith(SUFFIXES):
            raise InputError(
                f"{os.fspath(path)!r}: unsupported suffix for a comparison; expected one of {', '.join(SUFFIXES)}"
            )
        method(path)


def compare(
    reports: Iterable[Report] | Mapping[str, Report],
    columns: Sequence[str] | str | None = None,
    *,
    conventions: Sequence[str] | str = (),
    units: str = "auto",
) -> Comparison:
    """Return a table with one row per model: parameters, MACs, FLOPs, and measured times and memory.

    >>> from torch import nn
    >>> one, two = (fxflops.count(nn.Linear(8, width), torch.rand(4, 8)) for width in (16, 32))
    >>> print(fxflops.compare({"narrow": one, "wide": two}, "model, params, macs, flops"))
    model      params    MACs    FLOPs
    -------  --------  ------  -------
    narrow        144     512   1.09 k
    wide          288   1.02 k  2.18 k

    Args:
        reports: reports, or a mapping from the name of each row to its report. All reports must be counted under the same convention.
        columns: the columns to show, in this order, as names or in one string: model, inputs, device, params, trainable, params_bytes,
            macs, flops, backward_flops, training_flops, recompute_flops, int_ops, activations, latency, backward_latency, block_time, memory, mfu,
            missing, convention, or the name of a convention: "fvcore" is the count of the tool fvcore. The default is all columns for which the
            reports have values.
        conventions: additional conventions, such as "fvcore" and "thop". Each convention adds a column with its FLOPs or MACs.
        units: one unit for the columns that it fits, such as "G", "ms" or "MiB"; the default "auto" chooses the units.

    Raises InputError if no reports are passed, if an argument is not a report, or if the reports are counted under different conventions.
    """
    by_name = _by_name(reports)
    conventions_used = {report.convention for report in by_name.values()}
    if len(conventions_used) > 1:
        raise InputError(
            f"the reports use different conventions ({' and '.join(sorted(conventions_used))}): "
            "recount the reports with report.recount('fxflops'), then pass conventions=(...) to show a column per convention"
        )
    further = (conventions,) if isinstance(conventions, str) else tuple(conventions)
    for name in further:
        check_convention(name)
    keys = None if columns is None else figure_keys(columns)
    check_units(units)
    return Comparison(
        by_name, None if keys is None else (*keys, *(each for each in further if each not in keys)), further, units
    )


def figure_keys(columns: Sequence[str] | str) -> tuple[str, ...]:
    """Return the keys of the columns that the caller names, in a sequence or in a comma-separated string.

    The name of a column is the column's key, the column's header, or a convention.

    Raises InputError for an unknown name.
    """
    names = columns.split(",") if isinstance(columns, str) else columns
    return tuple(_key(name.strip()) for name in names)


def _by_name(reports: Iterable[Report] | Mapping[str, Report]) -> dict[str, Report]:
    """Return the reports by name. The names are the keys of a mapping or, for a list, the models' names. If a name occurs several times, it
    gets a number."""
    if isinstance(reports, Report):
        raise of_kind(InputError("compare() expects several reports in a list: compare([one, other])"), TypeError)
    pairs = [*reports.items()] if isinstance(reports, Mapping) else [(None, report) for report in reports]
    by_name: dict[str, Report] = {}
    for key, report in pairs:
        if not isinstance(report, Report):
            kind = type(report).__name__
            advice = f"compare() expects reports, such as fxflops.count(model, args), got {kind}"
            raise of_kind(InputError(advice), TypeError)
        requested = report.environment.asked
        base_name = key or requested or report.model
        number = 2
        name = base_name
        while name in by_name:
            name, number = f"{base_name} ({number})", number + 1
        by_name[name] = report
    if not by_name:
        raise InputError("compare() expects at least one report, got none")
    return by_name


def _key(name: str) -> str:
    if name in CONVENTIONS and name != "fxflops":
        return name
    columns = [column for column, _ in FIGURES.values()]
    try:
        return columns[pick(columns, [name])[0]].key
    except InputError as error:
        raise InputError(f"{error}; a convention can also be a column: {', '.join(CONVENTIONS)}") from None


def _table(reports: Mapping[str, Report], keys: Sequence[str] | None, conventions: Sequence[str]) -> Table:
    """Return the table. Without ``keys``, the table has every column for which the reports have values."""
    first = next(iter(reports.values()))
    shown_keys = keys
    if shown_keys is None:
        varying = [key for key in SHARED if len({FIGURES[key][1](report) for report in reports.values()}) > 1]
        shown_keys = ["model", *varying, *COUNTS, *conventions, *MEASURED]
    columns = [_column(key, first.convention) for key in shown_keys]
    rows = [
        tuple(name if key == "model" else _figure(key, report) for key in shown_keys)
        for name, report in reports.items()
    ]
    origin = first.environment._replace(asked="").provenance
    notes = _notes(reports, shown_keys, are_chosen=keys is not None)
    table = Table("models", tuple(columns), tuple(rows), keys is not None, provenance=origin, notes=notes)
    return table if keys is not None else table.without_empty_columns(COUNTS)


def _column(key: str, convention: str) -> Column:
    """Return the column for a key. The header contains the reports' convention, or the convention that the key names."""
    if key in FIGURES:
        return titled((FIGURES[key][0],), title_of(convention))[0]
    return Column(key, f"{key} {'MACs' if key in OF_MACS else 'FLOPs'}", "flops")


def _figure(key: str, report: Report) -> Any:
    return FIGURES[key][1](report) if key in FIGURES else report.recount(key).total_flops


def _common_inputs(reports: Mapping[str, Report]) -> str:
    """Return the inputs as text if all reports have the same inputs, else ""."""
    inputs = {report.inputs for report in reports.values()} - {""}
    return f"inputs {inputs.pop()}" if len(inputs) == 1 else ""


def _notes(reports: Mapping[str, Report], shown_keys: Sequence[str], are_chosen: bool) -> tuple[str, ...]:
    """Return the notes below the table: the inputs that all models share, and warnings about values that are not comparable or not exact."""
    convention = next(iter(reports.values())).convention
    common = _common_inputs(reports)
    notes = [
        f"{common} · convention {convention}" if common and "inputs" not in shown_keys else f"convention {convention}"
    ]
    if not common and "inputs" not in shown_keys:
        inputs = [f"{name} {report.inputs}" for name, report in reports.items() if report.inputs]
        notes += [f"inputs: {', '.join(inputs)}"] if inputs else []
    sources = [
        f"{name} is {requested}"
        for name, report in reports.items()
        if (requested := report.environment.asked) not in ("", name)
    ]
    notes += [", ".join(sources)] if sources else []
    if not OF_TIME.isdisjoint(shown_keys):
        notes += [f"{name}: unsteady times, {report.unsteady}" for name, report in reports.items() if report.unsteady]
    untimed = [key for key in shown_keys if key in OF_TIME and all(_figure(key, r) is None for r in reports.values())]
    if untimed and are_chosen:
        notes.append(f"{', '.join(untimed)}: not measured, since the models were counted but not timed")
    if any(not report.complete for report in reports.values()):
        notes.append("missing: number of calls without a formula; FLOPs and MACs of such models are lower bounds")
    return tuple(notes)
