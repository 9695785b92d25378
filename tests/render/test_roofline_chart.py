"""Calls under the roofline: places by hand, names where there is room, and bounds in words."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from fxflops.render.charts import picture
from fxflops.render.page_data import Op, RooflineData
from fxflops.render.roofline_chart import MOST_DOTS, bounds_in_words, roofline_chart

SVG = "{http://www.w3.org/2000/svg}"
DEVICE = {"device": "mine", "bandwidth": 100.0, "source": "given"}
BOUNDS = {"forward": {"compute": (1.0, 2.0, 1), "memory": (0.5, 1.0, 1)}, "backward": {"compute": (2.0, 4.0, 1)}}
OPS = [
    Op("forward", "linear", "<a>.0", 1, 0, 0, 2.0, "f32[2]", work=1000, bytes=10, bound_seconds=1.0, binds="compute"),
    Op("forward", "relu", "", 1, 0, 0, 1.0, work=10, bytes=100, bound_seconds=0.5, binds="memory"),
    Op("forward", "view", "", 1, 0, 0, 1.0, binds="nothing"),
]
DATA = RooflineData(DEVICE, {"f32": 1000.0}, False, BOUNDS)


def drawn(data: RooflineData, ops: list[Op], phase: str | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(picture(roofline_chart(data, ops, "Net", phase)[0], "torch 9"))


def titles(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}title")][1:]


def test_dots_stand_at_their_flops_for_a_byte_and_their_speed() -> None:
    root = drawn(DATA, OPS)
    assert len(titles(root)) == 2  # a view computes nothing
    (circle,) = root.iter(f"{SVG}circle")
    (square,) = [each for each in root.iter(f"{SVG}svg") if each.find(f"{SVG}path") is not None]
    # 100 FLOP/B at 500 FLOP/s and 0.1 FLOP/B at 10 FLOP/s, on logarithmic axes: the ridge is at 10 FLOP/B.
    low, right, bottom, high = 0.05, 200.0, 0.5, 2500.0
    for at, x, y in (((circle.get("cx"), circle.get("cy")), 100, 500), ((square.get("x"), square.get("y")), 0.1, 10)):
        across, up = math.log(x / low) / math.log(right / low), math.log(y / bottom) / math.log(high / bottom)
        places = [float(str(each).rstrip("%")) for each in at]
        assert places == pytest.approx([100 * across, 100 - 100 * up], abs=0.01)
    texts = {"".join(each.itertext()) for each in root.iter(f"{SVG}text")}
    assert {
        "linear <a>.0",
        "relu",
        "f32 1.00 kFLOP/s",
        "memory 100 B/s",
        "● bound by compute",
        "■ bound by memory",
    } <= texts
    assert "Net · FLOP/s on mine" in texts


def test_a_dot_says_what_it_is() -> None:
    assert titles(drawn(DATA, OPS))[0] == (
        "linear <a>.0\nf32[2]\n500 FLOP/s at 100 FLOP/B\n2.00 s, at least 1.00 s (50.0%)"
    )


def test_a_prediction_has_dots_at_their_least_times() -> None:
    data = RooflineData(DEVICE, {"f32": 1000.0}, True, BOUNDS)
    assert "1.00 kFLOP/s at 100 FLOP/B" in titles(drawn(data, OPS))[0]


def test_the_phases_are_apart_and_one_is_visible() -> None:
    root = drawn(DATA, [*OPS, OPS[0]._replace(phase="backward")], "forward")
    groups = {each.get("data-phase"): each.get("display") for each in root.iter(f"{SVG}g")}
    assert groups == {"forward": None, "backward": "none"}


def test_the_longest_calls_are_drawn() -> None:
    ops = [OPS[0]._replace(seconds=1.0 + i) for i in range(MOST_DOTS + 7)]
    chart, left_out = roofline_chart(DATA, ops, "Net")
    assert left_out == {"forward": 7}
    assert chart.body.count("<title>") == MOST_DOTS


def test_bounds_are_summed_by_what_binds() -> None:
    assert bounds_in_words(DATA, "forward") == (
        "On mine (given) the calls take at least 1.50 s: compute 1.00 s (66.7%), memory 500.0 ms (33.3%). "
        "They took 3.00 s: 50.0% efficient."
    )
    assert "at least 3.50 s: compute 3.00 s (85.7%)" in bounds_in_words(DATA)
    untimed = RooflineData(DEVICE, {}, True, {"forward": {"compute": (1.0, None, 1)}})
    assert bounds_in_words(untimed, "forward").endswith(
        "compute 1.00 s (100.0%). This is a prediction, not a measurement."
    )
