"""The meters: a fake clock gives exact times; live storages are held to the byte against hand-worked cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fxflops import analyze, count
from fxflops.ledger import Ledger
from fxflops.meter import Clock
from fxflops.run import run_graph


def test_the_clock_reads_each_node() -> None:
    ticks = iter(range(100))
    clock = Clock(now=lambda: float(next(ticks) ** 2))
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    assert torch.equal(run_graph(graph, {"input": torch.ones(2)}, clock), torch.ones(2))
    assert clock.seconds == {"input_1": 1, "_0": 9 - 4, "_1": 25 - 16, "output": 49 - 36}


def test_the_ledger_counts_storages_once() -> None:
    ledger = Ledger()
    a = torch.empty(100)
    ledger.add_all({"a": [a, a[10:], a.view(10, 10)]})
    assert ledger.live == 400
    view = a[1:]
    del a
    assert ledger.live == 400
    b = torch.empty(50, dtype=torch.float64, device="meta")
    ledger.add(b)
    assert ledger.live == 800
    del view
    assert (ledger.live, ledger.peak) == (400, 800)
    ledger.reset_peak()
    assert ledger.peak == 400
    b.resize_(100)
    ledger.add(b)
    assert ledger.live == 800
    del b
    assert ledger.live == 0


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
        small = report.max_memory - tensors_at_peak * N  # scalars that the sums leave behind
        assert 0 <= small <= 8
        assert report.memory["inputs"] == N
