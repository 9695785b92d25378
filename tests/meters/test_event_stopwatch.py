"""The times of a profiled block on a stand-in for an accelerator. Its stream takes as long as the test says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.meters import event_stopwatch
from fxflops.meters.accelerator import Accelerator
from fxflops.meters.event_stopwatch import EventStopwatch, Lapse, seconds_of, stopwatch_maker
from fxflops.meters.live_storages import LiveStorages
from fxflops.meters.stopwatch import Stopwatch

from ..standin import Clock, StandIn

INNER, OUTER, BACKWARD, STEP, LOADING = 3.0, 2.0, 7.0, 11.0, 13.0
LAUNCH = 0.5
X = torch.randn(2, 4)


@pytest.fixture
def clock(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Clock:
    standin.host = clock = Clock()
    monkeypatch.setattr(event_stopwatch, "time", SimpleNamespace(perf_counter=clock))
    return clock


class Kernel(torch.autograd.Function):
    """The identity, with a kernel that takes device time in both directions. Launching it takes host time in the forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, standin: StandIn) -> torch.Tensor:
        ctx.standin = standin
        standin.host.now += LAUNCH  # type: ignore[attr-defined]
        standin.work(INNER)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        ctx.standin.work(BACKWARD)
        return given[0] * 1, None


class Inner(nn.Module):
    def __init__(self, standin: StandIn) -> None:
        super().__init__()
        self.fc, self.standin = nn.Linear(4, 4), standin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Kernel.apply(self.fc(x), self.standin)


class Outer(nn.Module):
    def __init__(self, standin: StandIn) -> None:
        super().__init__()
        self.inner, self.standin = Inner(standin), standin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        self.standin.work(OUTER)
        return y


class SlowSGD(torch.optim.SGD):
    standin: StandIn

    def step(self, closure: Any = None) -> None:
        self.standin.work(STEP)
        super().step(closure)


@pytest.mark.parametrize("detail", ["operations", "modules"])
def test_a_loop_has_the_devices_times(detail: str, standin: StandIn, clock: Clock) -> None:
    """The host is far ahead, so launching takes no device time, except in the first call, for which the device waits."""
    model = Outer(standin)
    optimizer = SlowSGD(model.parameters(), lr=0.1)
    optimizer.standin = standin
    with fxflops.profile(model, optimizer=optimizer, detail=detail) as p:
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert standin.synchronized == 1
    times = p.report.step_times()
    assert list(times) == ["(outside)", "step 1", "step 2"]
    first, second = times["step 1"], times["step 2"]
    assert (first.forward, first.backward, first.optimizer) == (LAUNCH + INNER + OUTER, BACKWARD, STEP)
    assert (second.forward, second.backward, second.optimizer) == (INNER + OUTER, BACKWARD, STEP)
    assert p.report.block_time == standin.busy_until
    modules = p.report.by_module()
    assert modules["inner"].total.seconds == LAUNCH + 2 * INNER
    assert modules[""].own.seconds == 2 * OUTER
    assert clock.now == 2 * LAUNCH  # the host never waited inside the block


def test_where_the_device_waits_for_the_host_that_is_its_time(standin: StandIn, clock: Clock) -> None:
    model = Outer(standin)
    with fxflops.profile(model) as p:
        model(X)
        clock.now += LOADING
        model(X)
    times = p.report.step_times()
    assert times["step 1"].forward == LAUNCH + INNER + OUTER
    assert times["step 1"].between == LOADING - INNER - OUTER  # the device worked during the rest
    assert p.report.block_time == standin.busy_until == 2 * LAUNCH + LOADING + INNER + OUTER


