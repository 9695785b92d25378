from __future__ import annotations

from textwrap import dedent

import pytest

from fxflops.errors import InputError
from fxflops.render.data import TreeRow
from fxflops.render.text import ANSI, cells
from fxflops.render.tree import tree

FULL = """
module                         params     MACs    FLOPs      %      time      %
ViT                           25.51 M   5.72 G  11.43 G  100.0  62.50 ms  100.0
├─ embed  Conv2d              590.0 k  115.0 M  231.0 M    2.0   2.00 ms    3.2
├─ blocks  Sequential         24.00 M   5.60 G  11.20 G   98.0  60.00 ms   96.0
│  └─ 0..3  Block  x4 (each)   6.00 M   1.40 G   2.80 G   24.5  15.00 ms   24.0
│     ├─ attn  Attention       2.00 M  500.0 M   1.00 G    8.7   3.75 ms    6.0
│     ├─ mlp  Mlp              4.00 M  900.0 M   1.80 G   15.7   7.50 ms   12.0
│     └─ (own: add x2)              0        0  300.0 k    0.0   3.75 ms    6.0
├─ head  Linear               769.0 k  768.0 k   1.54 M    0.0  100.0 us    0.2
└─ (own: add, cat)            152.0 k        0  200.0 k    0.0  400.0 us    0.6
"""


def lines(text: str) -> str:
    return dedent(text).strip("\n")


def without_measures(row: TreeRow) -> TreeRow:
    children = tuple(map(without_measures, row.children))
    return row._replace(seconds=None, own_seconds=None, bytes_peak=None, children=children)


def test_the_tree(root):
    assert tree(root) == lines(FULL)


def test_columns_nothing_was_measured_for_are_left_out(root):
    assert tree(without_measures(root), depth=1) == lines("""
        module                  params     MACs    FLOPs      %
        ViT                    25.51 M   5.72 G  11.43 G  100.0
        ├─ embed  Conv2d       590.0 k  115.0 M  231.0 M    2.0
        ├─ blocks  Sequential  24.00 M   5.60 G  11.20 G   98.0
        ├─ head  Linear        769.0 k  768.0 k   1.54 M    0.0
        └─ (own: add, cat)     152.0 k        0  200.0 k    0.0
        below depth 1: 12 more modules
    """)


def test_a_column_asked_for_is_shown_in_any_case(root):
    assert tree(without_measures(root), depth=0, columns="calls,time") == lines("""
        module  calls  time
        ViT         1     -
        below depth 0: 15 more modules
        not measured: time; fxflops.analyze and fxflops run measure times and memory
    """)


def test_what_the_convention_counts_is_the_title(root):
    head = tree(without_measures(root), depth=0, columns="macs,flops", counted="thop MACs").splitlines()[0]
    assert head == "module    MACs  thop MACs"


def test_without_folding_and_in_one_unit(root):
    assert tree(root.children[1], fold=False, depth=1, columns=["flops", "time"], units="M") == lines("""
        module                   FLOPs      time
        blocks  Sequential  11,201.2 M  60.00 ms
        ├─ 0  Block          2,800.3 M  12.00 ms
        ├─ 1  Block          2,800.3 M  14.00 ms
        ├─ 2  Block          2,800.3 M  16.00 ms
        └─ 3  Block          2,800.3 M  18.00 ms
        below depth 1: 8 more modules
    """)


@pytest.mark.parametrize(
    ("by", "order"),
    [
        (None, ["embed", "blocks", "head"]),
        ("flops", ["blocks", "embed", "head"]),
        ("time", ["blocks", "embed", "head"]),
        ("params", ["blocks", "head", "embed"]),
        ("memory", ["blocks", "embed", "head"]),
    ],
)
def test_sort_by(root, by, order):
    text = tree(root, depth=1, sort_by=by, columns=["calls"])
    assert [line.split()[1] for line in text.splitlines()[2:-2]] == order
    assert text.splitlines()[-2].startswith("└─ (own:")


