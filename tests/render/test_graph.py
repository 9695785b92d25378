"""The picture of a graph: well-formed, boxes inside their parents and without overlaps, edges that end at boxes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fxflops import units
from fxflops.render.boxes import Box
from fxflops.render.graph import graph_svg

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def leaf(name: str, cost: float = 0) -> Box:
    return Box(name, "function", cost=cost)


def net() -> Box:
    a, b, c, d = leaf("a", 60), leaf("b <&>", 30), leaf("c", 10), leaf("d")
    inside = Box("inner", "module", count=4, children=[b, c], cost=40)
    inside.edges = {(None, b): {"f32[8]": None}, (b, c): {"f32[9]": None}, (None, c): {"f32[8]": None}, (c, None): {}}
    root = Box("Net", "module", children=[a, inside, d], cost=100)
    root.edges = {(a, inside): {"f32[8]": None}, (inside, d): {}, (a, d): {"f32[8]": None}, (d, a): {}}
    return root


def rectangles(element: ElementTree.Element, x: float = 0, y: float = 0) -> dict[str, Rectangle]:
    """Return each box's place in the picture, by its tooltip."""
    found: dict[str, Rectangle] = {}
    for group in element.findall(f"{SVG}g"):
        dx, dy = map(float, re.findall(r"-?[\d.]+", group.get("transform", "0 0")))
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and box is not None:
            found[str(title.text)] = (x + dx, y + dy, float(box.get("width", 0)), float(box.get("height", 0)))
        found |= rectangles(group, x + dx, y + dy)
    return found


@pytest.fixture(scope="module")
def svg() -> ElementTree.Element:
    return ElementTree.fromstring(graph_svg(net(), "Net f32[8]", "fxflops 0", "FLOPs", units.count))


def test_boxes_lie_in_the_picture_and_not_over_each_other(svg: ElementTree.Element) -> None:
    found = rectangles(svg)
    names = [
        "Net 100 · 100.0%",
        "a 60 · 60.0%",
        "inner  ×4 40 · 40.0%",
        "b <&> 30 · 30.0%",
        "c 10 · 10.0%",
        "d 0 · 0.0%",
    ]
    assert [*found] == names
    whole, a, inner, b, c, d = found.values()
    for outside, within in [(whole, a), (whole, inner), (whole, d), (inner, b), (inner, c)]:
        assert outside[0] <= within[0]
        assert outside[1] <= within[1]
        assert within[0] + within[2] <= outside[0] + outside[2]
        assert within[1] + within[3] <= outside[1] + outside[3]
    for above, below in [(a, inner), (inner, d), (b, c)]:
        assert above[1] + above[3] < below[1]
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    assert whole[0] + whole[2] <= width
    assert whole[1] + whole[3] <= height


def test_every_edge_is_drawn_and_tensors_are_named_once(svg: ElementTree.Element) -> None:
    assert len([path for path in svg.iter(f"{SVG}path") if path.get("class") == "edge"]) == 4 + 4
    texts = ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]
    assert texts.count("f32[8]") == 1
    assert texts.count("f32[9]") == 1
    assert "Net f32[8] · FLOPs 100" in texts


def test_the_dearest_is_the_darkest(svg: ElementTree.Element) -> None:
    depths = [float(rect.get("fill-opacity", 0)) for rect in svg.iter(f"{SVG}rect") if rect.get("class") == "box"]
    assert depths == [
        pytest.approx(0.8),
        pytest.approx(0.8 * 0.5**0.5, abs=1e-3),
        pytest.approx(0.8 / 6**0.5, abs=1e-3),
        0,
    ]


def test_it_needs_nothing_from_elsewhere(svg: ElementTree.Element) -> None:
    links = [value for each in svg.iter() for value in each.attrib.values() if "://" in value or "url(" in value]
    assert set(links) <= {"url(#tip)", "url(#scale)"}
