"""Charts as pictures and in a page: the same elements, areas in proportion, escaped names."""

from __future__ import annotations

from xml.etree import ElementTree

from fxflops.render.charts import Chart, areas, ink_on, label, line, picture, placed, style, without_zeros

SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart("<Net> & co", [("■", "a <b>", "#123456")], line(0, 0, 50, 100) + label(10, 20, "<c>"))


def test_a_picture_is_well_formed_with_its_origin() -> None:
    root = ElementTree.fromstring(picture(CHART, "torch <9>"))
    texts = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    assert texts == ["<Net> & co", "■ a <b>", "<c>"]
    assert root.findtext(f"{SVG}desc") == "torch <9>"


def test_a_page_has_the_drawing_of_the_picture() -> None:
    assert CHART.body in placed(CHART)
    assert CHART.body in picture(CHART, "")
    assert "a &lt;b&gt;" in placed(CHART)
    assert 'aria-label="&lt;Net&gt; &amp; co"' in placed(CHART)
    assert "<style>" not in placed(CHART)  # the page has one for all charts


def paths(svg: str) -> dict[str, str]:
    plot = ElementTree.fromstring(svg)
    return {path.findtext("title") or "": path.get("d", "") for path in plot.iter("path")}


def test_steps_hold_until_the_next_edge_on_top_of_one_another() -> None:
    shown = paths(areas([0, 50, 100], [("a", "#111111", [40, 20]), ("<b>", "#222222", [10, 30])], stepped=True))
    # The plot is 1000 units high. From below, a is 400 and then 200 high, and both together are 500.
    assert shown["a"] == "M0 1000V600H500V800H1000V1000Z"
    assert shown["<b>"] == "M0 1000V500H1000V1000Z"
    assert [*shown] == ["<b>", "a"]  # the one in front covers the one behind


def test_bands_are_lines_from_point_to_point() -> None:
    assert paths(areas([0, 100], [("a", "#111111", [10, 20])], stepped=False))["a"] == "M0 1000L0 900L1000 800V1000Z"


def test_zeros_behind_the_point_are_left_out() -> None:
    shortened = {"2.00 MiB": "2 MiB", "1.50 G": "1.5 G", "512 B": "512 B", "100.0 k": "100 k", "10": "10"}
    assert {text: without_zeros(text) for text in shortened} == shortened


def test_letters_are_dark_on_light_colours() -> None:
    assert ink_on("#edc948") != ink_on("#4e79a7")


def test_the_style_is_for_screens_and_paper() -> None:
    assert "@media screen and (prefers-color-scheme:dark)" in style()
