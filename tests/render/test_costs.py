from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from fxflops.counting.rollup import OperatorRow, Sums
from fxflops.render.costs import cost_lines, costs, operator_shares
from fxflops.render.data import TreeRow


def untimed(row: TreeRow) -> TreeRow:
    return row._replace(seconds=None, own_seconds=None, children=tuple(map(untimed, row.children)))


def lines(text: str) -> list[str]:
    return dedent(text).strip("\n").splitlines()


def test_where_the_cost_is(vit):
    assert cost_lines(vit, None, color=False) == lines("""
        module                           FLOPs     %       time     %  0%   of time    100%
        blocks.*.mlp  Mlp (x4)          7.20 G  63.0   30.00 ms  48.0  █████████▋
        blocks.*  (own: add x2)         1.20 M   0.0   15.00 ms  24.0  ████▊
        blocks.*.attn  Attention (x4)   4.00 G  35.0   15.00 ms  24.0  ████▊
        embed  Conv2d                  231.0 M   2.0    2.00 ms   3.2  ▋
        (own: add, cat)                200.0 k   0.0   400.0 us   0.6  ▏
        other                           1.54 M   0.0  100.00 us   0.2  ▏
    """)


def test_bars_of_flops_where_nothing_was_timed(vit):
    assert cost_lines(replace(vit, root=untimed(vit.root)), 55, color=False) == [
        "module                           FLOPs     %",
        "blocks.*.mlp  Mlp (x4)          7.20 G  63.0  █████▋",
        "blocks.*.attn  Attention (x4)   4.00 G  35.0  ███▏",
        "embed  Conv2d                  231.0 M   2.0  ▏",
        "other                           2.94 M   0.0  ",
    ]


def test_a_narrow_table_shows_only_what_the_bars_show(vit):
    assert (
        cost_lines(vit, 50, color=False)[1] == "blocks.*.mlp  Mlp (x4)          30.00 ms  48.0  █"
    )  # 2 cells remain, of which 48% are 0.96
    assert max(map(len, cost_lines(vit, 50, color=False))) <= 50


def test_at_most_eight_and_the_rest_together(vit):
    modules = tuple(TreeRow(f"m{i}", f"M{i}", f"m{i}", 1, 0, 0, 100 + i) for i in range(10))
    shown = costs(
        replace(vit, root=vit.root._replace(children=modules, own_flops=0, own_seconds=None, flops=1045, seconds=None))
    )
    assert [part.row.path for part in shown] == ["m9", "m8", "m7", "m6", "m5", "m4", "m3", "m2", "other"]
    assert shown[-1].row.flops == 100 + 101
    assert shown[-1].row.seconds is None


def test_the_rest_says_how_many_more_it_has_of_a_kind_shown(vit):
    modules = tuple(TreeRow(f"m{i}", "AB"[i > 8], f"m{i}", 1, i, 0, 20 - i) for i in range(10))
    root = vit.root._replace(children=modules, own_flops=0, own_seconds=None, flops=155, seconds=None)
    assert costs(replace(vit, root=root))[-1].label == "other  with 1 more A"


def test_a_module_whose_calls_are_not_counted_is_shown(vit):
    ssm = TreeRow("ssm", "SSM", "ssm", 1, 0, 0, 0, missing=12)
    root = vit.root._replace(children=(*vit.root.children, ssm))
    assert "ssm" in [part.row.path for part in costs(replace(vit, root=root))]


def test_a_part_with_a_small_share_is_left_to_the_rest(vit):
    assert [part.row.path for part in costs(vit)][-1] == "other"
    assert "head" not in [part.row.path for part in costs(vit)]


def test_no_modules(vit):
    assert cost_lines(replace(vit, root=vit.root._replace(children=())), None, color=False) == []


def test_operator_shares(vit):
    assert operator_shares(vit) == [
        ("by operator", ["linear 87.5%", "attention (scaled dot product) 10.5%", "conv 2.0%"]),
        (
            "by operator, time",
            ["linear 72.0%", "attention (scaled dot product) 19.2%", "layer_norm 4.8%", "conv 3.2%", "other 0.8%"],
        ),
    ]


def test_the_host_alone_is_no_operator(vit):
    host = [OperatorRow("(host)", 17, Sums(17, 0, seconds=0.1))]
    assert operator_shares(replace(vit, operators=host)) == []


@pytest.mark.parametrize("flops", [0, 5])
def test_operators_that_were_not_timed(vit, flops):
    untimed = [OperatorRow("linear", 17, Sums(17, flops))]
    assert operator_shares(replace(vit, operators=untimed)) == ([("by operator", ["linear 100.0%"])] if flops else [])
