"""The icicle of modules: heights in proportion, identical modules together, escaped names."""

from __future__ import annotations

import html
import re

import pytest

from fxflops.render.charts import picture
from fxflops.render.icicle import blocks, icicle_chart, total
from fxflops.render.page_data import Metric, Tile

METRIC = Metric("flops", "FLOPs", "count", "forward")
NAME = METRIC.name


def block(place: int, name: str, op: str = "add") -> list[Tile]:
    return [
        Tile(name, "Block", name, 0, 1, "", {}),
        Tile("<fc>", "Linear", f"{name}.<fc>", place, 1, "linear", {NAME: 60}),
        Tile("act", "ReLU", f"{name}.act", place, 1, "relu", {NAME: 20}),
        Tile(f"(own: {op})", "", name, place, 0, op, {NAME: 20}),
    ]


# Three identical blocks, whose own work is named after different operators, and a head; 400 in all.
ROOT = Tile("Net", "Net", "", None, 1, "", {})
HEAD = Tile("head", "Linear", "head", 0, 1, "linear", {NAME: 100})
NET = [ROOT, *block(1, "0"), *block(5, "1", "mul"), *block(9, "2"), HEAD]
SHARES = {"Net": 100, "0..2": 75, "0.<fc>": 45, "0.act": 15, "0": 15, "head": 25}


def drawn(tiles: list[Tile], **options: int) -> list[dict[str, str]]:
    """Return the attributes, tooltip lines and texts of each tile."""
    body = icicle_chart(blocks(tiles, [METRIC]), METRIC, [NAME], "Net", **options).body
    return [
        {
            **dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)),
            "title": html.unescape(title),
            "texts": html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)", texts))),
        }
        for attributes, title, texts in re.findall(r"<svg ([^>]*)><title>([^<]*)</title>(.*?)</svg>", body)
    ]


def test_tiles_are_as_high_as_their_values() -> None:
    tiles = drawn(NET)
    assert [tile["texts"] for tile in tiles] == [
        "Net 100.0%", "0..2 x3 75.0%", "<fc> x3 45.0%", "act x3 15.0%", "(own: add) x3 15.0%", "head 25.0%",
    ]  # fmt: skip
    heights = [float(tile["height"].rstrip("%")) for tile in tiles]
    assert heights == pytest.approx([100, 75, 45, 15, 15, 25], abs=0.01)
    lefts = [float(tile["x"].rstrip("%")) for tile in tiles]
    assert lefts == pytest.approx([0, 100 / 3, 200 / 3, 200 / 3, 200 / 3, 100 / 3], abs=0.01)
    kinds = [tile["class"] for tile in tiles]
    assert kinds[0] == kinds[1] == "tile module"
    assert kinds[2] == kinds[5] != kinds[3]


def test_a_tile_says_what_it_is() -> None:
    assert drawn(NET)[2]["title"].split("\n") == [
        "0.<fc> and 2 like it", "Linear x3", "180, 45.0% of all", "60 each on average", "called 3 times",
    ]  # fmt: skip


def test_it_is_a_picture_with_a_legend() -> None:
    svg = picture(icicle_chart(blocks(NET, [METRIC]), METRIC, [NAME], "Net · FLOPs"), "torch 9")
    assert "matrix product</text>" in svg
    assert "<desc>torch 9</desc>" in svg


def test_a_module_that_holds_another_alone_shares_its_tile() -> None:
    tiles = [
        ROOT,
        Tile("body", "Outer", "body", 0, 1, "", {}),
        Tile("fc", "Linear", "body.fc", 1, 1, "linear", {NAME: 50}),
        HEAD._replace(own={NAME: 50}),
    ]
    assert [tile["texts"] for tile in drawn(tiles)] == ["Net 100.0%", "body.fc 50.0%", "head 50.0%"]
    alone = [ROOT, tiles[1], tiles[2]]
    assert [tile["texts"] for tile in drawn(alone)] == ["Net 100.0%"]


def test_what_cannot_be_seen_beside_its_neighbour_is_not_drawn() -> None:
    tiles = [ROOT, HEAD._replace(own={NAME: 10_000}), Tile("(own: add)", "", "", 0, 0, "add", {NAME: 1})]
    assert len(drawn(tiles)) == 1


def test_different_modules_stay_apart() -> None:
    tiles = [ROOT, HEAD, HEAD._replace(name="other", own={NAME: 99}), HEAD._replace(name="third", cls="Conv")]
    assert [tile["texts"].split(" ")[0] for tile in drawn(tiles)] == ["Net", "head", "other", "third"]


def test_a_script_gets_the_tiles_that_are_too_small_to_see() -> None:
    tiles = [ROOT, HEAD._replace(own={NAME: 100_000}), Tile("a", "A", "a", 0, 1, "", {})]
    tiles += [Tile(f"b{i}", "B", f"a.b{i}", 2, 1, "relu", {NAME: 60 + i}) for i in range(3)]
    assert len(drawn(tiles)) == 2
    hidden = drawn(tiles, most_tiles=10)
    assert [tile.get("display") for tile in hidden] == [None, None, "none", "none", "none", "none"]
    assert [tile["data-at"].split(" ")[0] for tile in hidden] == ["0", "1", "1", "2", "2", "2"]
    assert len(drawn(tiles, most_tiles=3)) == 3


def test_phases_add_up() -> None:
    both = [Tile("Net", "Net", "", None, 1, "linear", {"flops forward": 3, "flops backward": 5})]
    assert total(blocks(both, [METRIC]), ["flops forward", "flops backward"]) == 8
