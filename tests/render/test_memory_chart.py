"""Memory over the run: heights in proportion, the peak, the band of constant memory, and the owners."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fxflops.meters.history import Moment
from fxflops.render.charts import picture
from fxflops.render.memory_chart import constant, memory_chart, memory_note, owners_table
from fxflops.render.page_data import MemoryTimeline, Owner

SVG = "{http://www.w3.org/2000/svg}"
MIB = 2**20


def timeline(*activations: int, params: int = 600, peak: int = 1000, phases: str = "") -> MemoryTimeline:
    states = [
        Moment(
            "<b>", "linear", (phases or "f" * len(activations))[i], {"params": params, "inputs": 0, "activations": each}
        )
        for i, each in enumerate(activations)
    ]
    return MemoryTimeline(states, peak, "<b>", [], "predicted")


def drawn(memory: MemoryTimeline, **options: bool) -> tuple[dict[str, str], list[str]]:
    """Return the areas' paths by name, and all texts."""
    root = ElementTree.fromstring(picture(memory_chart(memory, "Net", **options), "torch 9"))
    areas = {path.findtext(f"{SVG}title") or "": path.get("d", "") for path in root.iter(f"{SVG}path")}
    return areas, ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def test_areas_are_as_high_as_the_bytes() -> None:
    areas, texts = drawn(timeline(300, 0))
    # The axis ends a tenth above the peak, at 1100; the plot is 1000 units high and wide.
    y = {nbytes: f"{1000 - 1000 * nbytes / 1100:.1f}" for nbytes in (600, 900)}
    assert areas["params"] == f"M0 1000V{y[600]}H1000V1000Z"
    assert areas["activations"] == f"M0 1000V{y[900]}H500V{y[600]}H1000V1000Z"
    assert {"■ params", "■ activations", "peak 1,000 B in <b>", "0 B"} <= {*texts}
    assert "inputs" not in areas


def test_what_never_changes_is_a_band_that_is_not_to_scale() -> None:
    memory = timeline(MIB, 2 * MIB, params=100 * MIB, peak=103 * MIB)
    areas, texts = drawn(memory, folds_constant=True)
    assert constant(memory) == {"params": 100 * MIB}
    band = 1000 - float(re.findall(r"V([\d.]+)", areas["params"])[0])
    low, high = (1000 - float(y) for y in re.findall(r"V([\d.]+)", areas["activations"])[:2])
    assert high - band == pytest.approx(2 * (low - band), abs=0.3)
    assert band < 200
    assert {"0 B", "100 MiB", "+1 MiB", "+2 MiB", "params 100.0 MiB, throughout (not to scale)"} <= {*texts}


def test_phases_are_named_where_they_begin() -> None:
    _, texts = drawn(timeline(1, 2, 3, 4, phases="ffbb"))
    assert [text for text in texts if "→" in text] == ["f →", "b →"]
    assert not [text for text in drawn(timeline(1, 2))[1] if "→" in text]


def test_the_note_says_what_the_chart_does_not() -> None:
    assert memory_note(timeline(300, 0)) == (
        "Constant during the run: params 600 B. The area shows the memory after each call. During a call, memory can be higher, as it is at the peak. "
        "The memory is predicted, not measured."
    )
    assert "states are drawn" in memory_note(timeline(*range(5000), peak=6000))


def test_owners_are_rows_and_the_smallest_are_one() -> None:
    owners = [Owner("activations", f"<{i}>", "linear", "f32[2]", 100) for i in range(15)]
    owners += [Owner("optimizer", "", "exp_avg", "", 40, 4), Owner("inputs", "", "", "f32[1]", 10)]
    rows = re.findall(r"<tr>(.*?)</tr>", owners_table(MemoryTimeline([], 2000, "", owners, "")))
    assert len(rows) == 1 + 15 + 1
    assert re.findall(r">([^<]*)</td>", rows[1]) == ["100 B", "5.0%", "activations", "&lt;0&gt;", "linear", "f32[2]"]
    assert re.findall(r">([^<]*)</td>", rows[-1])[:3] == ["50 B", "2.5%", "5 smaller"]
    (row,) = re.findall(r"<tr>(.*?)</tr>", owners_table(MemoryTimeline([], 80, "", owners[15:16], "")))[1:]
    assert re.findall(r">([^<]*)</td>", row) == ["40 B", "50.0%", "optimizer exp_avg", "", "", "4 tensors"]
