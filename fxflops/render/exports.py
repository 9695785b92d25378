"""Tables: rows under columns, with the same exports wherever rows come from. Values are raw: ints, seconds, bytes, text.

Names in a model are the author's, so text is made harmless for what it is written into: a spreadsheet takes no cell for
a formula, a page no name for an element, LaTeX none for a command.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import FxflopsError, InputError, near
from .columns import Column, expendable, pick
from .table import grid, ordered
from .text import plain

if TYPE_CHECKING:
    import pandas

Path = str | PathLike[str]
Cells = tuple[Any, ...]
V = TypeVar("V")

MOST_SHOWN = 60
NOTHING = (None, 0, "")
USUAL = {"phase": "forward"}
"""What need not be said where every row has it."""
UNIT_OF = {"s": "s", "ms": "ms", "B": "B", "delta": "B", "%": "%"}
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
MARKDOWN = re.compile(r"[\\`*|]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


class Exports:
    """What can be written as a table. Each ``to_*`` returns a string, or with a path writes that file, as pandas does."""

    def _as_table(self) -> Table:
        return self.table  # type: ignore[attr-defined, no-any-return]

    def to_dataframe(self) -> pandas.DataFrame:
        """A ``pandas.DataFrame`` of the raw values, its columns called by their keys (``flops``, ``seconds``).

        Raises FxflopsError where pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise FxflopsError("to_dataframe() needs pandas: pip install pandas") from error
        table = self._as_table()
        frame = {}
        for i, column in enumerate(table.columns):
            values = [row[i] for row in table.rows]
            known = [value for value in values if value is not None]
            whole = known and len(known) < len(values) and all(isinstance(value, int) for value in known)
            frame[column.key] = pandas.Series(values, dtype="Int64" if whole else None)  # else NaN makes floats of them
        return pandas.DataFrame(frame)

    def to_csv(self, path: Path | None = None) -> str | None:
        """CSV of the raw values under their keys. Text that a spreadsheet would take for a formula (it begins with
        ``= + - @``, a tab or a line break) gets an apostrophe before it."""
        table = self._as_table()
        rows = [[column.key for column in table.columns], *([_defused(value) for value in row] for row in table.rows)]
        return written("".join(map(_csv_line, rows)), path)

    def to_markdown(self, path: Path | None = None) -> str | None:
        """A table in GitHub's Markdown."""
        table = self._as_table()
        right = ["---:" if column.is_number else ":---" for column in table.columns]
        lines = [table._titles(), right, *table._texts()]
        escaped = [right if line is right else map(_markdown, line) for line in lines]
        return written("".join(f"| {' | '.join(line)} |\n" for line in escaped), path)

    def to_latex(self, path: Path | None = None) -> str | None:
        """A ``tabular`` environment that needs no package."""
        table = self._as_table()
        sides = "".join("r" if column.is_number else "l" for column in table.columns)
        header, *body = (" & ".join(map(_latex, line)) + r" \\" for line in (table._titles(), *table._texts()))
        lines = [f"\\begin{{tabular}}{{{sides}}}", r"\hline", header, r"\hline", *body, r"\hline", r"\end{tabular}", ""]
        return written("\n".join(lines), path)


