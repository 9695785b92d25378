"""Text in a terminal. The functions measure its width in cells, pad it, shorten it, colour it, and draw bars."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from html import escape

ANSI = re.compile(r"\x1b\[[0-9;]*m")
STYLES = {"bold": "1", "dim": "2", "red": "1;31", "cyan": "36"}
EIGHTHS = " ▏▎▍▌▋▊▉"
ASCII = str.maketrans("·…─│├└█▉▊▋▌▍▎▏", "|~-||`########")
"""The ASCII character that replaces each non-ASCII character of our texts. Both look similar and have the same width."""
SHORTEST = 8
"""A name or class is never shortened to fewer cells than this."""


def plain(text: str) -> str:
    """Return the text on one line. Unprintable characters are escaped, because names in a model may contain any character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str) -> str:
    """Return the text. If stdout cannot encode the text, so that printing would raise, return it in ASCII with "?" for other characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text


def place(path: str) -> str:
    """Return a module's path on one line. A path that is only a number, as in a Sequential, becomes ``module 0``."""
    return f"module {path}" if path.isdecimal() else plain(path)


def escaped(text: str) -> str:
    """Return the text on one line, escaped for HTML."""
    return escape(plain(text))


def cells(text: str) -> int:
    """Return the number of terminal cells that the text occupies. A wide character takes two cells, a colour code takes no cell."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    letters = (c for c in ANSI.sub("", text) if not unicodedata.combining(c))
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in letters)


def pad(text: str, width: int, right: bool = False) -> str:
    """Pad the text to ``width`` cells. With ``right``, align the text on the right."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def elide(text: str, width: int) -> str:
    """Shorten the text to at most ``width`` cells by removing its middle: ``elide("built-in add", 7) -> "bui…add"``."""
    if cells(text) <= width:
        return text
    head, tail = text[: width // 2], text[len(text) - (width - 1) // 2 :]
    while cells(head) + 1 + cells(tail) > width and (head or tail):
        head, tail = (head[:-1], tail) if cells(head) >= cells(tail) else (head, tail[1:])
    return f"{head}…{tail}"


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return one line for each row. Each column is padded to its widest text, and two blanks separate the columns."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths, right)).rstrip() for row in rows]


def wrapped(line: str, width: int | None, indent: int) -> str:
    """Wrap the line to ``width`` cells and indent continuation lines. If ``width`` is None, do not wrap."""
    if width is None or cells(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * min(indent, width // 2), break_on_hyphens=False)


def bar(percent: float | None, width: int = 20) -> str:
    """Return a bar of block characters, which is ``width`` cells long at 100%. Return "" for None and for a percentage that prints as 0.0."""
    share = min(max(percent or 0.0, 0.0), 100.0)
    eighths = max(
        round(share / 100 * width * 8), share >= 0.05
    )  # a share that prints as 0.1 gets at least an eighth of a cell
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def paint(text: str, style: str, color: bool) -> str:
    """Return the text in a style of :data:`STYLES`. Without ``color``, return the text unchanged."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if color and text else text


def terminal_width() -> int | None:
    """Return the terminal's width in cells; Return None if stdout is a file or a notebook instead of a terminal, so that nothing is cut."""
    try:
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    except (AttributeError, ValueError):
        return None
