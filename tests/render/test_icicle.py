"""The icicle of modules: heights in proportion, identical modules together, names that stay names."""

from __future__ import annotations

import re

import pytest

from fxflops.render.charts import HEIGHT
from fxflops.render.data import TreeRow
from fxflops.render.icicle import EDGE, TOP, icicle_svg
from fxflops.units import count


def leaf(name: str, op: str, flops: int) -> TreeRow:
    return TreeRow(name, "Leaf", name, 1, 0, 0, flops, own_flops=flops, own_ops={op: 1})


def block(name: str) -> TreeRow:
    inside = leaf("<fc>", "linear", 60), leaf("act", "relu", 20)
    return TreeRow(name, "Block", name, 1, 0, 0, 100, own_flops=20, own_ops={"add": 1}, children=inside)


def test_tiles_are_as_high_as_their_values() -> None:
    root = TreeRow(
        "", "Net", "", 1, 0, 0, 400, children=(block("0"), block("1"), block("2"), leaf("head", "linear", 100))
    )
    svg = icicle_svg(root, lambda row: row.flops, count, "Net · FLOPs", "torch 9")
    tiles = re.findall(r'<title>([^<]*)</title><rect (?:class="module"|fill="(.{7})") .*?height="([\d.]+)"', svg)
    room = HEIGHT - TOP - EDGE
    # Three blocks of 60 + 20 + 20, and 100 of the head: of 400.
    shares = {"Net": 1, "0..2 x3": 0.75, "&lt;fc&gt;": 0.45, "act": 0.15, "(own: add)": 0.15, "head": 0.25}
    assert [title.rpartition("  ")[0] for title, _, _ in tiles] == [*shares]
    for (title, _, height), share in zip(tiles, shares.values(), strict=True):
        assert title.endswith(f"{100 * share:.1f}%")
        assert float(height) + 1 == pytest.approx(share * room, abs=0.1)
    colours = {title.partition("  ")[0]: colour for title, colour, _ in tiles}
    assert colours["head"] == colours["&lt;fc&gt;"] != colours["act"]
    assert colours["Net"] == ""
    assert ">matrix product</text>" in svg
    assert "<desc>torch 9</desc>" in svg


def test_a_module_that_holds_another_alone_shares_its_tile() -> None:
    outer = TreeRow("body", "Outer", "body", 1, 0, 0, 50, children=(leaf("fc", "linear", 50),))
    root = TreeRow("", "Net", "", 1, 0, 0, 100, children=(outer, leaf("head", "conv2d", 50)))
    svg = icicle_svg(root, lambda row: row.flops, count, "Net", "")
    assert "<title>body.fc  50.0%</title>" in svg
    assert svg.count('<rect class="module"') == 1
