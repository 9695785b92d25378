"""A pytest plugin that writes each result as a line of JSON at once, so that a run that is killed leaves what it has.

``-p benchmarks.gpu.suite_report``, with the file's path in the environment variable SUITE_REPORT.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

LAST_LINES = 12


def pytest_configure(config: pytest.Config) -> None:
    # A worker of xdist sends its reports to the process that started it, which writes them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(os.environ["SUITE_REPORT"]))


class Writer:
    """Writes the outcome of each test, of each file that cannot be collected, and the tests that were collected."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, **row: Any) -> None:
        with open(self.path, "a", encoding="utf8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(test=report.nodeid, outcome="not collected", lines=last_lines(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # Under xdist the tests are collected by the workers alone, and here there are none.
        for item in session.items:
            self.write(test=item.nodeid, outcome="collected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Of a test that passes the call is its outcome; setup and teardown count where they fail or skip.
        if report.when == "call" or report.outcome != "passed":
            self.write(
                test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), lines=last_lines(report)
            )


def last_lines(report: pytest.CollectReport | pytest.TestReport) -> list[str]:
    """Return the end of what pytest would print for a failure, or why a test was skipped; nothing if it passed."""
    if report.outcome == "passed":
        return []
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skip
        return [str(report.longrepr[2])]
    return report.longreprtext.splitlines()[-LAST_LINES:]
