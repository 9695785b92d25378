"""Progress without a terminal: few lines, and no lines for short work."""

from __future__ import annotations

import pytest

from fxflops.run.progress import Counter


def test_long_work_prints_a_line_each_time_that_its_duration_has_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    counter = Counter("counting", clock=lambda: now)
    counter.started(30)
    for n in range(90):
        if n == 30:  # the first steps have shown that more steps are needed
            counter.started(60)
        now += 1
        counter.done()
    lines = [(5, 30), (10, 30), (20, 30), (40, 90), (80, 90)]
    assert capsys.readouterr().err.splitlines() == [f"counting: {n} of {total} done after {n} s" for n, total in lines]


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    counter = Counter("counting", clock=lambda: now)
    counter.started(40)
    for _ in range(40):
        now += 0.1
        counter.done()
    assert capsys.readouterr().err == ""