def test_what_observing_takes_is_no_time_of_the_devices(
    standin: StandIn, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both where the device waits for the observer, and where it has work left."""
    add_all = LiveStorages.add_all
    spent = 0.0

    def slow(self: LiveStorages, *args: Any) -> None:
        nonlocal spent
        spent += 1.0
        clock.now += 1.0
        add_all(self, *args)

    model = Outer(standin)
    with fxflops.profile(model) as p:
        monkeypatch.setattr(LiveStorages, "add_all", slow)
        model(X)
        model(X)
        monkeypatch.setattr(LiveStorages, "add_all", add_all)
    assert spent > 2
    assert p.report.instrument_time == spent
    assert (p.report.block_time or 0.0) <= 2 * (LAUNCH + INNER + OUTER)
    assert p.report.by_module()[""].own.seconds == 2 * OUTER


def test_readings_add_up(standin: StandIn, clock: Clock) -> None:
    watch = EventStopwatch(Accelerator(standin.device))
    start = watch.now()
    standin.work(5.0)
    assert watch.stop()
    assert not watch.stop()
    standin.work(100.0)  # while the clock stands still
    middle = watch.now()
    watch.go()
    watch.go()
    standin.work(7.0)
    end = watch.now()
    both, none = 0.0, 0.0 + (end - end)
    both += middle - start
    both += end - middle
    assert both != both  # unknown until they are read
    assert standin.synchronized == 0
    assert [seconds_of(each) for each in (both, end - middle, middle - start, none)] == [12.0, 7.0, 5.0, 0.0]
    assert standin.synchronized == 1
    standin.work(1.0)
    assert seconds_of(watch.now() - end) == 1.0
    assert seconds_of(start - end) == 0.0  # not below 0, even for overlapping streams
    assert seconds_of(2.5) == 2.5
    assert isinstance(both + 0.0, Lapse)


def test_threads_have_clocks_of_their_own(standin: StandIn) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ThreadPoolExecutor(3) as pool:
                return torch.stack([*pool.map(lambda branch: branch(x), self.branches)])

    model = Branches()
    with fxflops.profile(model) as p:
        model(X)
    assert all((row.own.seconds or 0.0) >= 0.0 for row in p.report.by_module().values())
    assert {call.seconds is None for call in p.report.calls} == {False}
    assert not any(call.seconds != call.seconds for call in p.report.calls)  # nan


def test_the_clock_of_a_device(standin: StandIn) -> None:
    assert isinstance(stopwatch_maker(torch.device("cpu"))(), EventStopwatch)
    assert stopwatch_maker(torch.device("meta")) is Stopwatch


def test_what_is_not_timed_records_no_events(standin: StandIn) -> None:
    with fxflops.profile(nn.Linear(4, 4, device="meta")) as p:
        p._model(X.to("meta"))
    assert p.report.block_time is None
    assert standin.events == 0


CAPTURED = "captured into a graph: counted once and not timed; replays of the graph are not counted"


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
def test_what_is_captured_into_a_graph_has_no_time(standin: StandIn, clock: Clock, detail: str, tmp_path: Path) -> None:
    """The second of three calls is captured."""
    model, bare = Outer(standin), Outer(standin)
    with fxflops.profile(bare, detail=detail) as without:
        bare(X)
        bare(X)
    clock.now = standin.busy_until  # begin like the first block, with an idle device
    with fxflops.profile(model, detail=detail) as p:
        model(X)
        with standin.graph():
            model(X)
        model(X)
    report = p.report
    assert report.block_time == pytest.approx(without.report.block_time)
    _, first, second, third = report._run.steps  # the first of the four is what comes before the first call
    ran = [step.parts["forward"] for step in without.report._run.steps[1:]]
    assert [first.parts["forward"], third.parts["forward"]] == pytest.approx(ran)
    assert "forward" not in second.parts
    if detail == "operations":
        seconds = [each.call.seconds for each in report.counted]
        n = len(seconds) // 3
        assert [value is None for value in seconds] == [False] * n + [True] * n + [False] * n
        assert report.total_flops == 3 * without.report.total_flops / 2
        assert f"{n} calls were {CAPTURED}" in " ".join(str(report).split())
        assert report.step_times().keys() == {"step 1", "step 3", "(outside)"}
        assert report.by_step()["step 2"].seconds is None
        report.save(tmp_path / "report.json")
        assert fxflops.Report.load(tmp_path / "report.json")._run.captured_calls == n


def test_a_block_inside_a_capture_reads_no_event(standin: StandIn, clock: Clock) -> None:
    model = nn.Linear(4, 4)
    with standin.graph(), fxflops.profile(model) as p:
        model(X)
    assert standin.events == standin.synchronized == 0
    (call,) = p.report.counted
    assert call.call.seconds is None
    assert call.flops > 0
    assert f"1 call was {CAPTURED}" in " ".join(str(p.report).split())
    assert p.report.block_time is None


@pytest.mark.cuda
def test_a_graph_is_captured_and_replayed_on_cuda() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU()).cuda().eval()
    x = torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with fxflops.profile(model) as p:
            with torch.cuda.graph(graph):
                y = model(x)
            graph.replay()
            model(x)
    torch.cuda.synchronize()
    assert torch.allclose(y, model(x))
    # There are also the calls with which torch begins a capture.
    seconds = [each.call.seconds for each in p.report.counted if each.call.path]
    assert [value is None for value in seconds] == [True] * 2 + [False] * 2
    assert f"calls were {CAPTURED}" in " ".join(str(p.report).split())
