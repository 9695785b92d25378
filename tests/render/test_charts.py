"""Charts as pictures: heights and places by hand, names that stay names."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from fxflops.meters.history import Moment
from fxflops.render.charts import BOTTOM, LEFT, RIGHT, TOP, memory_svg, roofline_svg
from fxflops.render.page_data import MemoryTimeline, Op, RooflineData

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_areas_are_as_high_as_the_bytes() -> None:
    live = {"params": 600, "inputs": 0, "activations": 300}, {"params": 600, "inputs": 0, "activations": 0}
    states = [Moment("<b>", "linear", "forward", each) for each in live]
    svg = memory_svg(MemoryTimeline(states, 1000, "<b>", [], "predicted"), "Net f32[2]", "torch 9")
    params, activations = (
        path.get("d", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("fill")
    )
    # The axis ends a tenth above the peak; the steps are half of the plot wide.
    at = [f"{BOTTOM - (BOTTOM - TOP) * nbytes / 1100:.1f}" for nbytes in (0, 600, 900)]
    middle = f"{(LEFT + RIGHT) / 2:.1f}"
    assert re.findall(r"[VH][\d.]+", params)[:4] == [f"V{at[1]}", f"H{middle}", f"V{at[1]}", f"H{RIGHT:.1f}"]
    assert re.findall(r"[VH][\d.]+", activations)[:4] == [f"V{at[2]}", f"H{middle}", f"V{at[1]}", f"H{RIGHT:.1f}"]
    assert {"params", "activations", "peak 1,000 B in <b>", "0 B"} <= {*texts(svg)}
    assert "inputs" not in texts(svg)
    assert "<desc>torch 9</desc>" in svg


def test_dots_stand_at_their_flops_for_a_byte_and_their_speed() -> None:
    ops = [
        Op("forward", "linear", "<a>.0", 1, 0, 0, 2.0, work=1000, bytes=10, bound_seconds=1.0, binds="compute"),
        Op("forward", "relu", "", 1, 0, 0, 1.0, work=10, bytes=100, bound_seconds=0.5, binds="memory"),
        Op("forward", "view", "", 1, 0, 0, 1.0, binds="nothing"),
    ]
    device = {"device": "mine", "bandwidth": 100.0}
    svg = roofline_svg(RooflineData(device, {"f32": 1000.0}, False, {}), ops, "Net", "torch 9")
    dots = [*ElementTree.fromstring(svg).iter(f"{SVG}circle")]
    assert len(dots) == 2  # a view computes nothing
    # 100 FLOP/B at 500 FLOP/s and 0.1 FLOP/B at 10 FLOP/s, on logarithmic axes: the ridge is at 10 FLOP/B.
    low, right, bottom, high = 0.05, 200.0, 0.5, 2500.0
    for dot, x, y in zip(dots, (100, 0.1), (500, 10), strict=True):
        across, up = math.log(x / low) / math.log(right / low), math.log(y / bottom) / math.log(high / bottom)
        assert float(dot.get("cx", 0)) == pytest.approx(LEFT + (RIGHT - LEFT) * across, abs=0.1)
        assert float(dot.get("cy", 0)) == pytest.approx(BOTTOM - (BOTTOM - TOP) * up, abs=0.1)
    assert {"linear <a>.0", "relu", "f32 1.00 kFLOP/s", "100 B/s", "bound by compute", "bound by memory"} <= {
        *texts(svg)
    }
    assert "Net · FLOP/s on mine" in texts(svg)
