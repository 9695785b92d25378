"""The scatter chart of models: points lie where their numbers say, on linear or logarithmic axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from fxflops.render.charts import picture
from fxflops.render.columns import Column
from fxflops.render.scatter import scatter_chart

FLOPS, SECONDS, BYTES = (
    Column("flops", "FLOPs", "flops"),
    Column("latency", "latency", "s"),
    Column("memory", "peak memory", "B"),
)


def scatter(points: Mapping[str, Sequence[float]], x: Column, y: Column) -> str:
    return picture(scatter_chart(points, x, y), "")


def dots(picture: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)%"', picture)]


def ticks(picture: str) -> list[str]:
    return re.findall(r'<text class="soft"[^>]*>([^<]*)</text>', picture)


def test_a_linear_axis_places_a_point_between_its_neighbours_in_proportion() -> None:
    (x1, y1), (x2, y2), (x3, y3) = dots(scatter({"a": (1e9, 1), "b": (2e9, 2), "c": (4e9, 4)}, FLOPS, SECONDS))
    assert (x2 - x1) / (x3 - x1) == pytest.approx(1 / 3, abs=1e-2)
    assert (y1 - y2) / (y1 - y3) == pytest.approx(1 / 3, abs=1e-2)


def test_an_axis_of_several_orders_of_magnitude_is_logarithmic() -> None:
    (x1, _), (x2, _), (x3, _) = dots(scatter({"a": (1e6, 1), "b": (1e9, 2), "c": (1e12, 3)}, FLOPS, SECONDS))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)


def test_bytes_have_ticks_at_powers_of_two() -> None:
    shown = ticks(scatter({"a": (1e9, 2**20), "b": (2e9, 2**28)}, FLOPS, BYTES))
    assert "4 MiB" in shown
    assert not any("." in text for text in shown if text.endswith("iB"))


@pytest.mark.parametrize("points", [{"a": (1e9, 0.01)}, {"a": (0, 0)}, {"a": (0, 1), "b": (1e9, 1)}])
def test_points_without_an_extent_lie_inside(points: dict[str, tuple[float, float]]) -> None:
    for x, y in dots(scatter(points, FLOPS, SECONDS)):
        assert 0 <= x <= 100
        assert 0 <= y <= 100


def test_names_of_points_in_one_place_go_above_and_below_each_other() -> None:
    names = [f"library:model_with_a_long_name_{i}" for i in range(3)]
    close = {name: (1e9 * (1 + i / 1000), 1.0 + i / 1000) for i, name in enumerate(names)}
    drawn = scatter({**close, "tiny": (1e6, 0.001)}, FLOPS, SECONDS)
    places = re.findall(r'dy="(-?\d+)" text-anchor="(\w+)">(library:[^<]+)<', drawn)
    assert [name for *_, name in places] == names
    assert len({(side, height) for height, side, _ in places}) == 3


def test_names_of_close_points_go_to_different_sides() -> None:
    drawn = scatter({"first": (1e9, 1.0), "second": (1.001e9, 1.0), "far": (3e9, 3)}, FLOPS, SECONDS)
    anchors = re.findall(r'text-anchor="(\w+)">(first|second)<', drawn)
    assert {anchor for anchor, _ in anchors} == {"start", "end"}
