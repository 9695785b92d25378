from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from fxflops.counting.rollup import OperatorRow, Sums
from fxflops.render.costs import cost_lines, costs, operator_shares
from fxflops.render.data import TreeRow


def lines(text: str) -> list[str]:
    return dedent(text).strip("\n").splitlines()


def test_where_the_cost_is(vit):
    assert cost_lines(vit, None, color=False) == lines("""
        module       calls    FLOPs     %      time     %
        blocks (x4)      4  11.20 G  98.0  60.00 ms  96.0  ███████████████████▎
        embed            1  231.0 M   2.0   2.00 ms   3.2  ▋
        head             1   1.54 M   0.0  100.0 us   0.2  ▏
        other               200.0 k   0.0  400.0 us   0.6  ▏
    """)


def test_bars_of_flops_where_nothing_was_timed(vit):
    children = tuple(row._replace(seconds=None) for row in vit.root.children)
    untimed = replace(vit, root=vit.root._replace(seconds=None, children=children))
    assert cost_lines(untimed, 40, color=False) == [
        "module       calls    FLOPs     %",
        "blocks (x4)      4  11.20 G  98.0  ████▉",
        "embed            1  231.0 M   2.0  ▏",
        "other                1.74 M   0.0  ",
    ]


def test_a_wrapper_is_shown_as_what_is_in_it(vit, root):
    def inside(row: TreeRow) -> TreeRow:
        return row._replace(path=f"model.{row.path}", children=tuple(map(inside, row.children)))

    wrapper = root._replace(name="model", path="model", children=tuple(map(inside, root.children)))
    shown = costs(replace(vit, root=root._replace(children=(wrapper,))))
    assert [row.path for row in shown] == ["model.blocks (x4)", "model.embed", "model.head", "other"]


def test_top_level_modules_alike_are_one_row(vit, root):
    blocks = root.children[1].children
    (row,) = costs(replace(vit, root=root._replace(children=blocks, flops=11_201_200_000, seconds=0.060)))
    assert (row.path, row.calls, row.flops) == ("blocks.0..3 (x4)", 4, 11_201_200_000)


def test_at_most_eight_and_the_rest_together(vit):
    modules = tuple(TreeRow(f"m{i}", "M", f"m{i}", 1, 0, 0, 100 + i) for i in range(10))
    shown = costs(replace(vit, root=vit.root._replace(children=modules, flops=1045, seconds=None)))
    assert [row.path for row in shown] == ["m9", "m8", "m7", "m6", "m5", "m4", "m3", "m2", "other"]
    assert shown[-1].flops == 100 + 101
    assert shown[-1].seconds is None


def test_a_module_whose_calls_are_not_counted_is_shown(vit):
    ssm = TreeRow("ssm", "SSM", "ssm", 1, 0, 0, 0, missing=12)
    root = vit.root._replace(children=(*vit.root.children, ssm))
    assert costs(replace(vit, root=root))[-2].path == "ssm"


def test_modules_whose_share_prints_as_nothing_are_left_to_the_rest(vit):
    drop = TreeRow("drop", "Dropout", "drop", 1, 0, 0, 0, seconds=1e-6, missing=1)
    root = vit.root._replace(children=(*vit.root.children, drop))
    assert [row.path for row in costs(replace(vit, root=root))][-2:] == ["head", "other"]


def test_no_modules(vit):
    assert cost_lines(replace(vit, root=vit.root._replace(children=())), None, color=False) == []


def test_operator_shares(vit):
    assert operator_shares(vit) == [
        ("by operator", ["linear 87.5%", "attention 10.5%", "conv 2.0%", "layer_norm 0.0%", "other 0.0%"]),
        ("by operator, time", ["linear 72.0%", "attention 19.2%", "layer_norm 4.8%", "conv 3.2%", "other 0.8%"]),
    ]


def test_the_host_alone_is_no_operator(vit):
    host = [OperatorRow("(host)", 17, Sums(17, 0, seconds=0.1))]
    assert operator_shares(replace(vit, operators=host)) == []


@pytest.mark.parametrize("flops", [0, 5])
def test_operators_that_were_not_timed(vit, flops):
    untimed = [OperatorRow("linear", 17, Sums(17, flops))]
    assert operator_shares(replace(vit, operators=untimed)) == ([("by operator", ["linear 100.0%"])] if flops else [])
