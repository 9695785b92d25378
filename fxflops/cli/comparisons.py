"""Several models on the command line: ``fxflops run A B C`` prints a table with one row per model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..render.columns import check_units
from ..render.exports import Table
from ..render.table import grid
from ..render.text import printable
from ..report.comparison import SUFFIXES, Comparison, figure_keys
from ..report.report import Report
from .options import Asked
from .reports import is_saved, report_of
from .shown import Shown


def check(shown: Shown, save: Iterable[Path]) -> None:
    """Raise InputError, before any model runs, for options that do not work with several models."""
    for name, value in (("tree", shown.tree), ("table", shown.table), ("depth", shown.depth)):
        if value not in (None, False):
            raise InputError(
                f"--{name} needs a single model, but got several; without --{name}, one table compares the models, with one row per model"
            )
    check_units(shown.units)
    if shown.columns is not None:
        figure_keys(shown.columns)
    if shown.sort_by is not None:
        figure_keys(shown.sort_by)
    for path in save:
        if not path.name.endswith(SUFFIXES) or path.name.endswith(".trace.json"):
            raise InputError(f"--save {path}: a table of several models can be saved as one of {', '.join(SUFFIXES)}")


def reports_of(models: Mapping[str, str], asked: Asked, timed: Mapping[str, Any] | None) -> dict[str, Report]:
    """Return the report of each model by row name. Options for inputs are ignored for saved reports."""
    return {
        name: report_of(model, asked.of_saved(), None) if is_saved(model) else report_of(model, asked, timed)
        for name, model in models.items()
    }


def by_name(models: Sequence[str], names: str | None) -> dict[str, str]:
    """Return the models by row name. The names come from ``--names``; by default they are the models' names or the saved reports' file names."""
    if names is None:
        own = [Path(model).stem if is_saved(model) else model for model in models]
        rows = own if len({*own}) == len(own) else [*models]
    else:
        rows = [name.strip() for name in names.split(",")]
        if len(rows) != len(models):
            raise InputError(f"--names {names}: got {len(rows)} names for {len(models)} models")
    by_row = dict(zip(rows, models, strict=True))
    if len(by_row) < len(rows):
        twice = next(row for i, row in enumerate(rows) if row in rows[:i])
        raise InputError(f"two rows have the name {twice}: give a model once, or different --names")
    return by_row


def text(comparison: Comparison, shown: Shown) -> str:
    """Return the table as text or JSON. If ``--sort-by`` names a column, rows are in descending order of this column."""
    table: Table = comparison.select(sort_by=shown.sort_by, top=shown.top)
    if shown.json:
        return table.to_json() or ""
    lines = [grid(table.columns, table.rows, units=shown.units or "auto", elidable=("model", "inputs")), *table.notes]
    return printable("\n".join(lines))
