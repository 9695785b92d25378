"""A table with one row per model: ``fxflops run A B C`` prints it, and so does ``fxflops run A --columns flops,fvcore``."""

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
from .libraries import is_from_a_library
from .options import Asked
from .reports import is_saved, report_of
from .shown import Shown


def check(shown: Shown, save: Iterable[Path]) -> None:
    """Raise InputError, before any model runs, for options that do not work for a table with one row per model."""
    for name, value in (("tree", shown.tree), ("table", shown.table)):
        if value:
            raise InputError(
                f"--{name} needs a single model, but got several; without --{name}, one table compares the models, with one row per model"
            )
    if shown.depth is not None:
        raise InputError(f"--depth {shown.depth} needs --tree")
    check_units(shown.units)
    if shown.columns is not None:
        figure_keys(shown.columns)
    if shown.sort_by is not None:
        figure_keys(shown.sort_by)
    for path in save:
        if not path.name.endswith(SUFFIXES) or path.name.endswith(".trace.json"):
            raise InputError(f"--save {path}: a table of several models can be saved as one of {', '.join(SUFFIXES)}")


def reports_of(models: Mapping[str, str], asked: Asked, timed: Mapping[str, Any] | None) -> dict[str, Report]:
    """Return the report of each model by row name. Options for inputs are ignored for saved reports.

    Raises InputError before any model runs if a file is missing, or if a model cannot be loaded or has no inputs.
    """
    saved = {name: report_of(model, asked.of_saved(), None) for name, model in models.items() if is_saved(model)}
    unsaved = [model for name, model in models.items() if name not in saved]
    if len(unsaved) > 1:
        from .runs import check_loads

        # The user's own files come first, since they are the most likely to be wrong.
        for model in sorted(unsaved, key=is_from_a_library):
            check_loads(model, asked)
    return {name: saved.get(name) or report_of(model, asked, timed) for name, model in models.items()}


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
        raise InputError(
            f"two rows have the name {twice}: list each model only once, or give each row its own name with --names"
        )
    return by_row


def text(comparison: Comparison, shown: Shown) -> str:
    """Return the table as text or JSON. If ``--sort-by`` names a column, rows are in descending order of this column."""
    table: Table = comparison.select(sort_by=shown.sort_by, top=shown.top)
    if shown.json:
        return table.to_json() or ""
    lines = [grid(table.columns, table.rows, units=table.units, elidable=("model", "inputs")), *table.notes]
    return printable("\n".join(lines))
