"""Tables as text: rows are filtered, sorted, cut to the width, and printed with tabulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from ..errors import InputError
from .columns import Column, check_number, check_units, column_of, find, pick
from .text import cells, elide, terminal_width, wrapped

Where = Mapping[str, Any]
READABLE, NARROWEST = 20, 12
"""Cells that a shortened text keeps: as long as a column can be left out instead, and after that."""
MARKUP = ("html", "latex", "tsv", "wiki", "textile", "youtrack", "jira", "moin", "asciidoc")


def result_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    sort_by: str | None = None,
    top: int | None = None,
    columns: Sequence[str] | str | None = None,
    where: Where | None = None,
    units: str | None = None,
    tablefmt: str = "rst",
    width: int | None = None,
) -> str:
    """Return the table of nodes in torch_flops' columns; arguments are as for :func:`grid`."""
    return grid(
        header,
        rows,
        sort_by=sort_by,
        top=top,
        columns=columns,
        where=where,
        units=units,
        tablefmt=tablefmt,
        width=width,
        noun="nodes",
        shares=("time(ms)", "flops"),
        elidable=("op_target", "node_name"),
    )


def grid(
    header: Sequence[str | Column],
    rows: Sequence[Sequence[Any]],
    *,
    sort_by: str | None = None,
    top: int | None = None,
    columns: Sequence[str] | str | None = None,
    where: Where | None = None,
    units: str | None = None,
    tablefmt: str = "simple",
    width: int | None = None,
    noun: str = "rows",
    shares: Sequence[str] = (),
    elidable: Sequence[str] = (),
    expendable: Sequence[str] = (),
) -> str:
    """Return a table as text, one line for each row.

    Args:
        header: the text above each column, whose ending gives the kind of its values (``time(ms)``), or the Column.
        sort_by: a column, by its header or bare name ("time" for ``time(ms)``); numbers descending, text ascending.
        top: the number of rows to show; a footer gives their share of each column in ``shares`` (not in markup).
        columns: the columns to show, in this order.
        where: for some columns, the value that a row must have there to be shown, or a function that tests the value.
        units: None for raw numbers, "auto" for readable ones, or one unit ("G", "MiB", "ms") for the columns it fits.
        tablefmt: a format of tabulate.
        width: cells in a line; by default the terminal's. In a wider table the texts of ``elidable`` columns are cut, in
            this order; if that is not enough, ``expendable`` columns are left out, and a line below the table names them.
    """
    check_units(units)
    check_number("top", top, least=1)
    known = [
        title if isinstance(title, Column) else column_of(title, (row[i] for row in rows))
        for i, title in enumerate(header)
    ]
    shown = pick(known, columns)
    kept = matching(known, rows, where)
    chosen = ordered(known, kept, sort_by)[:top]
    titles = [column.header if column.unit(units) is None else column.key for column in known]
    body = [[known[i].show(row[i], known[i].unit(units)) for i in shown] for row in chosen]
    text, lost = _fitted(
        [titles[i] for i in shown], body, [known[i] for i in shown], tablefmt, width, elidable, expendable
    )
    notes = [
        footer(known, rows, kept, chosen, sort_by, noun, shares, titles),
        wrapped(f"no room for {', '.join(lost)}", terminal_width() if width is None else width, 0) if lost else "",
    ]
    if not any(notes) or _is_markup(tablefmt):
        return text
    # Markdown takes a line right below a table for one of its rows.
    return "\n".join([text, *([""] if tablefmt in ("github", "pipe") else []), *filter(None, notes)])


def matching(columns: Sequence[Column], rows: Sequence[Sequence[Any]], where: Where | None) -> list[Sequence[Any]]:
    """Return the rows that pass every test in ``where``."""
    tests = [(find(columns, name), wanted) for name, wanted in (where or {}).items()]
    return [row for row in rows if all(_holds(wanted, row[i]) for i, wanted in tests)]


def ordered(columns: Sequence[Column], rows: Sequence[Sequence[Any]], by: str | None) -> list[Sequence[Any]]:
    """Sort the rows by a column: numbers descending, then text ascending, then None; the sort is stable.

    Raises InputError if the column is one of numbers and has none.
    """
    if by is None:
        return list(rows)
    position = find(columns, by)
    if rows and columns[position].is_number and all(row[position] is None for row in rows):
        raise InputError(f"cannot sort by {by!r}: it was not measured")
    return sorted(rows, key=lambda row: _rank(row[position]))


