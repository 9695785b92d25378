"""A report's files must show the same figures and the same warnings as its printed text.

The oracle is the printed text itself, and sums of the files' own columns.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops

IDS = torch.zeros(4, 16, dtype=torch.long)
LABELS = (
    "MACs",
    "training",
    "gradient",
    "opt step",
    "step",
    "in all",
    "params",
    "latency",
    "backward",
    "block",
    "step",
    "unsteady",
    "memory",
)
"""The first words of the printed lines that have figures."""


class Lookups(nn.Module):
    """Most of the parameters are in modules that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20000, 64), nn.Embedding(12000, 64)
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
        self.norm, self.act = nn.LayerNorm(64), nn.ReLU()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.body(self.words(ids) + self.places(ids))))


class Tied(nn.Module):
    """Two of the modules share their parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(50, 64), nn.Linear(64, 64), nn.Linear(64, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(ids)))


class Many(nn.Module):
    """More modules than the printed text has lines for."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 64)
        for number in range(12):
            self.add_module(f"part_{chr(97 + number)}", nn.Linear(64, 64 + 0 * number, bias=number % 2 == 0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for part in [*self.children()][1:]:
            x = part(x)
        return x


class Partly(nn.Module):
    """One of the calls has no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(50, 64), nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.body(self.words(ids))
        return torch.from_numpy(x.detach().numpy() * 2) + x


def trained() -> fxflops.Report:
    model = Lookups()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with fxflops.profile(model, optimizer=optimizer) as profiled:
        for _ in range(2):
            model(IDS).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return profiled.report


def unsteady(folder: Path) -> fxflops.Report:
    """Return a report of a timed run, with its times edited to look like those of a busy machine."""
    path = folder / "timed.json"
    fxflops.analyze(Lookups().eval(), IDS, repeats=2).save(path)
    data = json.loads(path.read_text())
    data["latency"] = {"median": 0.3662, "low": 0.31, "high": 0.9, "repeats": 7}
    data["interrupted"] = "other work interrupted it 80 times a second"
    path.write_text(json.dumps(data))
    return fxflops.Report.load(path)


REPORTS: dict[str, Callable[[Path], fxflops.Report]] = {
    "counted": lambda folder: fxflops.count(Lookups().eval(), IDS),
    "timed": lambda folder: fxflops.analyze(Lookups().eval(), IDS, repeats=2),
    "unsteady": unsteady,
    "timed with backward": lambda folder: fxflops.analyze(Lookups(), IDS, backward=True, repeats=2),
    "trained": lambda folder: trained(),
    "with an optimizer": lambda folder: fxflops.count(Lookups(), IDS, backward=True, optimizer=torch.optim.AdamW),
    "incomplete": lambda folder: fxflops.count(Partly().eval(), IDS),
    "a tool's": lambda folder: fxflops.count(Many().eval(), IDS, convention="thop"),
    "a tool's that does not see it": lambda folder: fxflops.count(
        torch.export.export(Lookups().eval(), (IDS,)).module(), IDS, convention="thop"
    ),
    "many": lambda folder: fxflops.analyze(Many().eval(), IDS, repeats=2),
    "tied": lambda folder: fxflops.count(Tied().eval(), IDS),
}


@pytest.fixture(params=REPORTS, scope="module")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fxflops.Report:
    torch.manual_seed(0)
    return REPORTS[request.param](tmp_path_factory.mktemp("reports"))


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d.,]*\d|\d", text))


def said(report: fxflops.Report) -> list[str]:
    """Return the printed lines that have figures and warnings, without the table of modules."""
    return [
        line for line in str(report).splitlines() if line.startswith((*LABELS, "by operator", "not counted", "2 steps"))
    ]


def rows_of(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_papers_have_the_figures_of_the_screen(report: fxflops.Report) -> None:
    lines = said(report)
    assert len(lines) > 2
    for text in (report.to_markdown(), report.to_latex()):
        assert set().union(*map(numbers, lines)) <= numbers(html.unescape(str(text)))


def test_papers_have_the_warnings_of_the_screen(report: fxflops.Report) -> None:
    for text in (str(report.to_markdown()), str(report.to_latex())):
        body = html.unescape(text).replace("\\", "")
        assert ("a lower bound" in body) == (not report.complete)
        assert all(f"not counted: {each.op} x{each.calls}" in body for each in report.missing)
        assert ("unsteady" in body) == ("unsteady" in str(report))
        assert all(reason in body for reason in report.unsteady.split("; "))


def test_a_paper_tells_the_latency_from_the_sum_of_operations(report: fxflops.Report) -> None:
    first = [row[0] for row in rows_of(str(report.to_markdown()))]
    assert any(name.startswith("latency") for name in first) == (report.latency is not None)
    if report.unsteady and report.latency is not None:
        assert "latency (unsteady)" in first


def test_the_rows_of_a_paper_add_up(report: fxflops.Report) -> None:
    table = report._as_paper()
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    total = next(row for row in rows if row["module"].startswith("total"))
    parts = [row for row in rows if row is not total and "latency" not in row["module"]]
    for key in ("macs", "flops", "params"):
        values = [row[key] for row in parts]
        if parts and None not in values and report.model != "Tied":
            assert sum(values) == total[key]
    assert all(row["params"] is not None for row in parts) or report.model == "Tied"


def test_csv_and_json_have_the_times_of_the_screen(report: fxflops.Report) -> None:
    rows = [*csv.DictReader(io.StringIO(str(report.to_csv())))]
    data = json.loads(str(report.to_json()))
    forward = [row for row in rows if row["phase"] in ("forward", "gradient")]
    assert sum(int(row["flops"] or 0) for row in forward) == report.total_flops == data["totals"]["total_flops"]
    assert sum(int(row["macs"] or 0) for row in forward) <= report.total_macs == data["totals"]["total_macs"]
    assert data["totals"]["latency"] == report.latency
    assert data["totals"]["unsteady"] == report.unsteady
    assert data["totals"]["complete"] == report.complete
    for row, of_json in zip(rows, json.loads(str(report.table.to_json())), strict=True):
        assert row.get("latency", "") == ("" if report.latency is None else str(report.latency))
        assert row.get("unsteady", "") == report.unsteady == of_json.get("unsteady", "")
        assert of_json.get("latency") == report.latency


def test_a_page_has_the_figures_of_the_screen(report: fxflops.Report) -> None:
    page: Any = report.to_html()
    text = html.unescape(re.sub(r"<[^>]*>", " ", page.replace("\\u003c", "<")))
    figures = [line.split()[1] for line in said(report) if line.startswith(("params", "memory", "latency"))]
    assert all(figure in text for figure in figures)
    assert all(reason in text for reason in report.unsteady.split("; "))
    assert all(each.op in text for each in report.missing)
