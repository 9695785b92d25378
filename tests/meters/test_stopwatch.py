"""The times of a profiled block, with a clock that only the model, the loop and the observer advance."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fxflops
from fxflops.meters import stopwatch
from fxflops.meters.live_storages import LiveStorages
from fxflops.roofline.devices import Device

from ..standin import Clock

INNER, OUTER, BACKWARD, STEP, LOADING, LOSS = 3.0, 2.0, 7.0, 11.0, 13.0, 17.0
X = torch.randn(2, 4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=clock))
    return clock


class Slow(torch.autograd.Function):
    """The identity, with a derivative that takes time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: Clock) -> torch.Tensor:
        ctx.clock = clock
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        ctx.clock.now += BACKWARD
        return given[0] * 1, None


class Raises(Slow):
    """The same, but the derivative raises in the end."""

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        Slow.backward(ctx, *given)
        raise ZeroDivisionError


class Inner(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.fc, self.clock = nn.Linear(4, 4), clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += INNER
        return Slow.apply(self.fc(x), self.clock)


class Outer(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.inner, self.clock = Inner(clock), clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        self.clock.now += OUTER
        return y

    def generate(self, x: torch.Tensor, words: int) -> torch.Tensor:
        for _ in range(words):
            x = self(x)
            self.clock.now += LOADING
        return x


class SlowSGD(torch.optim.SGD):
    clock: Clock

    def step(self, closure: Any = None) -> None:
        self.clock.now += STEP
        super().step(closure)


def trained(model: nn.Module, clock: Clock, steps: int, p: Any = None) -> None:
    optimizer = SlowSGD(model.parameters(), lr=0.1)
    optimizer.clock = clock
    for _ in range(steps):
        clock.now += LOADING
        loss = model(X).sum()
        clock.now += LOSS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if p is not None:
            p.step()


def test_a_training_loop_step_by_step(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        trained(model, clock, 2)
    times = p.report.step_times()
    assert list(times) == ["(outside)", "step 1", "step 2"]
    assert times["(outside)"].seconds == LOADING  # before the first call of the model
    first = times["step 1"]
    assert (first.forward, first.backward, first.optimizer) == (INNER + OUTER, BACKWARD, STEP)
    assert (first.between, times["step 2"].between) == (LOSS + LOADING, LOSS)  # the second batch is loaded after step 1
    assert p.report.block_time == clock.now
    assert p.report.instrument_time == 0.0
    steps = p.report.by_step()
    assert [steps[name].total.seconds for name in ("step 1", "step 1 backward", "step 1 optimizer", "(outside)")] == [
        INNER + OUTER, BACKWARD, STEP, 2 * (LOADING + LOSS),
    ]  # fmt: skip
    flops = 2 * X.numel() * 4 + 2 * 4 - 1  # products, sums and bias; the sum of the outputs
    assert first.flops > flops
    assert sum(time.flops for time in times.values()) == sum(row.total.flops for row in steps.values())


def test_a_module_has_the_time_of_its_own_code(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        trained(model, clock, 1)
    modules = p.report.by_module()
    assert modules[""].total.seconds == INNER + OUTER
    assert modules[""].own.seconds == OUTER
    assert modules["inner"].total.seconds == INNER
    assert p.report.by_operator()["(host)"].total.seconds == INNER + OUTER
    assert p.report.by_module("backward")[""].total.seconds == BACKWARD
    assert p.report.by_module("optimizer")[""].total.seconds == STEP
    text = str(p.report)
    assert "block    53.00 s     forward 5.00 s · backward 7.00 s · optimizer 11.00 s · other code 30.00 s" in text
    assert "step     40.00 s" in text


def test_utilization_is_that_of_the_whole_block(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        trained(model, clock, 2)
    report = p.report
    device = Device("cpu", peaks={"f32": 1e3}, bandwidth=1e9)
    assert report.total_backward_macs == 2 * X.numel() * 4  # of the weight: the input needs no gradient
    work = 2 * (report.total_macs + report.total_backward_macs)
    assert report.mfu(device) == work / 1e3 / clock.now
    backward = report.roofline(device, "backward")
    assert backward.latency == 2 * BACKWARD


def test_what_observing_takes_is_in_no_time_but_its_own(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    add_all = LiveStorages.add_all
    spent = 0.0

    def slow(self: LiveStorages, *args: Any) -> None:
        nonlocal spent
        spent += 1.0
        clock.now += 1.0
        add_all(self, *args)

    model = Outer(clock)
    with fxflops.profile(model) as p:
        monkeypatch.setattr(LiveStorages, "add_all", slow)
        trained(model, clock, 2)
        monkeypatch.setattr(LiveStorages, "add_all", add_all)
    assert spent > 10
    assert p.report.instrument_time == spent
    assert p.report.block_time == clock.now - spent
    assert p.report.step_times()["step 2"].seconds == INNER + OUTER + BACKWARD + STEP + LOSS
    assert p.report["inner"].total.seconds == 2 * INNER
    assert f"excluding {spent:.2f} s of profiling overhead" in str(p.report)


def test_only_the_iterations_that_a_schedule_records(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model, schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)) as p:
        trained(model, clock, 6, p)
        assert not model._forward_hooks
    times = p.report.step_times()
    iteration = LOADING + INNER + OUTER + LOSS + BACKWARD + STEP
    assert {name: time.seconds for name, time in times.items()} == {"step 3": iteration, "step 4": iteration}
    assert times["step 3"].between == LOADING + LOSS  # an iteration includes its own batch
    assert p.report.total_macs == 2 * X.numel() * 4
    assert p.report.block_time == 2 * iteration
    steps = p.report.by_step()
    assert {"step 3", "step 3 backward", "step 3 optimizer", "step 4"} < {*steps}
    assert steps["step 3"].total.macs == X.numel() * 4


def test_iterations_are_steps_where_the_loop_tells_them(clock: Clock) -> None:
    """Each iteration calls the model twice, to accumulate gradients."""
    model = Outer(clock)
    with fxflops.profile(model) as p:
        for _ in range(2):
            for _ in range(2):
                model(X).sum().backward()
            clock.now += LOADING
            p.step()
    times = p.report.step_times()
    assert {name: time.seconds for name, time in times.items()} == dict.fromkeys(
        ["step 1", "step 2"], 2 * (INNER + OUTER + BACKWARD) + LOADING
    ) | {"(outside)": 0.0}
    assert p.report.by_step()["step 2"].total.macs == 2 * X.numel() * 4


def test_words_of_generate_are_steps(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        model.generate(X, 3)
    times = {name: (time.forward, time.between) for name, time in p.report.step_times().items() if time.seconds}
    assert times == dict.fromkeys(["prefill", "decode 1", "decode 2"], (INNER + OUTER, LOADING))


def test_a_backward_pass_that_raises_is_over_with_the_next_step(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        with pytest.raises(ZeroDivisionError):
            Raises.apply(model(X), clock).sum().backward()
        trained(model, clock, 1)
    times = p.report.step_times()
    assert (times["step 2"].forward, times["step 2"].backward) == (INNER + OUTER, BACKWARD)
    assert p.report.block_time == clock.now


def test_times_are_saved(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        trained(model, clock, 2)
    again = fxflops.Report.from_dict(p.report.to_dict())
    assert again == p.report
    assert again.step_times() == p.report.step_times()
    assert again.instrument_time == p.report.instrument_time
    assert str(again) == str(p.report)


def test_what_is_not_timed_says_nothing_of_times() -> None:
    report = fxflops.count(nn.Linear(4, 4), X)
    assert (report.block_time, report.instrument_time) == (None, None)
    assert not report.step_times()
    assert {scope.seconds for scope in report.scopes} == {None}
    with fxflops.profile(nn.Linear(4, 4, device="meta")) as p:
        p._model(X.to("meta"))
    assert p.report.block_time is None
    assert {call.seconds for call in p.report.calls} == {None}
    assert "block" not in str(p.report)


def test_a_call_that_raises_is_a_step_too(clock: Clock) -> None:
    class Picky(Outer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not x.any():
                clock.now += INNER
                raise ValueError
            return super().forward(x)

    model = Picky(clock)
    with fxflops.profile(model) as p:
        for x in (X, X * 0, X):
            try:
                model(x)
            except ValueError:
                clock.now += LOADING
    times = p.report.step_times()
    assert p.report.block_time == clock.now
    assert (times["step 2"].forward, times["step 2"].between) == (INNER, LOADING)
    assert times["step 3"].forward == INNER + OUTER


def test_a_backward_pass_is_from_its_call_to_its_end(clock: Clock) -> None:
    """It includes the time before its first operator, and ends even if it raises."""
    model = Outer(clock)
    with fxflops.profile(model) as p:
        Slow.apply(model(X), clock).backward(torch.ones(2, 4))
        clock.now += LOSS
        with pytest.raises(ZeroDivisionError):
            Raises.apply(model(X), clock).sum().backward()
        clock.now += LOADING
    times = p.report.step_times()
    assert (times["step 1"].backward, times["step 1"].between) == (2 * BACKWARD, LOSS)
    assert (times["step 2"].backward, times["step 2"].between) == (BACKWARD, LOADING)


def test_a_step_inside_a_forward_is_forward(clock: Clock) -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(clock)
            self.optimizer = SlowSGD(self.inner.parameters(), lr=0.1)
            self.optimizer.clock = clock

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                self.inner(x).sum().backward()
            self.optimizer.step()
            return x

    with fxflops.profile(model := Learns()) as p:
        model(X)
    one = p.report.step_times()["step 1"]
    assert (one.forward, one.optimizer, one.between) == (INNER + BACKWARD + STEP, 0.0, 0.0)
    assert p.report.by_step()["step 1"].total.seconds == one.forward


def test_whatever_is_called_in_an_iteration_is_its_step(clock: Clock) -> None:
    model = Outer(clock)
    with fxflops.profile(model) as p:
        for _ in range(2):
            model.generate(X, 2)
            model.generate(X, 1)
            p.step()
        torch.ones(3).sum()
        clock.now += LOSS
    times = p.report.step_times()
    assert {name: time.seconds for name, time in times.items()} == {
        "step 1": 3 * (INNER + OUTER + LOADING), "step 2": 3 * (INNER + OUTER + LOADING), "(outside)": LOSS,
    }  # fmt: skip


def test_threads_overlap_and_no_time_is_negative() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ThreadPoolExecutor(4) as pool:
                return torch.stack([*pool.map(lambda branch: branch(x), self.branches)])

    model = Branches()
    with fxflops.profile(model) as p:
        for _ in range(3):
            model(X)
    rows = p.report.by_module().values()
    assert all((row.own.seconds or 0.0) >= 0.0 for row in rows)
    assert all((row.total.seconds or 0.0) >= 0.0 for row in rows)


def test_fake_parameters_are_not_timed() -> None:
    with FakeTensorMode():
        model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with fxflops.profile(model) as p:
        model(x)
    assert p.report.block_time is None


def test_a_clock_that_deducts_an_overhead_makes_no_phase_negative() -> None:
    readings = iter([0.0, 5.0, 4.0, 7.0])
    times = stopwatch.PhaseTimes(lambda: next(readings))
    times.begin(stopwatch.LOADING)
    times.end(stopwatch.LOADING)  # at 4.0, after 5.0
    times.settle()
    assert times.parts == {stopwatch.BETWEEN: 7.0}


def test_an_overhead_measured_too_high_is_not_deducted_from_all_later_work(clock: Clock) -> None:
    own_clock = stopwatch.Stopwatch()
    costs = stopwatch.Costs(builtin=1.0)
    own_clock.deduct(costs, costs)
    own_clock.stop()
    own_clock.go()
    own_clock.stop(stopwatch.OF_BUILTIN)  # at once: the whole second is due
    before = own_clock.now()
    own_clock.go()
    clock.now += 2.0
    own_clock.stop()
    assert own_clock.now() - before == pytest.approx(2.0 - stopwatch.MOST_DUE)


def test_the_time_of_a_call_excludes_the_observation_of_its_operators(clock: Clock) -> None:
    own_clock = stopwatch.Stopwatch()
    own_clock.stop()

    def call() -> str:
        clock.now += 2.0
        own_clock.stop()
        clock.now += 5.0  # an operator inside the call is observed
        own_clock.go()
        clock.now += 1.0
        return "out"

    assert own_clock.timed(call, (), {}) == ("out", 3.0)
    assert own_clock.overhead == 5.0
