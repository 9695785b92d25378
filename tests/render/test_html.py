from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fxflops.counting.rollup import OperatorRow, Sums
from fxflops.counting.uncounted import Missing
from fxflops.render.columns import RESULT
from fxflops.render.data import TreeRow
from fxflops.render.html import html

ROWS = [
    ["x", "placeholder", "x", "", 0, 0.0125, 1000, 2000, 1000],
    ["add", "call_function", "<built-in function add>", "", "not_recognized", None, None, None, None],
]
ATTACK = "</script><img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """Collect the elements of a page, and check that every opened element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data + "\n"

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.seen}


def test_it_shows_the_facts_the_tree_and_the_nodes(vit):
    page = Elements(html(vit, RESULT, ROWS))
    for shown in (
        "11.43 G",
        "complete: 41 of 41 calls",
        "x4 (each)",
        "(own: add, cat)",
        "2 nodes",
        "<built-in function add>",
    ):
        assert shown in page.text
    assert page.tags() == {
        *(
            "div",
            "style",
            "b",
            "small",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "span",
            "details",
            "summary",
            "button",
            "p",
        )
    }


def test_only_the_root_is_unfolded_and_leaves_cannot_be(vit):
    details = [attributes for tag, attributes in Elements(html(vit)).seen if tag == "details"]
    assert details == [{"open": None}, {}, {}, {"open": None}]  # the last is the table of operators


def test_it_loads_nothing(vit):
    text = html(vit, RESULT, ROWS)
    assert not any(word in text for word in ("http:", "https:", "src=", "@import", "url(", "<link"))


def test_names_are_escaped_wherever_they_stand(vit, root):
    leaf = TreeRow(
        ATTACK,
        ATTACK,
        ATTACK,
        1,
        0,
        0,
        5,
        children=(TreeRow("x", "X", "x", 1, 0, 0, 5),),
        own_flops=1,
        own_ops={ATTACK: 1},
    )
    nasty = replace(
        vit,
        title=ATTACK,
        inputs=ATTACK,
        setting=ATTACK,
        root=root._replace(cls=ATTACK, children=(leaf,)),
        convention=ATTACK,
        peak_at=ATTACK,
        operators=(OperatorRow(ATTACK, 1, Sums(1, 5)),),
        missing=(Missing(ATTACK, 1, ATTACK, ATTACK, ATTACK),),
        paste=ATTACK,
    )
    rows = [[ATTACK, ATTACK, ATTACK, ATTACK, ATTACK, None, None, None, None]]
    text = html(nasty, RESULT, rows)
    assert "<img" not in text
    assert "</script" not in text
    page = Elements(text)
    assert not page.tags() & {"img", "script"}
    assert not any("onerror" in attributes for _, attributes in page.seen)
    assert page.text.count("<img src=x onerror=alert(1)>") >= 15


def test_a_quote_cannot_leave_its_attribute(vit, root):
    leaf = TreeRow('" onmouseover="alert(1)', "X", '" onmouseover="alert(1)', 1, 0, 0, 5)
    page = Elements(
        html(replace(vit, root=root._replace(children=(leaf,))), RESULT, [['" onmouseover="x', *ROWS[0][1:]]])
    )
    assert not any("onmouseover" in attributes for _, attributes in page.seen)


def test_cells_carry_bare_values_for_sorting(vit):
    cells = [attributes for tag, attributes in Elements(html(vit, RESULT, ROWS)).seen if tag == "td"]
    assert cells[-18 + 4] == {"class": "n", "data-v": "0"}
    assert cells[-9 + 4] == {"class": "n"}


def test_operators_are_a_table_to_sort(vit):
    page = Elements(html(vit))
    assert "5 operators" in page.text
    cells = [attributes for tag, attributes in page.seen if tag == "td"][-30:]
    assert [cell["data-v"] for cell in cells[::6]] == [op.key for op in vit.operators]
    assert [float(cell["data-v"]) for cell in cells[2::6]] == [op.total.flops for op in vit.operators]
    assert [cell["title"] for cell in cells[2::6]] == [f"{op.total.flops:,}" for op in vit.operators]
    untimed = replace(vit, operators=[replace(op, total=op.total._replace(seconds=None)) for op in vit.operators])
    assert "time%" not in Elements(html(untimed)).text


def test_a_table_of_some_says_of_how_many(vit):
    text = html(vit, RESULT, ROWS, noun="calls, most expensive first", of=30)
    assert "first 2 of 30 calls, most expensive first" in text
    assert "first" not in html(vit, RESULT, ROWS[:1] * 30)


@pytest.mark.parametrize("paste", ["", "@fxflops.formula(scan)"])
def test_what_is_missing_is_said(vit, root, paste):
    missing = (Missing("mylib::scan", 1),)
    text = html(replace(vit, counted_calls=40, missing=missing, root=root._replace(missing=1), paste=paste))
    assert "not counted: mylib::scan x1" in text
    assert (">= 11.43 G" in text) is False
    assert "&gt;= 11.43 G" in text
    assert ("paste" in text) is bool(paste)
