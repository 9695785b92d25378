"""Progress where there is no terminal: few lines, and none for short work."""

from __future__ import annotations

import pytest

from fxflops.run.progress import _Lines


@pytest.mark.parametrize(("total", "of_total"), [(None, ""), (300, " of 300")])
def test_long_work_prints_a_line_each_time_that_its_duration_has_doubled(
    total: int | None, of_total: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    step = _Lines("counting", total, clock=lambda: now)
    for _ in range(90):
        now += 1
        step()
    seconds = 5, 10, 20, 40, 80
    assert capsys.readouterr().err.splitlines() == [f"counting: {n}{of_total} done after {n} s" for n in seconds]


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    step = _Lines("counting", 40, clock=lambda: now)
    for _ in range(40):
        now += 0.1
        step()
    assert capsys.readouterr().err == ""