def footer(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    kept: Sequence[Sequence[Any]],
    chosen: Sequence[Sequence[Any]],
    sort_by: str | None,
    noun: str,
    shares: Sequence[str],
    titles: Sequence[str],
) -> str:
    """Return a line on the part that is shown, ``top 4 of 221 nodes: 61.2% of time(ms)``; "" if all rows are shown.

    ``titles`` are the texts above the columns.
    """
    if len(chosen) == len(rows):
        return ""
    cut = "" if len(chosen) == len(kept) else "first " if sort_by is None else "top "
    whole = (
        f"{len(rows)} {noun}"
        if len(kept) in (len(rows), len(chosen))
        else f"{len(kept)} matching, {len(rows)} {noun} in all"
    )
    held = [
        f"{share:.1f}% of {titles[find(columns, name)]}"
        for name in _leading(shares, sort_by)
        if (share := _share(columns, rows, chosen, name)) is not None
    ]
    return f"{cut}{len(chosen)} of {whole}" + (f": {', '.join(held)}" if held else "")


def _holds(wanted: Any, value: Any) -> bool:
    """Return True if a cell passes its test. A cell without a number fails a comparison with one."""
    try:
        return bool(wanted(value) if callable(wanted) else value == wanted)
    except TypeError:
        if value is None or isinstance(value, str):
            return False
        raise


def _is_markup(tablefmt: str) -> bool:
    return any(word in tablefmt for word in MARKUP)


def _leading(shares: Sequence[str], sort_by: str | None) -> list[str]:
    """Return the columns of the footer; the one that the rows are sorted by comes first."""
    return sorted(shares, key=lambda name: (sort_by or "") not in (name, name.partition("(")[0]))


def _share(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], chosen: Sequence[Sequence[Any]], name: str
) -> float | None:
    position = find(columns, name)
    whole, part = (sum(row[position] for row in some if isinstance(row[position], Real)) for some in (rows, chosen))
    return 100.0 * part / whole if whole else None


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return 2, 0
    return (0, -value) if isinstance(value, Real) else (1, str(value))


def _fitted(
    header: list[str],
    body: list[list[str]],
    columns: list[Column],
    tablefmt: str,
    width: int | None,
    elidable: Sequence[str],
    expendable: Sequence[str],
) -> tuple[str, list[str]]:
    """Return the table as text that fits the width, and the headers of the columns that were left out."""
    limit = terminal_width() if width is None else width
    if limit is None or _is_markup(tablefmt):
        return _tabulated(header, body, columns, tablefmt), []
    spared = [key for key in expendable if any(column.key == key for column in columns)]
    for lost in range(len(spared) + 1):
        shown = [i for i, column in enumerate(columns) if column.key not in spared[:lost]]
        lines = [[row[i] for i in shown] for row in (header, *body)]
        least = READABLE if lost < len(spared) else NARROWEST
        text = _cut(lines[0], lines[1:], [columns[i] for i in shown], tablefmt, limit, elidable, least)
        if _excess(text, limit) <= 0:
            break
    return text, [column.header for column in columns if column.key in spared[:lost]]


def _cut(
    header: list[str],
    body: list[list[str]],
    columns: list[Column],
    tablefmt: str,
    limit: int,
    elidable: Sequence[str],
    least: int,
) -> str:
    text = _tabulated(header, body, columns, tablefmt)
    for key in elidable:
        excess = _excess(text, limit)
        for i, column in enumerate(columns):
            if excess > 0 and column.key == key:
                room = max(max(cells(row[i]) for row in body) - excess, least)
                body = [[*row[:i], elide(row[i], room), *row[i + 1 :]] for row in body]
                text = _tabulated(header, body, columns, tablefmt)
    return text


def _excess(text: str, limit: int) -> int:
    return max(map(cells, text.splitlines()), default=0) - limit


def _tabulated(header: list[str], body: list[list[str]], columns: list[Column], tablefmt: str) -> str:
    from tabulate import tabulate, tabulate_formats

    if tablefmt not in tabulate_formats:
        raise InputError(f"unknown tablefmt {tablefmt!r}: one of {', '.join(tabulate_formats)}")
    if tablefmt in ("github", "pipe"):
        body = [[cell.replace("|", r"\|") for cell in row] for row in body]
    sides = ["right" if column.is_number else "left" for column in columns]
    # Cells are text already: a module called "0" is a name, and must not be printed as a number.
    return tabulate(body, header, tablefmt=tablefmt, disable_numparse=True, colalign=sides if body else None)
