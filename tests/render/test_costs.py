from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

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
    untimed = replace(vit, seconds=None, modules=[row._replace(seconds=None) for row in vit.modules])
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
    shown = costs(replace(vit, modules=(wrapper,)))
    assert [row.path for row in shown] == ["model.blocks (x4)", "model.embed", "model.head", "other"]


def test_top_level_modules_alike_are_one_row(vit, root):
    (row,) = costs(replace(vit, modules=root.children[1].children, flops=11_201_200_000, seconds=0.060))
    assert (row.path, row.calls, row.flops) == ("blocks.0..3 (x4)", 4, 11_201_200_000)


def test_at_most_eight_and_the_rest_together(vit):
    modules = [TreeRow(f"m{i}", "M", f"m{i}", 1, 0, 0, 100 + i) for i in range(10)]
    shown = costs(replace(vit, modules=modules, flops=1045, seconds=None))
    assert [row.path for row in shown] == ["m9", "m8", "m7", "m6", "m5", "m4", "m3", "m2", "other"]
    assert shown[-1].flops == 100 + 101
    assert shown[-1].seconds is None


def test_a_module_whose_calls_are_not_counted_is_shown(vit):
    ssm = TreeRow("ssm", "SSM", "ssm", 1, 0, 0, 0, missing=12)
    assert costs(replace(vit, modules=(*vit.modules, ssm)))[-2].path == "ssm"


def test_modules_whose_share_prints_as_nothing_are_left_to_the_rest(vit):
    drop = TreeRow("drop", "Dropout", "drop", 1, 0, 0, 0, seconds=1e-6, missing=1)
    assert [row.path for row in costs(replace(vit, modules=(*vit.modules, drop)))][-2:] == ["head", "other"]


def test_no_modules(vit):
    assert cost_lines(replace(vit, modules=()), None, color=False) == []


def test_operator_shares(vit):
    assert operator_shares(vit) == [
        ("by operator", ["linear 87.5%", "attention 10.5%", "conv 2.0%", "layer_norm 0.0%", "other 0.0%"]),
        ("by operator, time", ["linear 72.0%", "attention 19.2%", "layer_norm 4.8%", "conv 3.2%", "other 0.8%"]),
    ]


def test_the_host_alone_is_no_operator(vit):
    host = [op._replace(name="(host)", flops=0, seconds=0.1) for op in vit.operators[:1]]
    assert operator_shares(replace(vit, operators=host)) == []


@pytest.mark.parametrize("flops", [0, 5])
def test_operators_that_were_not_timed(vit, flops):
    untimed = [op._replace(flops=flops, seconds=None) for op in vit.operators[:1]]
    assert operator_shares(replace(vit, operators=untimed)) == ([("by operator", ["linear 100.0%"])] if flops else [])
