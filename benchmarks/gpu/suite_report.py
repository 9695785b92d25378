"""A pytest plugin that writes each result at once, as a line of JSON, so that a killed run keeps its results.

Use it with ``-p benchmarks.gpu.suite_report``, and the file's path in the environment variable SUITE_REPORT.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

LAST_LINES = 12


def pytest_configure(config: pytest.Config) -> None:
    # An xdist worker sends its reports to the main process, which writes them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(os.environ["SUITE_REPORT"]))


class Writer:
    """Writes the outcome of each test, the files that cannot be collected, and the tests that were collected."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, **row: Any) -> None:
        with open(self.path, "a", encoding="utf8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(test=report.nodeid, outcome="not collected", lines=last_lines(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # Under xdist only the workers collect tests, so this list is empty here.
        for item in session.items:
            self.write(test=item.nodeid, outcome="collected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A passing test has one row, from its call. Setup and teardown get a row only if they fail or skip.
        if report.when == "call" or report.outcome != "passed":
            self.write(
                test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), lines=last_lines(report)
            )


def last_lines(report: pytest.CollectReport | pytest.TestReport) -> list[str]:
    """Return the last lines that pytest would print for a failure, or the reason of a skip; an empty list if the test passed."""
    if report.outcome == "passed":
        return []
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skip
        return [str(report.longrepr[2])]
    return report.longreprtext.splitlines()[-LAST_LINES:]
