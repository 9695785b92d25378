"""Several models as an HTML page without a script. The page has a table of the models, and a scatter plot with one point per model."""

from __future__ import annotations

from .charts import Chart, placed
from .exports import Table
from .html import cells_table, note
from .page import document, ending, scrollable, section
from .text import escaped


def comparison_page(title: str, table: Table, chart: Chart | None) -> str:
    """Return the page. ``chart`` is None if a value for the chart is unknown for some model."""
    rows = cells_table(table.columns, table.rows, table.units, sortable=False)
    notes = "".join(map(note, table.notes))
    return document(
        title,
        [
            f"<header><h1>{escaped(title)}</h1></header><main>",
            section("models", "Models", scrollable("table of models", rows) + notes),
            *([section("figure", chart.title, placed(chart))] if chart is not None else []),
            ending(table.provenance),
        ],
    )
