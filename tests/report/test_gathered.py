"""The report over all processes as a table: exports only have numbers; the screen also has sums and shares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import count
from fxflops.counting.collectives import Collective
from fxflops.report.gathered import GatheredReport, RankRow, WorkRow

SUM = Collective("", "backward", "all_reduce", "tp", 2, 3, 64, 64, 0.5)
ORIGIN = "fxflops 9 · torch 9 · cpu"


def two() -> GatheredReport:
    ranks = RankRow(100, 200, 10, 0, 4096, 64, 64, 1.0), RankRow(300, 600, 10, 0, 2048, 64, 64, None)
    work = {"mlp": WorkRow(800, 400, 400), "": WorkRow(8, 8, 0)}
    return GatheredReport("Net", ranks, ((SUM,), (SUM,)), True, work, provenance=ORIGIN)


def test_exports_have_numbers_alone() -> None:
    found = two()
    rows = json.loads(str(found.to_json()))
    assert [row.pop("provenance") for row in rows] == [ORIGIN] * 2
    assert rows == [
        {"rank": 0, "macs": 100, "flops": 200, "params": 10, "sharded": 0, "memory": 4096, "sent": 64, "received": 64, "seconds": 1.0},
        {"rank": 1, "macs": 300, "flops": 600, "params": 10, "sharded": 0, "memory": 2048, "sent": 64, "received": 64, "seconds": None},
    ]  # fmt: skip
    assert str(found.to_csv()).splitlines()[1] == f"0,100,200,10,0,4096,64,64,1.0,{ORIGIN}"
    assert [*found.select("rank,macs", sort_by="macs", top=1)] == [(1, 300)]
    assert f"% {ORIGIN}" in str(found.to_latex())
    assert str(found.to_markdown()).count("\n| ") == 3  # the line of dashes and two ranks


def test_a_dataframe_keeps_the_dtypes_of_its_columns() -> None:
    pytest.importorskip("pandas", reason="no pandas")
    frame = two().to_dataframe()
    assert (frame["flops"].dtype, frame["memory"].sum(), frame.attrs["provenance"]) == ("int64", 6144, ORIGIN)


def test_it_shows_itself_with_sums_and_shares() -> None:
    found = two()
    text = repr(found)
    assert text == str(found)
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["Net", "on", "2", "processes"]
    # The mean of 100 and 300 MACs is 200, the mean of the peak bytes is 3 KiB. One rank's seconds are unknown.
    assert ["max/mean", "1.50x", "1.50x", "1.00x", "1.33x", "1.00x", "1.00x", "-"] in lines
    assert ["sum", "400", "800", "20", "6.00", "KiB", "128", "B", "128", "B", "-"] in lines
    assert "repeated work: 400 in mlp" in text
    html = found._repr_html_()
    assert html.count("<table") == 2
    assert "<p>Net on 2 processes</p>" in html
    assert ">1.33x</td>" in html


def test_many_ranks_leave_room_for_their_sums() -> None:
    text = str(GatheredReport("Net", (RankRow(1, 2, 3, 0, 4, 0, 0, 1.0),) * 80, ((),) * 80, True))
    assert "first 57 of 80 ranks" in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("sum")] == [["sum", "80", "160"]]


def test_its_page_has_the_ranks_with_their_memory_and_what_they_repeat(tmp_path: Path) -> None:
    held = {"params": 2048, "inputs": 0, "activations": 2048}, {"params": 2048, "inputs": 0}
    found = replace(two(), memory=held)
    assert [row[-2:] for row in found.table] == [(2048, 2048), (2048, 0)]
    found.to_html(tmp_path / "ranks.html", title="A night")
    text = (tmp_path / "ranks.html").read_text(encoding="utf8")
    assert text == found.to_html(title="A night")
    assert "<h1>A night</h1>" in text
    assert "repeated: 400 FLOPs, most in mlp" in text
    assert '<p class="about">Net on 2 processes</p>' in text
    assert ORIGIN in text
    assert "repeated: no work" in str(replace(found, modules={"": WorkRow(8, 8, 0)}).to_html())


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, "checkpoint_wrapper"])
def test_modules_are_compared_without_what_wraps_them(wrap: Any) -> None:
    if wrap == "checkpoint_wrapper":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap
    whole = count(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.ones(2, 8))
    found = count(nn.Sequential(wrap(nn.Linear(8, 4)), nn.ReLU()), torch.ones(2, 8)).gather(whole=whole)
    layer, relu = 2 * 2 * 8 * 4, 2 * 4  # 8 multiplies, 7 adds and the bias for each of 2 x 4 outputs
    assert found.modules == {"0": (layer, layer, 0), "1": (relu, relu, 0)}
    assert "repeated work: none" in str(found)


def test_of_other_modules_it_is_not_known_what_is_repeated() -> None:
    other = count(nn.Sequential(nn.Linear(8, 4)), torch.ones(2, 8))
    found = count(nn.Linear(8, 4), torch.ones(2, 8)).gather(whole=other)
    said = "unknown: whole and the ranks have no module in common (whole: 0; ranks: (root))"
    assert f"repeated work: {said}" in str(found)
    assert f"repeated: {said}" in str(found.to_html())


def test_the_report_of_one_process_has_its_origin() -> None:
    report = count(nn.Linear(2, 3), torch.ones(1, 2))
    found = report.gather()
    assert found.provenance == report.provenance
    assert [row[:3] for row in found.table] == [(0, report.total_macs, report.total_flops)]
    assert report.provenance in str(found.to_csv())
    assert dict(found.memory[0]) == report.memory
