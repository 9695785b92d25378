"""The time a loop waits for its batches is shown separately, in the step that uses the batch."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader as torchs

import fxflops

PAUSE = 0.02


class Slow(Dataset[torch.Tensor]):
    def __init__(self, pause: float = PAUSE) -> None:
        self.pause = pause

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 5:
            raise ValueError("sample 5 is broken")
        time.sleep(self.pause)
        return torch.ones(4)


def profiled(in_loop: bool, detail: str = "operations", batches: int = 2, pause: float = PAUSE) -> fxflops.Report:
    model = nn.Linear(4, 4)
    with fxflops.profile(model, detail=detail) as p:
        for x in islice(DataLoader(Slow(pause), batch_size=2), batches):
            model(x).sum().backward()
            if in_loop:
                p.step()
    return p.report


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("detail", ["operations", "steps"])
def test_each_step_has_the_loading_of_its_own_batch(in_loop: bool, detail: str) -> None:
    report = profiled(in_loop, detail)
    times = report.step_times()
    assert [name for name, step in times.items() if step.loading] == ["step 1", "step 2"]
    for name in ("step 1", "step 2"):
        step = times[name]
        assert 2 * PAUSE <= step.loading < step.seconds
        assert step.seconds == pytest.approx(step.forward + step.backward + step.loading + step.between)
    assert report.block_time == pytest.approx(sum(step.seconds for step in times.values()))


def test_a_loop_that_waits_says_so_first() -> None:
    text = str(profiled(False, pause=10 * PAUSE))  # much longer than the first steps take on a busy machine
    conclusion, block = text.splitlines()[1], text[text.index("\nblock") :]
    assert conclusion.startswith("data loading ")
    assert "%, num_workers=0)" in conclusion
    assert "make it cheaper, and use many workers" in " ".join(block.split())


def test_a_batch_that_no_step_computes_with_is_outside() -> None:
    loader = iter(DataLoader(Slow(), batch_size=2))
    with fxflops.profile(nn.Linear(4, 4)) as p:
        next(loader)
    assert [*p.report.step_times()] == ["(outside)"]
    assert p.report.step_times()["(outside)"].loading >= 2 * PAUSE


def test_the_classes_have_their_methods_again_also_after_an_error() -> None:
    before = DataLoader.__iter__, torchs._BaseDataLoaderIter.__next__
    with pytest.raises(ValueError, match="sample 5 is broken"):
        profiled(False, batches=3)
    assert (DataLoader.__iter__, torchs._BaseDataLoaderIter.__next__) == before


def test_loading_in_another_thread_is_nobodys_waiting() -> None:
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(next(iter(DataLoader(Slow(), batch_size=2)))))
    with fxflops.profile(nn.Linear(4, 4)) as p:
        thread.start()
        thread.join()
    assert len(batches) == 1
    assert p.report.step_times()["(outside)"].loading == 0


def test_workers_are_named_and_a_saved_report_has_them() -> None:
    report = profiled(False)
    again = fxflops.Report.from_dict(report.to_dict())
    assert str(again) == str(report)
    assert "num_workers=0" in str(again)


def test_blocks_that_overlap_in_two_threads_restore_the_classes() -> None:
    before = DataLoader.__iter__, torchs._BaseDataLoaderIter.__next__
    first_is_on, second_is_on, first_has_ended = threading.Event(), threading.Event(), threading.Event()
    loadings: list[float] = []

    def first() -> None:
        with fxflops.profile(nn.Linear(4, 4)):
            first_is_on.set()
            second_is_on.wait(60)
        first_has_ended.set()

    def second() -> None:
        first_is_on.wait(60)
        with fxflops.profile(nn.Linear(4, 4)) as p:
            second_is_on.set()
            first_has_ended.wait(60)
            next(iter(DataLoader(Slow(), batch_size=2)))
        loadings.extend(step.loading for step in p.report.step_times().values())

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (DataLoader.__iter__, torchs._BaseDataLoaderIter.__next__) == before
    assert sum(loadings) >= 2 * PAUSE


def test_nested_blocks_both_have_the_loading() -> None:
    with fxflops.profile(nn.Linear(4, 4)) as outer, fxflops.profile(nn.Linear(4, 4)) as inner:
        next(iter(DataLoader(Slow(), batch_size=2)))
    for p in (outer, inner):
        assert p.report.step_times()["(outside)"].loading >= 2 * PAUSE