def test_folded_siblings_are_sorted_by_what_they_cost_together():
    small = [TreeRow(str(i), "Block", str(i), 1, 0, 5, 10, own_flops=10) for i in range(3)]
    large = TreeRow("large", "Block", "large", 1, 0, 10, 20, own_flops=20)
    net = TreeRow("", "Net", "", 1, 0, 25, 50, children=(large, *small))
    assert tree(net, sort_by="flops", columns="flops") == lines("""
        module                     FLOPs
        Net                           50
        ├─ 0..2  Block  x3 (each)     10
        └─ large  Block               20
    """)


def test_calls_that_are_not_one_and_operators_left_out():
    ops = {"add": 1, "mul": 3, "cat": 1, "exp": 1, "log": 1}
    shared = TreeRow("shared", "Linear", "shared", 3, 8, 24, 48)
    unused = TreeRow("unused", "Linear", "unused", 0, 8, 0, 0)
    net = TreeRow("", "Net", "", 1, 16, 24, 54, own_flops=6, own_ops=ops, children=(shared, unused))
    assert tree(net, columns="flops") == lines("""
        module                               FLOPs
        Net                                     54
        ├─ shared  Linear  (3 calls)            48
        ├─ unused  Linear  (not called)          0
        └─ (own: add, mul x3, cat, +2 more)      6
    """)


def test_missing_calls_make_a_lower_bound(root):
    head = root.children[2]._replace(missing=2)
    text = tree(root._replace(missing=2, children=(head,)), columns="flops,params")
    assert text.splitlines()[1].split()[1:] == [">=", "11.43", "G", "25.51", "M"]
    assert text.splitlines()[2].split()[3:] == [">=", "1.54", "M", "769.0", "k"]
    assert ">=" not in text.splitlines()[3]


def test_a_narrow_terminal_loses_columns_before_names(root):
    assert tree(root, width=60, depth=2) == lines("""
        module                          FLOPs      time      %
        ViT                           11.43 G  62.50 ms  100.0
        ├─ embed  Conv2d              231.0 M   2.00 ms    3.2
        ├─ blocks  Sequential         11.20 G  60.00 ms   96.0
        │  └─ 0..3  Block  x4 (each)   2.80 G  15.00 ms   24.0
        ├─ head  Linear                1.54 M  100.0 us    0.2
        └─ (own: add, cat)            200.0 k  400.0 us    0.6
        below depth 2: 8 more modules
    """)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_is_longer_than_the_width(root, width):
    deep = root._replace(
        children=(root.children[0]._replace(name="a_very_long_name_of_a_module_in_a_model", cls="C" * 30),)
    )
    for text in (tree(root, width=width), tree(deep, width=width), tree(deep, width=width, color=True)):
        assert max(map(cells, text.splitlines())) <= width
    assert "…" in tree(deep, width=60)


@pytest.mark.parametrize("width", [50, 60, 80])
def test_how_many_are_folded_is_never_cut(root, width):
    blocks = root.children[1]
    long = [row._replace(name=f"encoder_layer_{row.name}", cls="TransformerEncoderBlock") for row in blocks.children]
    text = tree(root._replace(children=(blocks._replace(children=tuple(long)),)), width=width)
    assert f"x{len(long)} (each)" in text
    assert max(map(cells, text.splitlines())) <= width


def test_color_changes_nothing_but_color(root):
    colored = tree(root, color=True)
    assert "\x1b[" in colored
    assert [line.rstrip() for line in ANSI.sub("", colored).splitlines()] == tree(root).splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sort_by": "size"}, "no column 'size'; expected some of calls, params"),
        ({"columns": ["size"]}, "no column 'size'"),
        ({"units": "GB"}, "unknown units 'GB'"),
        ({"depth": -1}, "depth must be an int of at least 0, or None for all; got -1"),
    ],
)
def test_unknown_words(root, arguments, said):
    with pytest.raises(InputError, match=said):
        tree(root, **arguments)


def test_a_name_cannot_break_the_line(root):
    nasty = root._replace(children=(root.children[0]._replace(name="a\nb", cls="\x1b[2J"),))
    text = tree(nasty, columns="calls")
    assert len(text.splitlines()) == 4
    assert "a\\nb  \\x1b[2J" in text
