"""What a model runs in threads of its own is counted like the rest of its work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.trace.threads import Threads

X = torch.randn(5, 8)
LINEAR = 5 * 8 * 8
"""MACs of one layer on X."""

Way = Callable[[nn.Module, torch.Tensor], fxflops.Report]


def profiled(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    with fxflops.profile(model) as p:
        model(x)
    return p.report


WAYS: dict[str, Way] = {
    "count": fxflops.count,
    "backward": partial(fxflops.count, backward=True),
    "analyze": partial(fxflops.analyze, repeats=0, progress=False),
    "profile": profiled,
}


class Branches(nn.Module):
    """Four branches of two layers, run by a kept pool, by a new pool for each call, or without threads."""

    def __init__(self, workers: str) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(4)]
        self.branches, self.workers = nn.ModuleList(layers), workers
        self.pool = ThreadPoolExecutor(2) if workers == "kept" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run = lambda branch: branch(x)  # noqa: E731
        if self.workers == "none":
            return sum(map(run, self.branches))  # type: ignore[return-value]
        if self.pool is not None:
            return sum(self.pool.map(run, self.branches))  # type: ignore[return-value]
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(run, self.branches))  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", ["new", "kept"])
def test_branches_in_threads_are_counted(workers: str, way: str) -> None:
    model, plain = Branches(workers), Branches("none")
    model(X)  # start the threads of a kept pool
    report, wanted = WAYS[way](model, X), WAYS[way](plain, X)
    assert report.complete
    assert report.total_macs == 4 * 2 * LINEAR
    assert report.total_flops == wanted.total_flops
    if way == "profile":
        assert [*report.by_step()] == [*wanted.by_step()]
    assert report.total_backward_macs == wanted.total_backward_macs
    found, expected = (
        {p: row.total._replace(seconds=None) for p, row in r.by_module().items()} for r in (report, wanted)
    )
    assert found == expected
    assert all("forward" not in vars(module) and not module._forward_hooks for module in model.modules())
    if model.pool is not None:
        model.pool.shutdown()


def test_a_thread_of_a_pool_is_left_as_it_was() -> None:
    model = Branches("kept")
    fxflops.count(model, X)
    assert model.pool is not None
    modes = model.pool.submit(torch.overrides._get_current_function_mode_stack).result()
    assert modes == []
    assert torch.equal(model(X), sum(branch(X) for branch in model.branches))
    model.pool.shutdown()


def test_who_else_calls_a_module_makes_the_report_incomplete() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    began, ended = threading.Event(), threading.Event()

    def serve() -> None:
        began.wait(20)
        try:
            for _ in range(2):
                model[1](torch.randn(2, 8))
        finally:
            ended.set()

    server = threading.Thread(target=serve)
    server.start()
    with fxflops.profile(model) as p:
        model(X)
        began.set()
        ended.wait()
    server.join()
    assert p.report.total_macs == 2 * LINEAR
    [missing] = p.report.missing
    assert (missing.op, missing.path, missing.calls) == ("a call by a thread that does not belong to this run", "1", 2)
    assert "def " not in p.report.recipe()  # there is no formula to write


class Raises(nn.Module):
    """A layer raises in a thread, and the model continues."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            failed = pool.submit(self.second, x).exception()
            assert failed is not None
            result: torch.Tensor = pool.submit(self.first, x).result()
            return result


@pytest.mark.parametrize("way", ["count", "profile"])
def test_a_layer_that_raises_in_a_thread(way: str) -> None:
    report = WAYS[way](Raises(), X)
    assert report.total_macs == LINEAR
    assert report.by_module()["first"].total.macs == LINEAR


class Again(nn.Module):
    """A layer in a thread, inside a checkpointed block."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = Inner(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return result


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.layer, x).result().exp()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("run", [fxflops.count, partial(fxflops.analyze, repeats=0, progress=False)])
def test_a_thread_of_what_is_computed_again_is_no_forward(run: Any, reentrant: bool) -> None:
    report = run(Again(reentrant), X.clone().requires_grad_(), backward=True)
    assert report.total_macs == LINEAR
    assert report.total_backward_macs == 2 * LINEAR
    assert report.total_recompute_flops == report.total_flops


class Swallows(nn.Module):
    """Runs a layer in a thread that catches an error of meta and then does something else."""

    def __init__(self) -> None:
        super().__init__()
        self.choosing = Choosing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            result: torch.Tensor = pool.submit(self.choosing, x).result()
            return result


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            times = 2 if x.abs().sum().item() > 0 else 1
        except Exception:
            times = 0
        for _ in range(times):
            x = self.layer(x)
        return x


@pytest.mark.parametrize("way", ["count", "analyze", "profile"])
def test_an_error_of_metas_that_a_thread_swallows(way: str) -> None:
    assert WAYS[way](Swallows(), X).total_macs == 2 * LINEAR


class Clips(nn.Linear):
    """Writes to its weight, as binarized layers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Clips(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            result: torch.Tensor = pool.submit(self.layer, x).result()
            return result


@pytest.mark.parametrize("way", ["count", "analyze"])
def test_what_a_thread_writes_to_is_put_back(way: str) -> None:
    model = Clipped()
    before = model.layer.weight.clone()
    assert WAYS[way](model, X).total_macs == LINEAR
    assert torch.equal(model.layer.weight, before)


def test_an_observer_stays_whole_while_a_thread_is_in_one_of_its_hooks() -> None:
    threads, ended = Threads(), list[str]()
    first = object()
    with threads.visiting(first) as host:
        assert host is first
        threads.close(lambda: ended.append("ended"))
        assert not ended
        with threads.visiting(first) as late:
            assert late is None
        assert not ended
    assert ended == ["ended"]
