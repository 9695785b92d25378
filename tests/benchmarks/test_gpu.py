"""The GPU run on a stand-in: every part at tiny sizes, time limits that are kept, and runs that resume where they stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.allocator import Event
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import memory
from benchmarks.gpu.bench import Bench, run_part, saved_rows

from . import unruly_part

ROOT = Path(__file__).parents[2]
UNRULY = "tests.benchmarks.unruly_part"


@pytest.mark.parametrize("name", gpu.SHARES)
def test_every_part_runs_with_the_stand_in(name: str, tmp_path: Path) -> None:
    part = gpu.part_named(name)
    threads = torch.get_num_threads()
    bench = Bench(tmp_path, seconds=300.0, stand_in=True)
    try:
        ended = run_part(part, name, bench)
    finally:
        bench.close()
        torch.set_num_threads(threads)
    rows = saved_rows(tmp_path / f"{name}.jsonl")
    assert [row["error"] for row in rows if "error" in row] == []
    assert rows
    assert ended == f"{len(rows)} case{'s' * (len(rows) != 1)}"
    text = (tmp_path / f"{name}.md").read_text(encoding="utf8")
    assert text.startswith(f"# {part.TITLE}\n\na stand-in on ")
    assert f"torch {torch.__version__}" in text
    assert "\n| " in text


def test_the_limits_add_up() -> None:
    assert sum(gpu.limit(name, 9.0) for name in gpu.SHARES) == pytest.approx(540.0)


def test_a_part_that_hangs_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    """Its finished rows are kept, its log shows where it hung, and the processes it started are gone."""
    start = time.monotonic()
    ended = gpu.run_in_process(UNRULY, tmp_path, 14.0, stand_in=True)
    assert ended == "stopped after 14 s"
    assert time.monotonic() - start < 17
    assert [row["case"] for row in saved_rows(tmp_path / f"{UNRULY}.jsonl")] == ["good", "bad"]
    assert "| good | 1.23 |" in (tmp_path / f"{UNRULY}.md").read_text(encoding="utf8")
    assert "in endless" in (tmp_path / f"{UNRULY}.log").read_text(encoding="utf8")
    assert ended_process(int((tmp_path / "pid of its child").read_text()))


def ended_process(pid: int) -> bool:
    """Wait a little for a process to end; return whether it did."""
    end = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.1)
    return not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended and is only waiting to be collected.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_case_that_raised_runs_again_and_the_others_do_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path, seconds=0.5, stand_in=True)
    try:
        assert run_part(unruly_part, "unruly", bench) == "2 cases, 1 raised"
        text = (tmp_path / "unruly.md").read_text(encoding="utf8")
        assert "- bad: ValueError: not | the first time" in text
        assert "ValueError: not | the first time" in (tmp_path / "unruly.errors.txt").read_text(encoding="utf8")
        good = saved_rows(tmp_path / "unruly.jsonl")[0]
        assert run_part(unruly_part, "unruly", bench) == "2 cases"
    finally:
        bench.close()
    rows = saved_rows(tmp_path / "unruly.jsonl")
    assert [row["case"] for row in rows] == ["good", "bad"]
    assert rows[0] == good
    assert "| bad | - |" in (tmp_path / "unruly.md").read_text(encoding="utf8")


def test_time_that_is_over_leaves_the_other_cases_for_the_next_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, seconds=-1.0, stand_in=True)
    try:
        assert run_part(unruly_part, "unruly", bench) == "0 of 2 cases, the time was over"
    finally:
        bench.close()


def test_a_part_that_cannot_begin_leaves_its_traceback_and_the_others_go_on(tmp_path: Path) -> None:
    ended = gpu.run_in_process("tests.benchmarks.no_such_part", tmp_path, 60.0, stand_in=True)
    assert ended.startswith("failed with exit status 1")
    assert "No module named" in (tmp_path / "tests.benchmarks.no_such_part.errors.txt").read_text(encoding="utf8")


def test_parts_that_are_done_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    answers = {"counts": ["failed with exit status 1: ...", "3 cases"], "times": ["2 cases"], "memory": ["1 of 2 cases, the time was over", "2 cases, 1 raised"]}  # fmt: skip

    def run(name: str, *given: object) -> str:
        ran.append(name)
        return answers[name].pop(0)

    monkeypatch.setattr(gpu, "run_in_process", run)
    for _ in range(2):
        assert gpu.run_all([*answers], tmp_path, 9.0, stand_in=True, device="a card") == 1
    assert ran == ["counts", "times", "memory", "counts", "memory"]
    parts = json.loads((tmp_path / "summary.json").read_text())["parts"]
    assert {name: row["done"] for name, row in parts.items()} == {
        "counts": True,
        "times": True,
        "memory": False,
    }
    assert "| memory | 2 cases, 1 raised |" in (tmp_path / "summary.md").read_text(encoding="utf8")
    printed = capsys.readouterr().out
    assert "counts: 3 cases" in printed
    assert "times: done before" in printed
    with pytest.raises(
        gpu.OtherDeviceError, match="has the results of a card, not of another card: give another --out"
    ):
        gpu.run_all([*answers], tmp_path, 9.0, stand_in=False, device="another card")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_run_ends_the_part_and_it_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """The child process starts with neither signal ignored."""
    begin = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from benchmarks.gpu import __main__ as m;"
        f"m.SHARES = {{'{UNRULY}': 1.0}}; sys.argv = ['gpu', '--out', {str(tmp_path)!r}, '--stand-in', '--parts', '{UNRULY}'];"
        "sys.exit(m.main())"
    )
    process = subprocess.Popen([sys.executable, "-c", begin], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = tmp_path / "pid of its child"
    end = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in printed
    assert "the same command goes on from here" in printed
    assert "| interrupted |" in (tmp_path / "summary.md").read_text(encoding="utf8")
    assert ended_process(int(pid.read_text()))


def test_needs_lists_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.needs([UNRULY]) == ["no_such_package"]


def test_the_plan_has_an_estimate_for_each_part() -> None:
    """The plan is made without a GPU and without running a model."""
    *_, total = gpu.plan([*gpu.SHARES], 9.0)
    _, limit, cases, forwards, estimate = [cell.strip() for cell in total.strip("|").split("|")]
    assert limit == "540"
    assert int(cases) > 100
    assert int(forwards) > int(cases)
    assert 0 < int(estimate) < 900


def test_a_wrong_name_is_a_message() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", "x", "--parts", "counts,tme"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "no part named tme; the parts are suite, counts" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "x", "--minutes", "0.1"], "--minutes 0.1 gives a part 0 s, which is less than it takes to start"),
        (["--stand-in"], "give --out FOLDER"),
        (["--out", "x"], "torch finds no CUDA device here; --stand-in runs everything on the CPU"),
    ],
)
def test_what_cannot_be_run_is_a_message(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *options])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert said in capsys.readouterr().err


def test_a_workspace_is_left_out_of_the_traces_peak() -> None:
    """100 before the step. In the step 50 that stay, a workspace of 30, and 10 after the workspace is freed."""
    entries = [
        {"action": "alloc", "addr": 1, "size": 100},
        {"action": "snapshot", "size": 100},
        {"action": "alloc", "addr": 2, "size": 50},
        {"action": "alloc", "addr": 3, "size": 30},
        {"action": "free_requested", "addr": 3, "size": 30},
        {"action": "free_completed", "addr": 3, "size": 30},
        {"action": "alloc", "addr": 3, "size": 10},
    ]
    events = [
        Event(2, 64, (1,), "aten::conv"),
        Event(3, 32, (1,), "aten::conv"),
        Event(3, -32, (1,)),
        Event(3, 16, (2,), "aten::add"),
    ]
    marks = {"first step": 1, "second step": len(entries)}
    peak, alive = memory.peak_of(entries, marks)
    assert (peak, alive) == (180, [0, 1])
    found = memory.without_workspaces(entries, marks, events, peak)
    assert found == {"held": 160, "workspace": 20, "workspace of": "aten::conv"}
