"""What a run hands to other threads outside of modules is counted like its own work."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxflops

X = torch.randn(8, 16)
MACS = 8 * 16 * 16
"""The MACs of one product with the weight."""
EARLIER, EARLIER_TOO = ThreadPoolExecutor(2), ThreadPool(2)
atexit.register(EARLIER_TOO.terminate)
Job = Callable[[Tensor], Tensor]


def in_turn(job: Job, given: list[Tensor]) -> list[Tensor]:
    return [job(each) for each in given]


def executor(job: Job, given: list[Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(job, given)]


def submitted(job: Job, given: list[Tensor]) -> list[Tensor]:
    return [task.result() for task in [EARLIER.submit(job, each) for each in given]]


def pool_of_threads(job: Job, given: list[Tensor]) -> list[Tensor]:
    with ThreadPool(2) as pool:
        return [*pool.imap(job, given)]


def applied(job: Job, given: list[Tensor]) -> list[Tensor]:
    return [task.get() for task in [EARLIER_TOO.apply_async(job, (each,)) for each in given]]


def threads(job: Job, given: list[Tensor]) -> list[Tensor]:
    out: list[Any] = [None] * len(given)

    def run(i: int) -> None:
        out[i] = job(given[i])

    started = [threading.Thread(target=run, args=(i,)) for i in range(len(given))]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return out


class Subclass(threading.Thread):
    def __init__(self, job: Job, given: Tensor) -> None:
        super().__init__()
        self.job, self.given = job, given

    def run(self) -> None:
        self.given = self.job(self.given)


def subclasses(job: Job, given: list[Tensor]) -> list[Tensor]:
    made = [Subclass(job, each) for each in given]
    for each in made:
        each.start()
    for each in made:
        each.join()
    return [each.given for each in made]


def coroutines(job: Job, given: list[Tensor]) -> list[Tensor]:
    async def gathered() -> list[Tensor]:
        return await asyncio.gather(*(asyncio.to_thread(job, each) for each in given))

    return asyncio.run(gathered())


def nested(job: Job, given: list[Tensor]) -> list[Tensor]:
    """A task that passes its work to another pool."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: executor(job, given)).result()


WAYS: tuple[Callable[[Job, list[Tensor]], list[Tensor]], ...] = (
    executor, submitted, pool_of_threads, applied, threads, subclasses, coroutines, nested,
    lambda job, given: EARLIER_TOO.map(job, given), lambda job, given: EARLIER_TOO.starmap(job, [(x,) for x in given]),
)  # fmt: skip


class Model(nn.Module):
    def __init__(self, way: Callable[[Job, list[Tensor]], list[Tensor]], calls_module: bool = False) -> None:
        super().__init__()
        self.layer, self.way, self.calls_module = nn.Linear(16, 16, bias=False), way, calls_module

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(x)
        job = self.layer if self.calls_module else lambda each: F.linear(F.relu(each), self.layer.weight).exp()
        one, other = self.way(job, [first, first * 2])
        return self.layer(one + other)


def profiled(model: nn.Module, x: Tensor) -> fxflops.Report:
    with fxflops.profile(model) as p:
        model(x)
    return p.report


RUNS: dict[str, Callable[..., fxflops.Report]] = {
    "count": fxflops.count,
    "backward": partial(fxflops.count, backward=True),
    "analyze": partial(fxflops.analyze, repeats=0),
    "profile": profiled,
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calls_module", [False, True], ids=["functions", "modules"])
def test_functions_and_modules_in_threads_are_counted(calls_module: bool, way: Any, run: str) -> None:
    methods = ThreadPoolExecutor.submit, threading.Thread.start, dict(vars(ThreadPool))
    model, plain = Model(way, calls_module), Model(in_turn, calls_module)
    model(X)  # start the threads of the pools
    report, wanted = RUNS[run](model, X), RUNS[run](plain, X)
    assert report.complete
    assert report.total_macs == 4 * MACS
    assert report.total_flops == wanted.total_flops
    assert report.total_backward_flops == wanted.total_backward_flops
    found, expected = (
        {path: row.total._replace(seconds=None) for path, row in each.by_module().items()} for each in (report, wanted)
    )
    assert found == expected
    assert methods == (ThreadPoolExecutor.submit, threading.Thread.start, dict(vars(ThreadPool)))
    modes = [EARLIER.submit(torch.overrides._len_torch_function_stack).result() for _ in range(4)]
    assert modes == [0] * 4


def test_a_thread_that_outlives_the_run_computes_on() -> None:
    go, results = threading.Event(), list[Tensor]()

    class Starts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.thread = threading.Thread(target=lambda: go.wait(20) and results.append(F.relu(X) @ X.T))
            self.thread.start()
            return x @ x.T

    model = Starts()
    report = fxflops.count(model, X)
    assert report.total_macs == 8 * 16 * 8
    assert report.complete
    [thread] = [each for each in threading.enumerate() if each is not threading.current_thread() and _is_of(each)]
    assert "run" not in vars(thread)
    go.set()
    thread.join()
    assert torch.equal(results[0], F.relu(X) @ X.T)


def _is_of(thread: threading.Thread) -> bool:
    return __name__ in str(getattr(getattr(thread, "_target", None), "__module__", ""))


def test_tasks_of_other_threads_stay_as_they_are() -> None:
    """While one thread counts, another one uses a pool. Its work must not be counted."""
    inside, done, results = threading.Event(), threading.Event(), list[Tensor]()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            done.wait(20)
            return x @ x.T

    def beside() -> None:
        inside.wait(20)
        results.extend(submitted(lambda x: x @ x.T, [X, X]) + applied(F.relu, [X]) + threads(F.relu, [X]))
        done.set()

    other = threading.Thread(target=beside)
    other.start()
    report = fxflops.count(Waits(), X)
    other.join()
    assert report.total_macs == 8 * 16 * 8
    assert all(
        torch.equal(found, y) for found, y in zip(results, [X @ X.T, X @ X.T, F.relu(X), F.relu(X)], strict=True)
    )


def test_what_a_task_raises_reaches_the_model() -> None:
    class Catches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(RuntimeError, match="shapes"):
                submitted(lambda each: each @ each, [x])
            return submitted(lambda each: each @ each.T, [x])[0]

    report = fxflops.count(Catches(), X)
    assert (report.total_macs, report.complete) == (8 * 16 * 8, True)
