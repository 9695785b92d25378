"""Pictures of a report's graph."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from fxflops import FxflopsError, InputError, Report, analyze, count
from fxflops.report.picture import Picture, as_pdf

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def report() -> Report:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(5)), nn.Linear(8, 2))
    return analyze(model, torch.ones(4, 8), repeats=1)


def test_the_picture_shows_the_modules_with_their_costs(report: Report) -> None:
    texts = {"".join(each.itertext()) for each in ElementTree.fromstring(str(report.to_svg(chart="graph"))).iter()}
    # 5 x (4 rows x 8 outputs x (8 products + 7 sums + a bias)), and 5 x 32 for the ReLUs. The last layer has 4 x 2 outputs.
    assert {"0..4  Sequential  ×5 2.72 k · 95.5%", "2.56 k · 89.9%", "160 · 5.6%", "128 · 4.5%"} <= texts
    assert "0..4  Sequential  ×5 2.72 k · 95.5%" in {
        "".join(each.itertext()) for each in ElementTree.fromstring(str(report.to_svg(chart="graph", depth=1))).iter()
    }


def test_a_suffix_chooses_the_format(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text(encoding="utf8") == report.to_svg()


def test_a_png_has_twice_the_size_of_the_svg(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="no resvg to make a PNG")
    report.save(tmp_path / "net.png")
    data = (tmp_path / "net.png").read_bytes()
    assert data == report.to_png()
    assert data.startswith(PNG)
    svg = ElementTree.fromstring(str(report.to_svg()))
    assert struct.unpack(">II", data[16:24]) == (2 * int(svg.get("width", 0)), 2 * int(svg.get("height", 0)))


def test_a_picture_is_saved_and_shown_in_a_notebook(tmp_path: Path) -> None:
    shown = Picture('<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"/>')
    assert str(shown) == shown._repr_svg_() == shown.svg
    shown.save(tmp_path / "form.svg")
    assert (tmp_path / "form.svg").read_text(encoding="utf8") == shown.svg
    pytest.importorskip("resvg_py", reason="no resvg to make a PNG")
    shown.save(tmp_path / "form.PNG")
    assert (tmp_path / "form.PNG").read_bytes().startswith(PNG)


def test_a_pdf_has_the_text_of_the_picture(report: Report, tmp_path: Path) -> None:
    cairosvg = pytest.importorskip("cairosvg", reason="no cairosvg to make a PDF", exc_type=(ImportError, OSError))
    report.save(tmp_path / "net.pdf")
    # Two files have different dates, so only their beginning is compared.
    assert (tmp_path / "net.pdf").read_bytes()[:4] == (report.to_pdf() or b"")[:4] == b"%PDF"
    shares = '<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="90" height="30"><style>.chart .share{stroke:#fff;stroke-width:13px}</style><text class="share" y="20">99%</text></svg>'
    outlined, plain = cairosvg.svg2pdf(bytestring=shares.encode()), as_pdf(shares)
    assert len(plain) < len(outlined)  # without the outline that would cover the text


def test_without_cairo_the_error_says_what_to_install(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(FxflopsError, match="pip install cairosvg"):
        report.to_pdf()


def test_without_resvg_the_error_says_what_to_install(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(FxflopsError, match="pip install resvg-py"):
        report.to_png()


def test_charts_are_pictures_too(report: Report) -> None:
    counted = count(nn.Linear(8, 8), torch.ones(4, 8))
    # 4 x (8 x 8 + 8) bytes of parameters, and 4 x 4 x 8 each for the input and the output
    assert "peak 544 B" in str(counted.to_svg(chart="memory"))
    predicted = str(counted.to_svg(chart="roofline", device="H100"))
    assert "FLOP/s, at most on H100 SXM" in predicted
    assert counted.provenance in predicted
    with pytest.raises(
        InputError,
        match="no roofline: nothing was timed; pass a device to predict a roofline: chart='roofline', device='H100'",
    ):
        counted.to_svg(chart="roofline")
    with pytest.raises(
        InputError, match="unknown chart 'pie'; expected one of 'graph', 'modules', 'memory', 'roofline'"
    ):
        report.to_svg(chart="pie")
    with pytest.raises(InputError, match="by='time': this run did not measure"):
        counted.to_svg(chart="modules", by="time")
    with pytest.raises(
        InputError, match="by='memory' is not possible for chart='modules'; expected one of 'flops', 'macs', 'time'"
    ):
        report.to_svg(chart="modules", by="memory")
    assert "Sequential · time" not in str(report.to_svg(chart="modules"))
    assert " · time " in str(report.to_svg(chart="modules", by="time"))


def test_a_run_without_a_graph_says_what_makes_one() -> None:
    with pytest.raises(InputError, match=r"analyze\(model, args, repeats=0\)"):
        count(nn.Linear(8, 8), torch.ones(4, 8)).to_svg(chart="graph")


def test_the_modules_are_drawn_unless_another_chart_is_asked_for(report: Report) -> None:
    counted = count(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(4, 8))
    for each in (counted, report):
        assert each.to_svg() == each.to_svg(chart="modules")
