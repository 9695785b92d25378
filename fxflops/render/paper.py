"""Tables for papers, in Markdown or in LaTeX with booktabs. The numbers of a column have one unit, shown in the title, and two digits after the point.
A number below 1 has three significant digits, such as 0.00412."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

from .. import units as readable
from .columns import Column
from .text import plain

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
MARKDOWN = re.compile(r"[\\`*|]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
READABLE: dict[str, tuple[dict[str, Any], Callable[[float, str], str]]] = {
    "flops": (readable.SI, readable.count),
    "elements": (readable.ELEMENTS, readable.billions),
    "s": (readable.TIME, readable.seconds),
    "ms": (readable.TIME, readable.seconds),
    "B": (readable.IEC, readable.size),
    "delta": (readable.IEC, readable.size),
}
"""For each kind of column: the units, and the function that formats a value in one of these units."""
SMALL, LEAST = 1, 0.0001
"""Numbers below SMALL have three significant digits. Numbers below LEAST are not written out."""
LONG = 36
"""In LaTeX, a text with more characters than this is broken into several lines. A path is broken at its dots."""


def markdown(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    origin: str = "",
    notes: Sequence[str] = (),
    units: str = "auto",
) -> str:
    """Return a GitHub Markdown table. ``units`` is the unit for the columns that it fits. Below the table, ``notes`` become a list, and ``origin`` becomes the last line."""
    sides = " | ".join("---:" if column.is_number else ":---" for column in columns)
    header, *body = (" | ".join(map(_markdown, line)) for line in _lines(columns, rows, units))
    table = "".join(f"| {line} |\n" for line in (header, sides, *body))
    said = "\n" + "".join(f"- {_markdown(plain(note))}\n" for note in notes) if notes else ""
    return f"{table}{said}\n{_markdown(origin)}\n" if origin else f"{table}{said}"


def latex(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    origin: str = "",
    notes: Sequence[str] = (),
    units: str = "auto",
) -> str:
    """Return a ``tabular`` environment for LaTeX's package booktabs. ``units`` is the unit for the columns that it fits. ``origin`` and ``notes`` become comments above the table."""
    sides = "".join("r" if column.is_number else _width(row[i] for row in rows) for i, column in enumerate(columns))
    header, *body = (" & ".join(map(_latex, line)) + r" \\" for line in _lines(columns, rows, units))
    lines = [
        *([f"% {plain(origin)}"] if origin else []),
        *(f"% {_latex(plain(note))}" for note in notes),
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{sides}}}",
        *(r"\toprule", header, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[Any]], units: str) -> list[list[str]]:
    """Return lines of texts: first the titles of the columns, then the cells of each row."""
    texts = []
    for i, column in enumerate(columns):
        values = [_readable(column, row[i]) for row in rows]
        factors, written = READABLE.get(column.kind, ({}, None))
        unit = units if units in factors else _unit(factors, [value for value in values if isinstance(value, Real)])
        title = column.title("auto") + (f" ({unit})" if unit else "")
        texts.append([title, *(_text(column, value, written, unit) for value in values)])
    return [list(line) for line in zip(*texts, strict=True)]


def _readable(column: Column, value: Any) -> Any:
    """Return a value; milliseconds are converted to seconds."""
    return value / 1e3 if column.kind == "ms" and isinstance(value, Real) else value


def _text(column: Column, value: Any, written: Callable[[float, str], str] | None, unit: str) -> str:
    if not (column.is_number and isinstance(value, Real)):
        return column.show(value)
    if not value or written is None:
        return column.show(value) if value else "0"
    in_unit = float(value) / READABLE[column.kind][0][unit]
    if abs(in_unit) >= SMALL:
        return written(float(value), unit).partition(" ")[0]
    return f"{in_unit:.3g}" if abs(in_unit) >= LEAST else f"<{LEAST}" if in_unit > 0 else f">-{LEAST}"


def _unit(known: dict[str, Any], values: Sequence[Any]) -> str:
    """Return the unit that suits the largest value; "" if there are no values."""
    if not values:
        return ""
    largest = max(map(abs, values), default=0)
    return [next(iter(known), ""), *(name for name, factor in known.items() if factor <= largest)][-1]


def _width(texts: Iterable[str]) -> str:
    """Return the LaTeX type of a text column. The type is "l", or a type with a fixed width, which breaks long texts into lines."""
    long = [text for text in texts if len(text) > LONG]
    return "l" if not long else r"p{0.15\linewidth}" if any(" " in text for text in long) else r"p{0.3\linewidth}"


def _markdown(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", html.escape(text, quote=False))


def _latex(text: str) -> str:
    """Escape the text for LaTeX. Without ``{}`` in front of it, LaTeX would read a leading bracket or star as an argument of the preceding ``\\\\``."""
    may_break = r"\allowbreak{}" if len(text) > LONG and " " not in text else ""
    letters = (LATEX.get(c, c) + (may_break if c == "." else "") for c in text)
    return ("{}" if text.startswith(("[", "*")) else "") + "".join(letters)
