"""Tables, and their export as CSV, Markdown, LaTeX, JSON, HTML and DataFrame. The values in a table are raw: ints, seconds, bytes, text.

Names in a model may contain any characters. All text is escaped for the output format, so that it does not become a formula in a
spreadsheet, an element in HTML, or a command in LaTeX.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError, did_you_mean, name_arguments, not_installed, renamed
from .columns import EXPENDABLE, Column, check_number, pick
from .files import Path, written
from .paper import latex, markdown
from .table import explained, grid, ordered
from .text import plain, printable, terminal_width, wrapped

if TYPE_CHECKING:
    import pandas

Cells = tuple[Any, ...]
V = TypeVar("V")

MOST_SHOWN = 60
MOST_COLUMNS = 7
"""The maximum number of columns in a notebook or a paper. Wider tables drop columns that are in :data:`EXPENDABLE`."""
EMPTY = (None, 0, "")
USUAL = {"phase": "forward"}
"""The usual value of a column. If all rows have this value, the column is not printed."""
SELDOM = ("MAC outputs",)
"""Headers of columns that are displayed only if the user chooses them. Files always include these columns."""
UNIT_OF = {"s": "s", "ms": "ms", "B": "B", "delta": "B", "%": "%"}
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


class View:
    """A result that Python's prompt displays as text, and a notebook as a table."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name_arguments(cls)

    def __str__(self) -> str:
        """Return the result as text, in characters that stdout can encode."""
        return printable(self._text())

    def _text(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)


