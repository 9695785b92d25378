"""The meters: a fake clock gives exact times, and live storages match hand-worked cases to the byte."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import analyze, count
from fxflops.meters.accelerator import Accelerator
from fxflops.meters.full_queue import FullQueue
from fxflops.meters.live_storages import LiveStorages
from fxflops.meters.meter import AcceleratorClock, Clock
from fxflops.run import passes as measure
from fxflops.run.graph_run import Times, run_graph

from ..standin import StandIn


def test_the_clock_reads_each_node() -> None:
    ticks = iter(range(100))
    clock = Clock(now=lambda: float(next(ticks) ** 2))
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    assert torch.equal(run_graph(graph, {"input": torch.ones(2)}, clock), torch.ones(2))
    assert clock.seconds == {"input_1": 1, "_0": 9 - 4, "_1": 25 - 16, "output": 49 - 36}


@pytest.mark.parametrize("held", [False, True])
def test_the_clock_of_an_accelerator_reads_the_devices_work(standin: StandIn, held: bool) -> None:
    """A ReLU takes 3 ms on the device, and 1 ms on the host to launch it. A device that is held does not wait for the launch."""
    host = 0.0
    standin.host = lambda: host
    standin.sleeps = held

    class Slow(nn.ReLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal host
            host += 1e-3
            standin.work(3e-3)
            return super().forward(x)

    accelerator = Accelerator(standin.device)
    queue = FullQueue.of(accelerator)
    assert (queue is not None) is held
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Identity(), nn.Identity()))
    graph.add_module("0", Slow())
    graph.add_module("1", Slow())
    inputs = {"input": torch.ones(2)}
    launches = Clock(now=standin.host)
    run_graph(graph, inputs, launches)
    assert launches.seconds == {"input_1": 0.0, "_0": 1e-3, "_1": 1e-3, "output": 0.0}
    host = standin.busy_until + 1.0  # the device is idle
    waited = standin.synchronized
    clock = AcceleratorClock(accelerator, queue, launches.seconds)
    run_graph(graph, inputs, clock)
    assert standin.synchronized == waited + 1
    first = 3e-3 if held else 4e-3
    assert clock.seconds == pytest.approx({"input_1": 0.0, "_0": first, "_1": 3e-3, "output": 0.0}, abs=1e-9)


def test_the_ledger_counts_storages_once() -> None:
    storages = LiveStorages()
    a = torch.empty(100)
    storages.add_all({"a": [a, a[10:], a.view(10, 10)]})
    assert storages.live == 400
    view = a[1:]
    del a
    assert storages.live == 400
    b = torch.empty(50, dtype=torch.float64, device="meta")
    storages.add(b)
    assert storages.live == 800
    del view
    assert (storages.live, storages.peak) == (400, 800)
    storages.reset_peak()
    assert storages.peak == 400
    b.resize_(100)
    storages.add(b)
    assert storages.live == 800
    del b
    assert storages.live == 0


class Run(nn.Module):
    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


N = 4000  # bytes of x


@pytest.mark.parametrize(
    ("forward", "tensors_at_peak"),
    [
        (lambda x: x + 1, 2),
        (lambda x: (x + 1).exp(), 3),
        (lambda x: (x + 1).exp().exp().exp(), 3),
        (lambda x: (x + 1).exp_(), 2),
        (lambda x: (x + 1).view(10, 100).t().reshape(-1), 3),
        (lambda x: x.view(10, 100).t(), 1),
        (lambda x: x + x.exp(), 3),
        (lambda x: torch.cat([x, x]), 3),
        (lambda x: torch.cat([x, x]).chunk(2)[0].exp(), 4),
        (lambda x: x.exp().sum() + x.sin().sum(), 2),
    ],
)
def test_the_peak_by_hand(forward: Callable[[torch.Tensor], torch.Tensor], tensors_at_peak: int) -> None:
    x = torch.ones(N // 4)
    for report in (analyze(Run(forward), x, repeats=0), count(Run(forward), x)):
        small = report.max_memory - tensors_at_peak * N  # scalars that the sums leave
        assert 0 <= small <= 8
        assert report.memory["inputs"] == N


def weighed(forward: Callable[..., torch.Tensor], **sizes: int) -> nn.Module:
    """A model with parameters of these sizes, which ``forward`` receives after x."""

    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterDict({name: nn.Parameter(torch.ones(size)) for name, size in sizes.items()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x, *self.weights.values())

    return Weighed()


# The peak of a training step by hand, in tensors of N bytes: x, w, what the forward keeps and returns, and the gradients. The
# output's gradient is a single expanded element. A node's inputs are freed only after its outputs exist.
TRAINING = {
    "product": (lambda x, w: x * w, ["x", "w", "y", "w.grad = ones*x"]),
    "exp": (lambda x, w: (x * w).exp(), ["x", "w", "y", "da = ones*y", "w.grad = da*x"]),
    "sum": (lambda x, w: x + w, ["x", "w", "y", "w.grad, a copy of them"]),
    "in place": (lambda x, w: (x + w).relu_(), ["x", "w", "y", "w.grad"]),
    "chain": (
        lambda x, w: (x + w).relu() * 2,
        ["x", "w", "b = relu", "y", "db = ones*2", "w.grad = db where b > 0"],
    ),
    "views": (lambda x, w: (x * w).view(10, 100).t(), ["x", "w", "y", "w.grad"]),
    "residual": (lambda x, w: (x * w).sin() + x, ["x", "w", "a = x*w", "y", "da = ones*cos", "cos(a)"]),
    "reuse": (
        lambda x, w: x * w * w,
        ["x", "w", "y", "w.grad 1 = ones*a", "da = ones*w, then a leaves", "w.grad 2 = da*x"],
    ),
    "square": (lambda x, w: (x * w) ** 2, ["x", "w", "a", "y", "da = ones*2a", "2a", "a**1"]),
    "sum of all": (lambda x, w: (x * w).sum(), ["x", "w", "w.grad = 1*x"]),
}


@pytest.mark.parametrize(("forward", "tensors"), TRAINING.values(), ids=TRAINING)
def test_the_peak_of_a_training_step_by_hand(forward: Callable[..., torch.Tensor], tensors: list[str]) -> None:
    x, model = torch.ones(N // 4), weighed(forward, w=N // 4)
    found = [analyze(model, x, backward=True, repeats=0), count(model, x, backward=True)]
    small = [report.max_memory - len(tensors) * N for report in found]
    assert small[0] == small[1]
    assert 0 <= small[0] <= 8  # the sum, and its gradient of one


@pytest.mark.parametrize("trace", ["symbolic", "record"])
@pytest.mark.parametrize("backward", [False, True])
def test_nothing_of_an_earlier_run_is_alive_when_the_device_is_read(
    trace: str, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that lives on would be in an allocator's peak, and would change the time to find memory."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def kept(x: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(x))
        return x

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kept(self.layer(x))

    def time_nodes(*args: Any, **kwargs: Any) -> Times:
        alive.append(sum(isinstance(ref(), torch.Tensor) for ref in made))
        return Times()

    monkeypatch.setattr(measure, "time_nodes", time_nodes)
    analyze(Own(), torch.ones(2, 3), trace=trace, backward=backward)
    assert made
    assert alive == [0]
