"""Run the tests marked ``cuda`` with pytest. The table shows passed, failed and skipped by file, and the last lines of each failure.

Only files that mention the mark are collected: collecting the others would take most of the time. pytest's output is in
``suite.pytest.log``. Each outcome is written to ``suite.tests.jsonl`` at once. With ``--stand-in``, the tests of the first files
are collected but not run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Case, Row, markdown

TITLE = "The tests marked cuda"
NEEDS = ("pytest", "xdist", "hypothesis")
ROOT = Path(__file__).parents[2]
MARKS = ("mark.cuda", "tests.devices import", "device: str")
WORKERS = 8
FEW_FILES = 3
"""The number of files whose tests the stand-in collects: importing all files would take most of its time."""
FORWARDS = 400
"""About this many forwards in sequence take as long as the tests: some 275 tests in all workers, and the start of the workers."""
SPARE = 4.0
"""Seconds reserved to read the results after pytest has been stopped."""
OUTCOMES = ("passed", "failed", "skipped", "collected")


def marked_files(marks: Iterable[str]) -> list[str]:
    """Return the paths in the repository of the test files that contain one of these marks."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [
        str(file.relative_to(ROOT)) for file in files if any(mark in file.read_text(encoding="utf8") for mark in marks)
    ]


def command(stand_in: bool) -> list[str]:
    """Return the command that runs the tests."""
    options = "-m cuda --continue-on-collection-errors -p benchmarks.gpu.suite_report -p no:cacheprovider".split()
    # In this project's tests a warning is an error. pytest-benchmark warns under xdist, and torch's import warns about pynvml.
    options += ["-p", "no:benchmark", "-W", "ignore:The pynvml package is deprecated:FutureWarning"]
    options += ["--collect-only", "-q"] if stand_in else ["-n", str(WORKERS), "-v", "-rfE", "--durations=10"]
    files = marked_files(MARKS[:2] if stand_in else MARKS)
    return [sys.executable, "-m", "pytest", *options, *(files[:FEW_FILES] if stand_in else files)]


def run_tests(bench: Bench) -> Row:
    """Run pytest until it ends or the time is over. Return how it ended, and the result of each test."""
    outcomes = bench.out / "suite.tests.jsonl"
    outcomes.unlink(missing_ok=True)
    environment = {**os.environ, "SUITE_REPORT": str(outcomes), "PYTHONPATH": str(ROOT)}
    log = bench.out / "suite.pytest.log"
    with log.open("w", encoding="utf8") as file:
        # pytest stays in the part's session, so that it is killed with the part. Its workers exit when they lose contact with it.
        child = subprocess.Popen(command(bench.stand_in), cwd=ROOT, env=environment, stdout=file, stderr=file)
        try:
            status: int | None = child.wait(max(bench.left - SPARE, 1))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    lines = outcomes.read_text(encoding="utf8").splitlines() if outcomes.exists() else []
    results = [json.loads(line) for line in lines]
    if not results:
        raise RuntimeError(
            f"pytest ended with status {status} before any test: {log.read_text(encoding='utf8')[-1000:]}"
        )
    ended = "stopped: its time was over" if status is None else f"pytest ended with status {status}"
    return {"ended": ended, "results": results, "over": status is None}


def cases(bench: Bench) -> list[Case]:
    """Return a single case, one run of pytest: starting workers that open the device takes longer than most tests."""
    name = "pytest --collect-only -m cuda" if bench.stand_in else "pytest -m cuda"
    return [Case(name, partial(run_tests, bench), FORWARDS)]


def table(rows: list[Row]) -> list[str]:
    """Return the results by file, then the uncollected files, failures and skipped tests with their last lines."""
    lines = []
    for row in rows:
        results = row["results"]
        by_file: dict[str, list[dict[str, Any]]] = {}
        for result in results:
            by_file.setdefault(result["test"].partition("::")[0], []).append(result)
        sums = [[count_of(results, outcome) for outcome in OUTCOMES]]
        cells = [
            [file, *(count_of(tests, outcome) for outcome in OUTCOMES), seconds_of(tests)]
            for file, tests in sorted(by_file.items())
        ]
        lines += [f"{row['case']}: {row['ended']}. The seconds are those of all workers together.", ""]
        lines += markdown(["file", *OUTCOMES, "seconds"], [*cells, ["all", *sums[0], seconds_of(results)]])
        lines += details("Files that could not be collected", results, "not collected")
        lines += details("Tests that failed", results, "failed")
        lines += details("Tests that were skipped", results, "skipped")
    return lines


def count_of(results: list[dict[str, Any]], outcome: str) -> int:
    return len({result["test"] for result in results if result["outcome"] == outcome})


def seconds_of(results: list[dict[str, Any]]) -> float:
    return float(sum(result.get("seconds", 0.0) for result in results))


def details(title: str, results: list[dict[str, Any]], outcome: str) -> list[str]:
    """Return a section with the tests that have this outcome, each with its last lines. Return an empty list if no test has it."""
    chosen = [result for result in results if result["outcome"] == outcome]
    lines = ["", f"## {title}", ""] if chosen else []
    # Several workers may report the same uncollected file: list it once.
    for test, last in {result["test"]: result["lines"] for result in chosen}.items():
        lines += [f"- {test}", "", *(f"      {line}" for line in last), ""]
    return lines
