"""The times of observed code without its observer, on a stand-in for an accelerator, with clocks that the test sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fxflops
from fxflops.meters import queue_stopwatch, stopwatch
from fxflops.meters.accelerator import Accelerator
from fxflops.meters.event_stopwatch import EventStopwatch, seconds_of
from fxflops.meters.full_queue import FullQueue
from fxflops.meters.queue_stopwatch import QueueStopwatch, observed_stopwatch_maker

from ..standin import Clock, StandIn

OBSERVING = 9e-3
X = torch.randn(2, 4)


@pytest.fixture
def clock(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Clock:
    standin.host = clock = Clock()
    standin.sleeps = True
    for module in (queue_stopwatch, stopwatch):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    return clock


class Loop:
    """Calls that an observer sees. The host launches each call, and the device computes it."""

    def __init__(self, standin: StandIn, clock: Clock, **settings: int) -> None:
        self.standin, self.clock = standin, clock
        queue = FullQueue.of(Accelerator(standin.device))
        assert queue is not None
        clock.now = standin.busy_until  # measuring the queue waited for the device
        self.watch = QueueStopwatch(queue, **settings)

    def call(self, host: float, device: float) -> None:
        """Make a call, with an observer at work before and after it."""
        self.watch.stop()
        self.clock.now += OBSERVING
        self.watch.timed(self._work, (host, device), {})
        self.clock.now += OBSERVING
        self.watch.go()

    def _work(self, host: float, device: float) -> None:
        self.clock.now += host
        self.standin.work(device)


@pytest.mark.parametrize(
    ("host", "device", "expected"),
    [
        (1e-3, 3e-3, 1e-3 + 5 * 3e-3),  # the device begins after the first launch and then always has work
        (3e-3, 1e-3, 5 * 3e-3 + 1e-3),  # the host launches one after the other, and the device finishes the last one
    ],
)
def test_the_time_is_as_without_an_observer(
    host: float, device: float, expected: float, standin: StandIn, clock: Clock
) -> None:
    loop = Loop(standin, clock)
    start = loop.watch.now()
    for _ in range(5):
        loop.call(host, device)
    end = loop.watch.now()
    assert seconds_of(end - start) == pytest.approx(expected)
    assert loop.watch.overhead == pytest.approx(10 * OBSERVING)


def test_a_call_that_waits_for_the_device_waits_for_all_of_its_work(standin: StandIn, clock: Clock) -> None:
    """Such a call is recognized from its third time on, because its time grows with the time that the device is held."""
    loop = Loop(standin, clock)

    def read() -> None:
        clock.now = max(clock.now + 1e-4, standin.busy_until)

    def compute() -> None:
        clock.now += 1e-3
        standin.work(4e-3)

    for _ in range(3):
        loop.watch.stop()
        loop.watch.timed(read, (), {})
        loop.watch.go()
    start = loop.watch.now()
    for _ in range(3):
        for call in (compute, compute, read):
            loop.watch.stop()
            clock.now += OBSERVING
            loop.watch.timed(call, (), {})
            loop.watch.go()
    end = loop.watch.now()
    # In each round the host launches both (2 ms), and waits until the device has computed them (8 ms, begun after 1 ms).
    assert seconds_of(end - start) == pytest.approx(3 * 9e-3, rel=0.05)


def test_kinds_of_work_are_timed_apart(standin: StandIn, clock: Clock) -> None:
    """One function runs all operators. A short operator must not make a long one look as if it waited."""
    loop = Loop(standin, clock)
    watch = loop.watch
    start = watch.now()
    for _ in range(10):
        for kind, host, device in (
            ("view", 1e-6, 0.0),
            ("conv", 1e-3, 3e-3),
            ("view", 1e-6, 0.0),
            ("conv", 1e-3, 3e-3),
        ):
            watch.stop()
            clock.now += OBSERVING
            watch.run(loop._work, (host, device), {}, work=kind)
            watch.go()
    works = [item for item in watch._marks_and_work if isinstance(item, queue_stopwatch.Work)]
    assert len(works) == 40
    assert not any(work.waited for work in works)
    assert seconds_of(watch.now() - start) == pytest.approx(1e-3 + 20 * 3e-3, rel=1e-3)


def test_work_inside_other_work_is_timed_by_itself(standin: StandIn, clock: Clock) -> None:
    loop = Loop(standin, clock)

    def outer() -> None:
        clock.now += 1e-3
        loop.call(1e-3, 2e-3)
        loop.call(1e-3, 2e-3)

    start = loop.watch.now()
    loop.watch.stop()
    loop.watch.timed(outer, (), {})
    loop.watch.go()
    assert seconds_of(loop.watch.now() - start) == pytest.approx(2e-3 + 2 * 2e-3)


def test_a_profiled_block_is_timed_so(standin: StandIn) -> None:
    standin.sleeps = True
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with fxflops.profile(model) as p:
        for _ in range(3):
            model(X).sum().backward()
    block = p.report.block_time
    assert block is not None
    assert block > 0
    assert sum(time.seconds for time in p.report.step_times().values()) == pytest.approx(block)
    assert {call.seconds is None for call in p.report.calls} == {False}
    assert sum(call.seconds or 0.0 for call in p.report.calls) <= block
    assert p.report.device_time == pytest.approx(0.0, abs=2e-3)  # work on the CPU takes no time on the stand-in
    assert "% of the block · otherwise it waits for the host" in str(p.report)


def test_the_time_that_the_device_works_is_told(standin: StandIn) -> None:
    standin.sleeps = True

    @torch.library.custom_op("queue_test::works", mutates_args=())
    def works(x: torch.Tensor) -> torch.Tensor:
        standin.work(2e-3)
        return x.clone()

    class Works(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return works(x)

    model = Works()
    with fxflops.profile(model) as p:
        for _ in range(4):
            model(X)
    assert p.report.device_time == pytest.approx(8e-3, abs=1e-3)
    assert (p.report.block_time or 0.0) >= (p.report.device_time or 0.0)
    assert fxflops.Report.from_dict(p.report.to_dict()).device_time == p.report.device_time
    assert fxflops.count(nn.ReLU(), X).device_time is None


def test_without_a_way_to_hold_the_device(standin: StandIn) -> None:
    assert isinstance(observed_stopwatch_maker(standin.device)(), EventStopwatch)
    standin.sleeps = True
    assert isinstance(observed_stopwatch_maker(standin.device)(), QueueStopwatch)
    assert type(observed_stopwatch_maker(torch.device("meta"))()) is stopwatch.Stopwatch


def test_many_events_are_used_again(standin: StandIn, clock: Clock) -> None:
    loop = Loop(standin, clock, unread_most=10)
    start = loop.watch.now()
    for _ in range(35):
        loop.call(1e-3, 1e-3)
        clock.now += 1.0
    made = len(loop.watch._unread)
    assert made < 20
    assert seconds_of(loop.watch.now() - start) == pytest.approx(35 * (1.0 + 1e-3))
