"""A quantity as a function of a size: stacked bands, each as high as its values."""

from __future__ import annotations

import re

from fxflops.render.bands import bands_chart


def test_bands_lie_on_top_of_one_another() -> None:
    chart = bands_chart("FLOPs of Net", "seq", [10, 30, 50], {"linear": [1, 2, 3], "other": [1, 1, 1]}, in_bytes=False)
    assert [name for _, name, _ in chart.legend] == ["linear", "other"]
    bands = {name: path for path, name in re.findall(r'd="([^"]*)"><title>(\w+)<', chart.body)}
    points = {name: re.findall(r"L([\d.]+) ([\d.]+)", path) for name, path in bands.items()}
    assert [x for x, _ in points["linear"]] == ["0", "500", "1000"]
    heights = {name: [1000 - float(y) for _, y in band] for name, band in points.items()}
    one = heights["linear"][0]
    for name, values in (("linear", (1, 2, 3)), ("other", (2, 3, 4))):
        assert all(abs(high - value * one) < 0.3 for high, value in zip(heights[name], values, strict=True))
    assert ">seq</text>" in chart.body


def test_bytes_have_their_units() -> None:
    chart = bands_chart("bytes", "seq", [1, 2], {"memory": [2**20, 3 * 2**20]}, in_bytes=True)
    assert ">1 MiB</text>" in chart.body