class Tabular(Exports):
    """What is a table and nothing else; in notebooks the text that it prints as."""

    def select(
        self, columns: Sequence[str] | str | None = None, *, sort_by: str | None = None, top: int | None = None
    ) -> Table:
        """Some of it: the ``columns`` named, the ``top`` rows by ``sort_by`` (numbers descending, text ascending).

        Columns are known by their keys and by their headers. InputError names them all where one is unknown.
        """
        table = self._as_table()
        shown = pick(table.columns, columns)
        rows = ordered(table.columns, table.rows, sort_by)[:top]
        return Table(
            table.name, tuple(table.columns[i] for i in shown), tuple(tuple(r[i] for i in shown) for r in rows)
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict for each row, raw values by the columns' keys."""
        table = self._as_table()
        keys = [column.key for column in table.columns]
        return [dict(zip(keys, row, strict=True)) for row in table.rows]

    def to_json(self, path: Path | None = None) -> str | None:
        """A JSON list with an object for each row."""
        rows = [{key: _finite(value) for key, value in row.items()} for row in self.to_dicts()]
        return written(as_json(rows), path)

    def to_html(self, path: Path | None = None) -> str | None:
        """A ``<table>`` element, without styles."""
        table = self._as_table()
        return written(table._html(table.rows), path)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Table(Tabular):
    """Rows under columns; iterating gives the rows, tuples of raw values. What was not measured is None.

    >>> print(Table("ops", (Column("op", "op"), Column("flops", "FLOPs", "flops")), (("relu", 1500),)))
    op      FLOPs
    ----  -------
    relu   1.50 k
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]

    def _as_table(self) -> Table:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Cells]:
        return iter(self.rows)

    def __str__(self) -> str:
        """As people read it: in units that fit, the first rows where there are many, without columns that hold nothing."""
        idle = [(*NOTHING, USUAL.get(column.key)) for column in self.columns]
        used = [i for i, _ in enumerate(self.columns) if any(row[i] not in idle[i] for row in self.rows)]
        shown = used or range(len(self.columns))
        header = [replace(self.columns[i], key=self.columns[i].header) for i in shown]
        rows = [tuple(row[i] for i in shown) for row in self.rows[:MOST_SHOWN]]
        longest = {
            c.key: max(len(str(row[i])) for row in rows) for i, c in enumerate(header) if rows and not c.is_number
        }
        spared = [self.columns[i].header for i in expendable(self.columns)]
        table = grid(
            header, rows, units="auto", elidable=sorted(longest, key=lambda key: -longest[key]), expendable=spared
        )
        return "\n".join([table, *self._left_out()])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._left_out())
        return self._html(self.rows[:MOST_SHOWN]) + notes

    def _left_out(self) -> list[str]:
        return [f"first {MOST_SHOWN} of {len(self)} {self.name}"] if len(self) > MOST_SHOWN else []

    def _html(self, rows: Iterable[Cells]) -> str:
        head = "".join(f"<th>{html.escape(title)}</th>" for title in self._titles())
        sides = [' style="text-align:right"' if column.is_number else "" for column in self.columns]
        body = "\n".join(
            f"<tr>{''.join(f'<td{side}>{html.escape(_text(value))}</td>' for side, value in zip(sides, row, strict=True))}</tr>"
            for row in rows
        )
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"

    def _titles(self) -> list[str]:
        """The headers, with the unit of what is raw."""
        return [
            f"{column.header} ({UNIT_OF[column.kind]})"
            if column.kind in UNIT_OF and column.header != "%"
            else column.header
            for column in self.columns
        ]

    def _texts(self) -> Iterator[list[str]]:
        return ([_text(value) for value in row] for row in self.rows)


class Rows(dict[str, V], Tabular):
    """A mapping from keys to rows that is a table too: shown by ``print`` and in notebooks, exported by ``to_*``.

    ``cells`` gives the table's rows for a key and its row.
    """

    def __init__(
        self,
        rows: Mapping[str, V],
        name: str,
        columns: tuple[Column, ...],
        cells: Callable[[str, V], Iterable[Cells]],
    ) -> None:
        super().__init__(rows)
        self._name = name
        self._columns = columns
        self._cells = cells

    @property
    def table(self) -> Table:
        """The same as a Table."""
        return Table(self._name, self._columns, tuple(line for key in self for line in self._cells(key, self[key])))

    def __missing__(self, key: object) -> V:
        raise KeyError(f"no {self._columns[0].header} {key!r}{near(str(key), self)}")

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def written(text: str, path: Path | None) -> str | None:
    """The text itself, or None once it is in the file of this path."""
    if path is None:
        return text
    with open(path, "w", encoding="utf8", errors="backslashreplace", newline="") as file:
        file.write(text)
    return None


def as_json(data: Any) -> str:
    """JSON that is harmless within HTML too: no ``<`` is left in it.

    Raises InputError for what is no JSON, an infinite number among it.
    """
    try:
        return json.dumps(data, allow_nan=False, check_circular=False, separators=(",", ":")).replace("<", "\\u003c")
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot be written as JSON: {error}") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    """A raw value as text on one line; "" for None."""
    return "" if value is None else plain(str(value))


def _csv_line(row: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(row)  # with it a lone carriage return is quoted too
    return line.getvalue()[:-2] + "\n"


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _markdown(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", html.escape(text, quote=False))


def _latex(text: str) -> str:
    """The text for LaTeX; a bracket or star at its beginning would be taken for an argument of the line break before."""
    return ("{}" if text.startswith(("[", "*")) else "") + "".join(LATEX.get(c, c) for c in text)
