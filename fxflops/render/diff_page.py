"""Two reports side by side as an HTML page without a script. The page has tables; each row has a bar for both reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .conclusion import Compared, compared
from .page import document, ending, scrollable, section
from .text import escaped, plain

HEADER = ("a", "b", "difference", "ratio")
MOST_ROWS = 25
"""The maximum number of rows in a table. The rows with the largest differences come first."""


def diff_page(
    title: str, a: str, b: str, totals: Sequence[Compared], parts: Mapping[str, Sequence[Compared]], origin: str = ""
) -> str:
    """Return the page. ``a`` and ``b`` describe the two reports. ``parts`` maps the heading of each table to its rows. ``origin`` is the
    provenance of both reports."""
    names = "".join(
        f'<div class="card"><dt><span class="dot side {side}"></span>{side}</dt><dd class="said">{escaped(said)}</dd></div>'
        for side, said in (("a", a), ("b", b))
    )
    title = title or f"{plain(a).split('  ')[0]} and {plain(b).split('  ')[0]}"
    said = compared(totals, parts)
    return document(
        title,
        [
            f"<header><h1>{escaped(title)}</h1></header><main>",
            f'<p class="conclusion">{escaped(said)}</p>',
            f'<dl class="cards pair">{names}</dl>',
            _section("In all", totals),
            *(_section(heading, rows) for heading, rows in parts.items()),
            ending(origin),
        ],
    )


def _section(heading: str, rows: Sequence[Compared]) -> str:
    """Return a section with a table. In the table of totals, each row has its own scale, because the totals have different units."""
    name = "-".join(heading.lower().split())
    most = max((value or 0 for row in rows for value in (row.a, row.b)), default=0)
    head = "".join(f'<th scope="col" class="n">{text}</th>' for text in HEADER)
    body = "".join(_row(row, max(row.a or 0, row.b or 0) if heading == "In all" else most) for row in rows[:MOST_ROWS])
    more = f'<p class="note">{len(rows) - MOST_ROWS} more rows differ by less.</p>' if len(rows) > MOST_ROWS else ""
    table = f'<table class="plain steps sides"><thead><tr><td></td>{head}<td></td></tr></thead><tbody>{body}</tbody></table>'
    return section(name, heading[0].upper() + heading[1:], scrollable(f"table of {heading}", table) + more)


def _row(row: Compared, most: float) -> str:
    name, *values = row.shown
    note = f" <small>{escaped(row.note)}</small>" if row.note else ""
    cells = "".join(f'<td class="n">{escaped(value)}</td>' for value in values)
    bars = "".join(
        f'<span class="side {side}" style="width:{100 * value / most:.2f}%"></span>'
        for side, value in (("a", row.a), ("b", row.b))
        if value
    )
    return f'<tr><th scope="row">{escaped(name)}{note}</th>{cells}<td class="bars">{bars}</td></tr>'
