"""Timings by hand: which runs are warm-up, and what makes a time unsteady."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fxflops
from fxflops.counting import steps
from fxflops.meters import timing as module
from fxflops.meters.timing import OFTEN, WAITING, WIDE, Timing, Usage, timing, warm_up
from fxflops.notebook import TorchFLOPsByFX
from fxflops.report.report import Report
from fxflops.run.outcome import BlockFacts

STEADY = Timing(1e-3, 1e-3, 1e-3, 5)


@pytest.fixture(autouse=True)
def _as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the real thresholds, which are out of reach in other tests."""
    for name, value in {"WIDE": WIDE, "OFTEN": OFTEN, "WAITING": WAITING}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(steps, "TOO_FAR_APART", 1.5)


def ran(*seconds: float, processor: float = 1.0, interruptions: int | None = 0) -> list[Usage]:
    return [Usage(each, each * processor, interruptions) for each in seconds]


def test_steady_runs() -> None:
    runs = [0.1, 0.101, 0.099, 0.1, 0.102]
    found = timing(runs, ran(*runs, interruptions=1))  # five in half a second
    assert found == (0.1, 0.099, 0.102, 5, "")


def test_runs_that_differ() -> None:
    runs = [0.1, 0.1, 0.15, 0.2, 0.2]
    assert timing(runs, ran(*runs)).unsteady == "the runs differ by 67%"
    assert timing(runs).unsteady == "", "of a node's runs nothing is said"


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        ({"interruptions": 20}, "interrupted 200 times a second by other processes"),
        ({"processor": 0.5}, "the process waited 50% of the time"),
        ({"processor": 0.5, "interruptions": 20}, "interrupted 200 times a second by other processes"),
        ({"processor": 1.9}, ""),
        ({"interruptions": None}, ""),
    ],
)
def test_what_else_the_processor_did(usage: dict[str, float], said: str) -> None:
    assert timing([0.1] * 5, ran(*[0.1] * 5, **usage)).unsteady == said


def test_a_moment_tells_nothing() -> None:
    assert timing([1e-4] * 5, ran(*[1e-4] * 5, processor=0.2)).unsteady == ""


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        ([5, 1, 1, 1, 1, 1], 1),
        ([5, 2, 1, 1, 1, 1, 1], 2),
        ([5, 1, 1, 1, 1], 0),
        ([1, 1, 5, 1, 1, 1], 0),
        ([1.1, 1, 1, 1, 1, 1], 0),
    ],
    ids=["the first", "two", "too few are left", "a later one", "hardly slower"],
)
def test_warm_up(seconds: list[float], first: int) -> None:
    assert warm_up(seconds, 5) == first


def test_the_clocks_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Usage.now()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    used = Usage.now().since(begun)
    assert used.seconds >= 0.049
    assert used.processor >= 0.049
    monkeypatch.setattr(module, "resource", None)
    assert Usage.now().since(begun).interruptions is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="keeps two processes on one core")
def test_work_beside_it_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, {core})
            begun, end = Usage.now(), time.perf_counter() + 0.5
            while time.perf_counter() < end:
                pass
            used = Usage.now().since(begun)
        finally:
            other.kill()
            os.sched_setaffinity(0, before)
    assert used.interrupted or used.waited


def with_times(latency: Timing = STEADY, backward_latency: Timing | None = None, interrupted: str = "") -> Report:
    report = fxflops.analyze(nn.Linear(4, 4), torch.ones(1, 4), repeats=1)
    block = BlockFacts(interrupted=interrupted)
    run = replace(report._run, latency=latency, backward_latency=backward_latency, block=block)
    return Report(run, report._convention, report._registry, None)


def test_a_report_says_why_its_times_are_unsteady() -> None:
    assert with_times().unsteady == ""
    assert "unsteady" not in str(with_times())
    found = with_times(
        latency=Timing(1e-3, 1e-3, 2e-3, 5, "the runs differ by 60%"),
        backward_latency=Timing(1e-3, 1e-3, 1e-3, 5, "the process waited 50% of the time"),
    )
    assert found.unsteady == "forward: the runs differ by 60%; backward: the process waited 50% of the time"
    assert (
        "unsteady             forward: the runs differ by 60%; backward: the process waited 50% of the time; measure again"
        in str(found)
    )
    assert "unsteady: the runs differ by 60%" in found.to_html()
    alone = with_times(latency=Timing(1e-3, 1e-3, 2e-3, 5, "the runs differ by 60%"))
    assert alone.unsteady == "the runs differ by 60%"
    assert with_times(interrupted="other work").unsteady == "other work"


@pytest.mark.parametrize(
    ("latency", "nodes", "said"),
    [
        (0.06, 0.0625, ""),
        (0.06, 0.1, "the operations add up to 1.7x the time of the model"),
        (0.06, 0.03, "the operations add up to 0.5x the time of the model"),
        (0.002, 0.004, ""),
    ],
)
def test_nodes_and_model_take_about_the_same(latency: float, nodes: float, said: str) -> None:
    report = with_times(latency=Timing(latency, latency, latency, 5))
    whole = report.nodes[0]
    run = replace(report._run, nodes=(replace(whole, timing=Timing(nodes, nodes, nodes, 5)),))
    assert Report(run, report._convention, report._registry, None).unsteady == said


def test_the_marks_outlive_a_file(tmp_path: Path) -> None:
    report = with_times(latency=Timing(1e-3, 1e-3, 2e-3, 5, "the runs differ by 60%"), interrupted="other work")
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").unsteady == report.unsteady != ""


def test_the_printed_time_has_its_mark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TorchFLOPsByFX(nn.Linear(4, 4))
    counter.propagate(torch.ones(1, 4))
    monkeypatch.setattr(Report, "unsteady", "the runs differ by 60%")
    milliseconds = counter.print_total_time()
    assert capsys.readouterr().out == f"total_time = {milliseconds:.3f} ms  (unsteady: the runs differ by 60%)\n"