class Tabular(View):
    """A result with a table, which can be filtered and exported.

    As in pandas, each ``to_*`` method returns a string, or writes a file if the method is called with a path. Each subclass has an
    attribute ``table``, which is exported. A subclass that displays more than the table overrides ``_pieces``.
    """

    def _as_table(self) -> Table:
        return self.table  # type: ignore[attr-defined, no-any-return]

    def _pieces(self) -> Iterable[str | Table]:
        """Return the tables and lines of text to display, from top to bottom. The line "" separates two tables."""
        return [self._as_table()]

    def _text(self) -> str:
        return "\n".join(map(str, self._pieces()))

    def select(
        self, columns: Sequence[str] | str | None = None, *, sort_by: str | None = None, top: int | None = None
    ) -> Table:
        """Return a table with only these ``columns``. The table's rows are sorted by the column ``sort_by``, and only the first ``top``
        rows are kept.

        Numbers are sorted in descending order, text in ascending order. A column is named by its key or its header. Raises InputError for
        an unknown column; the message lists all columns.
        """
        check_number("top", top, least=1)
        table = self._as_table()
        shown = pick(table.columns, columns)
        rows = ordered(table.columns, table.rows, sort_by)[:top]
        chosen = tuple(table.columns[i] for i in shown)
        cells = tuple(tuple(row[i] for i in shown) for row in rows)
        return replace(table, columns=chosen, rows=cells, chosen=columns is not None)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame`` of the raw values. The columns of the data frame are named by their keys, e.g. ``flops``, ``seconds``.

        Raises InputError if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise not_installed("pandas", "report") from error
        table = self._as_table()
        frame = {}
        for i, column in enumerate(table.columns):
            values = [row[i] for row in table.rows]
            measured = [value for value in values if value is not None]
            # Missing values would make pandas convert a column of ints to floats with NaN.
            has_holes = measured and len(measured) < len(values) and all(isinstance(value, int) for value in measured)
            frame[column.key] = pandas.Series(values, dtype="Int64" if has_holes else None)
        data = pandas.DataFrame(frame)
        data.attrs["provenance"] = table.provenance
        return data

    def to_pandas(self) -> pandas.DataFrame:
        """Return the result of :meth:`to_dataframe`. Deprecated: call :meth:`to_dataframe` instead."""
        renamed("to_pandas()", "use to_dataframe()")
        return self.to_dataframe()

    def to_csv(self, path: Path | None = None) -> str | None:
        """Return the raw values as CSV, with the columns' keys as header. With ``path``, write the CSV to this file instead.

        For a report, the last column is the provenance. If the report was timed, two columns precede the provenance: the model's latency,
        and the reason why the times are unreliable. A spreadsheet would read text that starts with ``= + - @``, a tab or a line break as a
        formula. Text that would become a formula gets an apostrophe in front.
        """
        table = self._as_table()
        origin = table._origin()
        rows = [
            [*(column.key for column in table.columns), *origin],
            *([_defused(value) for value in (*row, *origin.values())] for row in table.rows),
        ]
        return written("".join(map(_csv_line, rows)), path)

    def to_markdown(self, path: Path | None = None) -> str | None:
        """Return the table in GitHub Markdown; with ``path``, write the Markdown to this file.

        All numbers in a column have the same unit, with two digits after the point. Numbers below 1 have three significant digits. A wide table drops columns as in a notebook, unless ``select`` named the
        columns. The table of a report is followed by notes, e.g. the latency, or that the times are unsteady.
        """
        table = self._as_table()
        return written(markdown(*table._narrow(), table.provenance, table.notes, table.units), path)

    def to_latex(self, path: Path | None = None) -> str | None:
        """Return a ``tabular`` environment for LaTeX's package booktabs. With ``path``, write it to this file instead.

        The ``tabular`` has the same columns as :meth:`to_markdown`. The notes become comments.
        """
        table = self._as_table()
        return written(latex(*table._narrow(), table.provenance, table.notes, table.units), path)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict for each row, which maps column keys to raw values."""
        table = self._as_table()
        keys = [column.key for column in table.columns]
        return [dict(zip(keys, row, strict=True)) for row in table.rows]

    def to_json(self, path: Path | None = None) -> str | None:
        """Return a JSON list with an object for each row. With ``path``, write the list to this file instead.

        For a report, the last key of each object is ``provenance``. NaN and infinities become null.
        """
        origin = self._as_table()._origin()
        rows = [{key: _finite(value) for key, value in row.items()} | origin for row in self.to_dicts()]
        return written(as_json(rows), path)

    def to_html(self, path: Path | None = None) -> str | None:
        """Return a ``<table>`` element without styles; with ``path``, write the element to this file. A report's provenance becomes the
        caption."""
        table = self._as_table()
        return written(table._html(table.rows), path)

    def _repr_html_(self) -> str:
        from .html import block

        return block(*self._blocks(), origin=self._as_table().provenance)

    def _blocks(self) -> Iterable[str]:
        """Return the HTML elements that a notebook shows."""
        from .html import note

        return [note(each) if isinstance(each, str) else each._shown() for each in self._pieces() if each != ""]


@dataclass(frozen=True, repr=False)
class Table(Tabular):
    """A table of raw values. Iterating over the table yields its rows as tuples. A value that was not measured is None.

    >>> print(Table("ops", (Column("op", "op"), Column("flops", "FLOPs", "flops")), (("relu", 1500),)))
    op      FLOPs
    ----  -------
    relu   1.50 k
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]
    chosen: bool = field(default=False, compare=False)
    """True if the user chose the columns. No column is then omitted."""
    provenance: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Lines below the table, or comments in LaTeX."""
    whole: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    """Pairs of a key and a value for the whole run. CSV and JSON repeat these values in each row."""
    units: str = field(default="auto", compare=False)
    """The unit for the columns that it fits, such as "G", wherever the table is text; "auto" chooses a unit."""

    def _as_table(self) -> Table:
        return self

    def without_empty_columns(self, but: Collection[str] = ()) -> Table:
        """Return the table without its empty columns; empty columns in ``but`` are kept. No further column is dropped, however wide the table is."""
        full = {*self._used()}
        used = [i for i, column in enumerate(self.columns) if i in full or column.key in but]
        rows = tuple(tuple(row[i] for i in used) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in used), rows=rows, chosen=True)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Cells]:
        return iter(self.rows)

    def _text(self) -> str:
        """Return the table as readable text, with values in suitable units. Empty columns and the later rows of a long table are omitted."""
        shown = self._used()
        header = [self.columns[i] for i in shown]
        rows = [tuple(row[i] for i in shown) for row in self.rows[:MOST_SHOWN]]
        longest = {
            c.key: max(len(str(row[i])) for row in rows) for i, c in enumerate(header) if rows and not c.is_number
        }
        longest_first = sorted(longest, key=lambda key: -longest[key])
        table = grid(header, rows, units=self.units, elidable=longest_first, expendable=EXPENDABLE)
        return "\n".join([table, *self._left_out(), *(wrapped(note, terminal_width(), 4) for note in self.notes)])

    def _blocks(self) -> Iterable[str]:
        return [self._shown()]

    def _shown(self) -> str:
        """Return an HTML table of the values with units. If columns are omitted because the table is too wide, a note below names them."""
        from .html import cells_table, note

        columns, rows = self._narrow()
        lost = [self.columns[i].key for i in self._used() if self.columns[i] not in columns]
        named = f"no room for {', '.join(lost)}; choose columns with select(columns), or get all with to_dataframe()"
        notes = [*self._left_out(), *explained(rows[:MOST_SHOWN]), *([named] if lost else []), *self.notes]
        return "".join([cells_table(columns, rows[:MOST_SHOWN], self.units), *map(note, notes)])

    def _narrow(self) -> tuple[list[Column], list[list[Any]]]:
        """Return the columns that fit, and the rows' cells in these columns. If the user chose the columns, return all of them."""
        used = self._used()
        expendable = [i for key in EXPENDABLE for i in used if self.columns[i].key == key]
        lost = {*expendable[: 0 if self.chosen else max(len(used) - MOST_COLUMNS, 0)]}
        kept = [i for i in used if i not in lost]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows]

    def _used(self) -> Sequence[int]:
        """Return the positions of the columns that are worth showing, e.g. not empty. If there is no such column, return the positions of
        all columns."""
        idle = [(*EMPTY, USUAL.get(column.key)) for column in self.columns]
        used = [
            i
            for i, column in enumerate(self.columns)
            if self.chosen or (column.header not in SELDOM and any(row[i] not in idle[i] for row in self.rows))
        ]
        return used or range(len(self.columns))

    def _origin(self) -> dict[str, Any]:
        return {**dict(self.whole), **({"provenance": self.provenance} if self.provenance else {})}

    def _left_out(self) -> list[str]:
        if len(self) <= MOST_SHOWN:
            return []
        return [f"first {MOST_SHOWN} of {len(self)} {self.name}; to_csv() and to_dataframe() return all"]

    def _html(self, rows: Iterable[Cells]) -> str:
        head = "".join(f"<th>{html.escape(title)}</th>" for title in self._titles())
        sides = [' style="text-align:right"' if column.is_number else "" for column in self.columns]
        body = "\n".join(
            f"<tr>{''.join(f'<td{side}>{html.escape(_text(value))}</td>' for side, value in zip(sides, row, strict=True))}</tr>"
            for row in rows
        )
        origin = f"<caption>{html.escape(plain(self.provenance))}</caption>\n" if self.provenance else ""
        return f"<table>\n{origin}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"

    def _titles(self) -> list[str]:
        """Return the headers, each followed by the unit of its raw values in parentheses."""
        return [
            f"{column.header} ({UNIT_OF[column.kind]})"
            if column.kind in UNIT_OF and not column.header.endswith("%")
            else column.header
            for column in self.columns
        ]


