"""Tables with their exports: CSV, Markdown, LaTeX, JSON, HTML, DataFrame. Values are raw: ints, seconds, bytes, text.

Names in a model may contain any characters, so text is escaped for the output format: it must not become a formula in a
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
from .text import plain, printable

if TYPE_CHECKING:
    import pandas

Cells = tuple[Any, ...]
V = TypeVar("V")

MOST_SHOWN = 60
MOST_COLUMNS = 7
"""The maximum number of columns in a notebook or a paper; wider tables drop some of :data:`EXPENDABLE`."""
EMPTY = (None, 0, "")
USUAL = {"phase": "forward"}
"""A column is not printed if all its rows have this value."""
SELDOM = ("MAC outputs",)
"""Headers of columns that are displayed only if chosen; files always include them."""
UNIT_OF = {"s": "s", "ms": "ms", "B": "B", "delta": "B", "%": "%"}
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


class View:
    """A result that displays itself as the value of an expression: as text at the prompt, as a table in a notebook."""

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
    """A result that is a table, with selection and exports.

    Each ``to_*`` returns a string or, with a path, writes that file, as in pandas. A subclass has a ``table``, which is
    exported; if it displays more than the table, it overrides ``_pieces``.
    """

    def _as_table(self) -> Table:
        return self.table  # type: ignore[attr-defined, no-any-return]

    def _pieces(self) -> Iterable[str | Table]:
        """Return the tables and lines of text to display, top to bottom ("" separates two tables)."""
        return [self._as_table()]

    def _text(self) -> str:
        return "\n".join(map(str, self._pieces()))

    def select(
        self, columns: Sequence[str] | str | None = None, *, sort_by: str | None = None, top: int | None = None
    ) -> Table:
        """Return a part of the table: the named ``columns``, and the ``top`` rows by ``sort_by`` (numbers descending, text ascending).

        A column is named by its key or its header. Raises InputError for an unknown column; it lists all columns.
        """
        check_number("top", top, least=1)
        table = self._as_table()
        shown = pick(table.columns, columns)
        rows = ordered(table.columns, table.rows, sort_by)[:top]
        chosen = tuple(table.columns[i] for i in shown)
        cells = tuple(tuple(row[i] for i in shown) for row in rows)
        return replace(table, columns=chosen, rows=cells, chosen=columns is not None)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame`` of the raw values; columns are named by key (``flops``, ``seconds``).

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
        """Return :meth:`to_dataframe`'s result. Deprecated: call :meth:`to_dataframe`."""
        renamed("to_pandas()", "use to_dataframe()")
        return self.to_dataframe()

    def to_csv(self, path: Path | None = None) -> str | None:
        """Return the raw values as CSV with their keys as header, or write it to ``path``. For a report, the last column is the
        provenance; if it was timed, the columns before it are the model's latency and why the times are unreliable.

        Text that a spreadsheet would read as a formula (it starts with ``= + - @``, a tab or a line break) gets a leading
        apostrophe.
        """
        table = self._as_table()
        origin = table._origin()
        rows = [
            [*(column.key for column in table.columns), *origin],
            *([_defused(value) for value in (*row, *origin.values())] for row in table.rows),
        ]
        return written("".join(map(_csv_line, rows)), path)

    def to_markdown(self, path: Path | None = None) -> str | None:
        """Return a GitHub Markdown table, or write it to ``path``. It has few columns, each with one unit and two digits. For a
        report, its notes follow, e.g. its latency, or that its times are unsteady.

        A wide table drops columns as in a notebook, unless ``select`` named them.
        """
        table = self._as_table()
        return written(markdown(*table._narrow(), table.provenance, table.notes), path)

    def to_latex(self, path: Path | None = None) -> str | None:
        """Return a ``tabular`` environment for LaTeX's booktabs, or write it to ``path``. It has the columns of
        :meth:`to_markdown`; the notes become comments."""
        table = self._as_table()
        return written(latex(*table._narrow(), table.provenance, table.notes), path)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict for each row: raw values by column key."""
        table = self._as_table()
        keys = [column.key for column in table.columns]
        return [dict(zip(keys, row, strict=True)) for row in table.rows]

    def to_json(self, path: Path | None = None) -> str | None:
        """Return a JSON list with an object for each row, or write it to ``path``. For a report, the last key of each object is
        its provenance. NaN and infinities become null."""
        origin = self._as_table()._origin()
        rows = [{key: _finite(value) for key, value in row.items()} | origin for row in self.to_dicts()]
        return written(as_json(rows), path)

    def to_html(self, path: Path | None = None) -> str | None:
        """Return a ``<table>`` element without styles, or write it to ``path``; a report's provenance is the caption."""
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
    """Rows under columns; iterating yields the rows, tuples of raw values. A value that was not measured is None.

    >>> print(Table("ops", (Column("op", "op"), Column("flops", "FLOPs", "flops")), (("relu", 1500),)))
    op      FLOPs
    ----  -------
    relu   1.50 k
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]
    chosen: bool = field(default=False, compare=False)
    """True if the user chose the columns; then none is omitted."""
    provenance: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Lines below the table in Markdown, and comments in LaTeX."""
    whole: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    """Values for the whole run, by key; CSV and JSON repeat them in each row."""

    def _as_table(self) -> Table:
        return self

    def without_empty_columns(self, but: Collection[str] = ()) -> Table:
        """Return the table without empty columns, except those named in ``but``. The result shows all its columns, however wide."""
        full = {*self._used()}
        used = [i for i, column in enumerate(self.columns) if i in full or column.key in but]
        rows = tuple(tuple(row[i] for i in used) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in used), rows=rows, chosen=True)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Cells]:
        return iter(self.rows)

    def _text(self) -> str:
        """Return the table as readable text: values in suitable units, without empty columns, and only the first rows of a long
        table."""
        shown = self._used()
        header = [self.columns[i] for i in shown]
        rows = [tuple(row[i] for i in shown) for row in self.rows[:MOST_SHOWN]]
        longest = {
            c.key: max(len(str(row[i])) for row in rows) for i, c in enumerate(header) if rows and not c.is_number
        }
        longest_first = sorted(longest, key=lambda key: -longest[key])
        table = grid(header, rows, units="auto", elidable=longest_first, expendable=EXPENDABLE)
        return "\n".join([table, *self._left_out()])

    def _blocks(self) -> Iterable[str]:
        return [self._shown()]

    def _shown(self) -> str:
        """Return an HTML table of the values with units; below a wide table, a note names the omitted columns."""
        from .html import cells_table, note

        columns, rows = self._narrow()
        lost = [self.columns[i].key for i in self._used() if self.columns[i] not in columns]
        named = f"no room for {', '.join(lost)}: select(columns) chooses, to_dataframe() has all"
        notes = [*self._left_out(), *explained(rows[:MOST_SHOWN]), *([named] if lost else [])]
        return "".join([cells_table(columns, rows[:MOST_SHOWN], "auto"), *map(note, notes)])

    def _narrow(self) -> tuple[list[Column], list[list[Any]]]:
        """Return the columns that fit, or all if the user chose them, and the rows' cells in these columns."""
        used = self._used()
        expendable = [i for key in EXPENDABLE for i in used if self.columns[i].key == key]
        lost = {*expendable[: 0 if self.chosen else max(len(used) - MOST_COLUMNS, 0)]}
        kept = [i for i in used if i not in lost]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows]

    def _used(self) -> Sequence[int]:
        """Return the positions of the columns worth displaying; of all columns if there are none."""
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
        return [f"first {MOST_SHOWN} of {len(self)} {self.name}"] if len(self) > MOST_SHOWN else []

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
        """Return the headers with the unit of the raw values."""
        return [
            f"{column.header} ({UNIT_OF[column.kind]})"
            if column.kind in UNIT_OF and not column.header.endswith("%")
            else column.header
            for column in self.columns
        ]


class Rows(dict[str, V], Tabular):
    """A mapping from keys to rows that is also a table: ``print`` and notebooks show it, ``to_*`` export it.

    ``cells(key, row)`` returns the table's lines for one entry of the mapping.
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
    """Return JSON that is also safe inside HTML: it contains no ``<``.

    Raises InputError for values that JSON cannot represent, e.g. infinite numbers.
    """
    try:
        return json.dumps(data, allow_nan=False, check_circular=False, separators=(",", ":")).replace("<", "\\u003c")
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot be written as JSON: {error}") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    """Return a raw value as text on one line; "" for None."""
    return "" if value is None else plain(str(value))


def _csv_line(row: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(row)  # with "\r\n" it also quotes a lone carriage return
    return line.getvalue()[:-2] + "\n"


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
