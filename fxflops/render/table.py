"""Tables as text. The rows are filtered and sorted, fitted to the terminal's width, and formatted with tabulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from ..counting.steps import HOST, NO_OPERATION
from ..errors import InputError
from ..units import percent
from .columns import Column, check_number, check_units, find, pick
from .text import cells, elide, terminal_width, wrapped

READABLE, NARROWEST = 20, 12
"""Texts are not shortened below READABLE cells if a column can be dropped instead, and never below NARROWEST cells."""
MARKUP = ("html", "latex", "tsv", "wiki", "textile", "youtrack", "jira", "moin", "asciidoc")
EXPLAINED = {
    NO_OPERATION: "time outside all operations, e.g. for an input, an index into a tuple, or a shape query",
    HOST: "time between the operations, in Python and in torch before and after a kernel",
}


class Printed(NamedTuple):
    """A column as it is printed: its title and the text of each cell."""

    column: Column
    title: str
    texts: list[str]


def grid(
    known: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    *,
    sort_by: str | None = None,
    top: int | None = None,
    columns: Sequence[str] | str | None = None,
    where: Mapping[str, Any] | None = None,
    units: str | None = None,
    tablefmt: str = "simple",
    width: int | None = None,
    noun: str = "rows",
    shares: Sequence[str] = (),
    elidable: Sequence[str] = (),
    expendable: Sequence[str] = (),
) -> str:
    """Return a table as text, with one line for each row.

    Args:
        known: the columns of the rows.
        sort_by: the header or key of the column to sort by, e.g. "time" for ``time(ms)``. Numbers are sorted in descending order, text in
            ascending order.
        top: the number of rows to show. Except in markup, a footer shows which share of each column in ``shares`` these rows have.
        columns: the columns to show, in this order.
        where: conditions for the rows to show. For each column, a condition is the required value or a function that tests the value.
        units: Pass None for raw numbers, "auto" for readable numbers, or one unit ("G", "MiB", "ms") for the columns that this unit fits. The
            other columns then have readable numbers, or raw numbers if their headers have the unit.
        tablefmt: a format of tabulate.
        width: the number of cells in a line; by default the terminal's width. If the table is wider, the texts of ``elidable`` columns are
            shortened, in this order. If the table is still too wide, ``expendable`` columns are dropped, and a line below the table names
            the dropped columns.
    """
    check_units(units)
    check_number("top", top, least=1)
    tests = [(find(known, name), wanted) for name, wanted in (where or {}).items()]
    kept = [row for row in rows if all(_holds(wanted, row[i]) for i, wanted in tests)]
    chosen = ordered(known, kept, sort_by)[:top]
    shown = [
        Printed(known[i], known[i].title(units), [known[i].show(row[i], known[i].unit(units)) for row in chosen])
        for i in pick(known, columns)
    ]
    limit = terminal_width() if width is None else width
    is_markup = any(word in tablefmt for word in MARKUP)
    text, lost = _fitted(shown, tablefmt, None if is_markup else limit, elidable, expendable)
    notes = [
        wrapped(each, limit, 0) for each in (*explained(chosen), *([f"no room for {', '.join(lost)}"] if lost else []))
    ]
    if len(chosen) < len(rows):
        notes = [_footer(known, rows, kept, chosen, sort_by, noun, shares, units), *notes]
    if not notes or is_markup:
        return text
    # Without a blank line, Markdown would treat the notes as rows of the table.
    return "\n".join([text, *([""] if tablefmt in ("github", "pipe") else []), *notes])


def explained(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the notes below a table. The notes explain special words in the table's rows, e.g. "(host)"."""
    words = {word for row in rows for word in row if isinstance(word, str)}
    return [f"{word}: {said}" for word, said in EXPLAINED.items() if word in words]


result_table = partial(
    grid, tablefmt="rst", noun="nodes", shares=("time(ms)", "flops"), elidable=("op_target", "node_name")
)
"""A function that returns the table of nodes with the columns of torch_flops."""