class Rows(dict[str, V], Tabular):
    """A mapping from keys to rows that is also a table. ``print`` and notebooks show the table, and the ``to_*`` methods export it.

    ``cells(key, row)`` returns the lines of the table for one entry of the mapping.
    """

    def __init__(
        self,
        rows: Mapping[str, V],
        name: str,
        columns: tuple[Column, ...],
        cells: Callable[[str, V], Iterable[Cells]],
        provenance: str = "",
    ) -> None:
        super().__init__(rows)
        self._name = name
        self._columns = columns
        self._cells = cells
        self.provenance = provenance

    @property
    def table(self) -> Table:
        """The mapping as a Table."""
        rows = tuple(line for key in self for line in self._cells(key, self[key]))
        return Table(self._name, self._columns, rows, provenance=self.provenance)

    def __missing__(self, key: object) -> V:
        raise KeyError(f"no {self._columns[0].header} {key!r}{did_you_mean(str(key), self)}")

    __repr__ = Tabular.__repr__  # otherwise dict.__repr__ would be used


def as_json(data: Any) -> str:
    """Return the data as JSON. The JSON contains no ``<``, so that it is also safe inside HTML.

    Raises InputError for values that JSON cannot represent, e.g. infinite numbers.
    """
    try:
        return json.dumps(data, allow_nan=False, check_circular=False, separators=(",", ":")).replace("<", "\\u003c")
    except (TypeError, ValueError) as error:
        raise InputError(f"the data cannot be written as JSON: {error}") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    """Return a raw value as text on one line; "" for None."""
    return "" if value is None else plain(str(value))


def _csv_line(row: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(
        row
    )  # with "\r\n" as line end, csv also quotes a lone carriage return
    return line.getvalue()[:-2] + "\n"


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
