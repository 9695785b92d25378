"""The lines of user code that take a loop's time: in proportion, innermost first, and never a line of fxflops."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import fxflops
from fxflops.meters.code_lines import NOWHERE, _place

pytest.importorskip("pyinstrument")


def slow() -> None:
    time.sleep(0.12)


def quick() -> None:
    time.sleep(0.04)


@pytest.mark.parametrize("detail", ["operations", "steps"])
def test_time_is_at_the_innermost_line_of_the_users_code(detail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    model = nn.Linear(4, 4)
    with fxflops.profile(model, detail=detail, lines=True) as p:
        slow()
        model(torch.ones(2, 4))
        quick()
    rows = p.report.by_line().to_dicts()
    seconds = {row["function"]: row["seconds"] for row in rows}
    assert [row["function"] for row in rows[:2]] == ["slow", "quick"]
    assert seconds["slow"] == pytest.approx(0.12, rel=0.3)
    assert rows[0]["line"] == f"{Path(__file__).relative_to(Path.cwd())}:{slow.__code__.co_firstlineno + 1}"
    assert not any("/fxflops/fxflops/" in row["line"] for row in rows)
    assert "\ncode " in str(p.report)
    assert str(fxflops.Report.from_dict(p.report.to_dict())) == str(p.report)


def test_the_profiler_of_the_process_is_as_before() -> None:
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError), fxflops.profile(nn.Linear(4, 4), lines=True):
        1 / 0  # noqa: B018
    assert sys.getprofile() is before


def test_a_block_shorter_than_a_sample_has_an_empty_table() -> None:
    with fxflops.profile(lines=True) as p:
        torch.ones(2)
    short = fxflops.Report.from_dict({**p.report.to_dict(), "lines": []})
    assert short.by_line().to_dicts() == []
    assert "too short to sample lines of code" in str(short)


def test_without_samples_there_is_no_table() -> None:
    with fxflops.profile(nn.Linear(4, 4)) as p:
        pass
    with pytest.raises(fxflops.InputError, match=r"not sampled: use .*lines=True\)"):
        p.report.by_line()


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (["main\0/home/me/train.py\0001\x01l31", "sleep\0<built-in>\0000"], ("/home/me/train.py:31", "main")),
        (["main\0/home/me/train.py\0001\x01l31", f"f\0{torch.__file__}\0001\x01l9"], ("/home/me/train.py:31", "main")),
        (["main\0/home/me/train.py\0001\x01l31", f"f\0{fxflops.__file__}\0001\x01l9"], None),
        ([f"f\0{torch.__file__}\0001\x01l9"], (NOWHERE, "")),
    ],
)
def test_the_place_of_a_sample(stack: list[str], place: tuple[str, str] | None) -> None:
    assert _place(stack) == place


def test_a_file_of_this_folder_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("train.py", f"{tmp_path}/train.py"):
        assert _place([f"main\0{file}\0001\x01l31"]) == ("train.py:31", "main")
