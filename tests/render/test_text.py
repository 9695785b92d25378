from __future__ import annotations

import io
import sys

import pytest

from fxflops.render.text import align, bar, cells, elide, pad, paint, plain, printable, terminal_width, wrapped


def test_plain_escapes_what_would_break_the_line_or_the_terminal():
    assert plain("blocks.0 · 中") == "blocks.0 · 中"
    assert plain("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"


LETTERS = "├─ 0 · │ └─ a…b ██▏ 中"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf8", LETTERS), ("ascii", "|- 0 | | `- a~b ### ?"), ("cp437", "|- 0 | | `- a~b ### ?"), ("gb18030", LETTERS)],
)
def test_what_stdout_cannot_encode_is_written_in_ascii(monkeypatch, encoding, expected):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert printable(LETTERS) == expected
    assert printable("├─ x █") == ("├─ x █" if encoding != "ascii" else "|- x #")
    assert cells(printable("├─ a…b █")) == cells("├─ a…b █")


def test_a_stdout_without_an_encoding_takes_any_letter(monkeypatch):
    for stdout in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stdout)
        assert printable(LETTERS) == LETTERS


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("├─ ", 3), ("中文", 4), ("e\u0301", 1), ("\x1b[1mab\x1b[0m", 2)]
)
def test_cells(text, width):
    assert cells(text) == width


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("conv", 4, "conv"),
        ("<built-in function add>", 9, "<bui…add>"),
        ("abcdef", 2, "a…"),
        ("abcdef", 1, "…"),
        ("中文中文中文", 6, "中…文"),
    ],
)
def test_elide_cuts_the_middle(text, width, expected):
    assert elide(text, width) == expected
    assert cells(expected) <= width


def test_pad():
    assert pad("ab", 4) == "ab  "
    assert pad("中", 4, right=True) == "  中"
    assert pad("too long", 4) == "too long"


def test_align_pads_to_the_widest_and_leaves_no_blank_at_the_end():
    assert align([["module", "n"], ["a", "12"]], [False, True]) == ["module   n", "a       12"]
    assert align([["a", ""], ["b", "c"]], [False, False]) == ["a", "b  c"]


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(100.0, "████"), (50.0, "██"), (53.125, "██▏"), (0.1, "▏"), (0.01, ""), (0.0, ""), (None, ""), (140.0, "████")],
)
def test_bar(percent, expected):
    assert bar(percent, width=4) == expected


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, "conv  one per multiply-add"),
        (26, "conv  one per multiply-add"),
        (25, "conv  one per\n      multiply-add"),  # never at a hyphen within a word
        (10, "conv  one\n     per m\n     ultip\n     ly-ad\n     d"),  # the indent is at most half the width
    ],
)
def test_wrapped_below_its_own_column(width, expected):
    assert wrapped("conv  one per multiply-add", width, indent=6) == expected


def test_paint_only_with_color():
    assert paint("x", "bold", color=False) == "x"
    assert paint("x", "bold", color=True) == "\x1b[1mx\x1b[0m"


@pytest.mark.parametrize("stdout", [io.StringIO(), None])
def test_no_terminal_no_width(monkeypatch, stdout):
    monkeypatch.setattr(sys, "stdout", stdout)
    assert terminal_width() is None
