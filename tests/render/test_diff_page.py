"""Two reports side by side: exact numbers, bars in proportion, escaped names."""

from __future__ import annotations

import re

from fxflops.render.conclusion import Compared, compared
from fxflops.render.diff_page import MOST_ROWS, diff_page

TOTALS = [
    Compared(("FLOPs", "1.00 k", "4.00 k", "+3.00 k", "4.00x"), 1000, 4000),
    Compared(("MACs", "1.00 k", "4.00 k", "+3.00 k", "4.00x"), 1000, 4000),
    Compared(("params", "0", "7", "+7", ""), 0, 7),
    Compared(("latency", "2.00 s", "2.00 s", "0", "1.00x"), 2.0, 2.0),
]
BY_MODULE = [
    Compared(("a.<b>", "800", "2.00 k", "+1.20 k", "2.50x"), 800, 2000, "x3"),
    Compared(("new", "0", "500", "+500", ""), 0, 500, "only in b"),
]


def bars(text: str) -> list[tuple[str, str]]:
    return re.findall(r'class="side (.)" style="width:([\d.]+)%"', text)


def test_bars_are_as_long_as_the_numbers_and_nothing_has_none() -> None:
    text = diff_page("", "One   f32[2]", "Other   f32[2]", TOTALS, {"FLOPs by module": BY_MODULE})
    assert bars(text) == [
        ("a", "25.00"), ("b", "100.00"), ("a", "25.00"), ("b", "100.00"), ("b", "100.00"), ("a", "100.00"), ("b", "100.00"),
        ("a", "40.00"), ("b", "100.00"), ("b", "25.00"),
    ]  # fmt: skip


def test_the_conclusion_names_what_differs_and_where_most() -> None:
    assert (
        compared(TOTALS, {"FLOPs by module": BY_MODULE})
        == "b compared with a: FLOPs 4.00x, params +7; most in a.<b>, +1.20 k"
    )
    assert compared(TOTALS[1:2], {}) == "b compared with a: MACs 4.00x"
    assert compared(TOTALS[3:], {}) == "no difference in the numbers that both reports have"


def test_names_are_escaped_and_the_title_is_the_users() -> None:
    text = diff_page("Before & after", "One   f32[2]", "Other   f32[2]", TOTALS, {"FLOPs by module": BY_MODULE})
    assert "<h1>Before &amp; after</h1>" in text
    assert "<b>" not in text
    assert '<th scope="row">a.&lt;b&gt; <small>x3</small></th>' in text
    assert "<h1>One and Other</h1>" in diff_page("", "One   f32[2]", "Other   f32[2]", TOTALS, {})
    assert "<script" not in text
    assert "script-src 'none'" in text


def test_the_smallest_differences_are_counted() -> None:
    rows = [Compared((f"m{i}", "1", "2", "+1", "2.00x"), 1, 2) for i in range(MOST_ROWS + 2)]
    text = diff_page("", "a", "b", [], {"FLOPs by module": rows})
    assert "2 more rows differ by less." in text
    assert f"m{MOST_ROWS - 1}<" in text
    assert f"m{MOST_ROWS}<" not in text