def ordered(columns: Sequence[Column], rows: Sequence[Sequence[Any]], by: str | None) -> list[Sequence[Any]]:
    """Sort the rows by a column: first numbers in descending order, then text in ascending order, then None. The sort is stable.

    Raises InputError for a column of numbers without any values.
    """
    if by is None:
        return list(rows)
    position = find(columns, by)
    if rows and columns[position].is_number and all(row[position] is None for row in rows):
        raise InputError(f"cannot sort by {by!r}: this column was not measured")
    return sorted(rows, key=lambda row: _rank(row[position]))


def _footer(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    kept: Sequence[Sequence[Any]],
    chosen: Sequence[Sequence[Any]],
    sort_by: str | None,
    noun: str,
    shares: Sequence[str],
    units: str | None,
) -> str:
    """Return a line about the rows that are shown, e.g. ``top 4 of 221 nodes: 61.2% of time(ms)``."""
    cut = "" if len(chosen) == len(kept) else "first " if sort_by is None else "top "
    is_all = len(kept) in (len(rows), len(chosen))
    whole = f"{len(rows)} {noun}" if is_all else f"{len(kept)} matching, {len(rows)} {noun} in all"
    positions = [find(columns, name) for name in shares]
    if sort_by is not None:
        positions.sort(key=find(columns, sort_by).__ne__)  # the column that the rows are sorted by comes first
    held = []
    for i in positions:
        sums = (sum(row[i] for row in some if isinstance(row[i], Real)) for some in (chosen, rows))
        share = percent(*sums)
        held += [] if share is None else [f"{share:.1f}% of {columns[i].title(units)}"]
    return f"{cut}{len(chosen)} of {whole}" + (f": {', '.join(held)}" if held else "")


def _holds(wanted: Any, value: Any) -> bool:
    """Return whether a cell has the wanted value or passes the wanted test. A cell without a number fails a comparison with a number."""
    try:
        return bool(wanted(value) if callable(wanted) else value == wanted)
    except TypeError:
        if value is None or isinstance(value, str):
            return False
        raise


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return 2, 0
    return (0, -value) if isinstance(value, Real) else (1, str(value))


def _fitted(
    shown: Sequence[Printed], tablefmt: str, limit: int | None, elidable: Sequence[str], expendable: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the table as text that is at most ``limit`` characters wide, and the headers of the columns that were dropped to make it fit."""
    if limit is None:
        return _tabulated(shown, tablefmt), []
    spared = [key for key in expendable if any(each.column.key == key for each in shown)]
    for lost in range(len(spared) + 1):
        kept = [each for each in shown if each.column.key not in spared[:lost]]
        text = _cut(kept, tablefmt, limit, elidable, READABLE if lost < len(spared) else NARROWEST)
        if _excess(text, limit) <= 0:
            break
    return text, [each.column.header for each in shown if each.column.key in spared[:lost]]


def _cut(shown: list[Printed], tablefmt: str, limit: int, elidable: Sequence[str], least: int) -> str:
    """Return the table as text. Shorten the texts of ``elidable`` columns, one column after the other, until the table fits."""
    text = _tabulated(shown, tablefmt)
    for key in elidable:
        excess = _excess(text, limit)
        for i, (column, _, texts) in enumerate(shown):
            if excess > 0 and texts and column.key == key:
                room = max(max(map(cells, texts)) - excess, least)
                shown[i] = shown[i]._replace(texts=[elide(text, room) for text in texts])
                text = _tabulated(shown, tablefmt)
    return text


def _excess(text: str, limit: int) -> int:
    return max(map(cells, text.splitlines()), default=0) - limit


def _tabulated(shown: Sequence[Printed], tablefmt: str) -> str:
    from tabulate import tabulate, tabulate_formats

    if tablefmt not in tabulate_formats:
        raise InputError(f"unknown tablefmt {tablefmt!r}; expected one of {', '.join(tabulate_formats)}")
    columns = [each.texts for each in shown]
    if tablefmt in ("github", "pipe"):
        columns = [[text.replace("|", r"\|") for text in texts] for texts in columns]
    body = list(zip(*columns, strict=True))
    sides = ["right" if each.column.is_number else "left" for each in shown]
    titles = [each.title for each in shown]
    # Cells are already text. With number parsing, tabulate would treat a module named "0" as a number.
    return tabulate(body, titles, tablefmt=tablefmt, disable_numparse=True, colalign=sides if body else None)
