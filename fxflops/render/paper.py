"""Tables for papers, in Markdown or in LaTeX with booktabs. The numbers of a column have one unit, shown in the title, and two digits."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

from .. import units
from .columns import Column
from .text import plain

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
MARKDOWN = re.compile(r"[\\`*|]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
READABLE: dict[str, tuple[dict[str, Any], Callable[[float, str], str]]] = {
    "flops": (units.SI, units.count),
    "elements": (units.ELEMENTS, units.billions),
    "s": (units.TIME, units.seconds),
    "ms": (units.TIME, lambda value, unit: units.seconds(value / 1e3, unit)),
    "B": (units.IEC, units.size),
    "delta": (units.IEC, units.size),
}
"""For each kind of column: the units, and the function that formats a value in one of these units."""
LONG = 36
"""In LaTeX, a text with more characters than this is broken into several lines. A path is broken at its dots."""


def markdown(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], origin: str = "", notes: Sequence[str] = ()
) -> str:
    """Return a GitHub Markdown table. Below the table, ``notes`` become a list, and ``origin`` becomes the last line."""
    sides = " | ".join("---:" if column.is_number else ":---" for column in columns)
    header, *body = (" | ".join(map(_markdown, line)) for line in _lines(columns, rows))
    table = "".join(f"| {line} |\n" for line in (header, sides, *body))
    said = "\n" + "".join(f"- {_markdown(plain(note))}\n" for note in notes) if notes else ""
    return f"{table}{said}\n{_markdown(origin)}\n" if origin else f"{table}{said}"


def latex(columns: Sequence[Column], rows: Sequence[Sequence[Any]], origin: str = "", notes: Sequence[str] = ()) -> str:
    """Return a ``tabular`` environment for LaTeX's package booktabs. ``origin`` and ``notes`` become comments above the table."""
    sides = "".join("r" if column.is_number else _width(row[i] for row in rows) for i, column in enumerate(columns))
    header, *body = (" & ".join(map(_latex, line)) + r" \\" for line in _lines(columns, rows))
    lines = [
        *([f"% {plain(origin)}"] if origin else []),
        *(f"% {_latex(plain(note))}" for note in notes),
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{sides}}}",
        *(r"\toprule", header, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return lines of texts: first the titles of the columns, then the cells of each row."""
    texts = []
    for i, column in enumerate(columns):
        values = [row[i] for row in rows]
        known, written = READABLE.get(column.kind, ({}, None))
        unit = _unit(known, [v / 1e3 if column.kind == "ms" else v for v in values if isinstance(v, Real)])
        title = column.title("auto") + (f" ({unit})" if unit else "")
        texts.append([title, *(_text(column, value, written, unit) for value in values)])
    return [list(line) for line in zip(*texts, strict=True)]


def _text(column: Column, value: Any, written: Callable[[float, str], str] | None, unit: str) -> str:
    if not (column.is_number and isinstance(value, Real)):
        return column.show(value)
    return "0" if not value else _number(written(float(value), unit)) if written else column.show(value)


def _number(text: str) -> str:
    """Return a number without its unit. A number that is not 0 but rounds to 0.00 becomes "<0.01"."""
    number = text.partition(" ")[0]
    return "<0.01" if number == "0.00" else number


def _unit(known: dict[str, Any], values: Iterable[Any]) -> str:
    """Return the unit that suits the largest value."""
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
