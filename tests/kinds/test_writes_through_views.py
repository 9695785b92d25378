"""If a forward writes values into a table through a view, gradients must reach the values through the table and its other views.

In ``v = torch.zeros(8, 32); v[:, :16].copy_(layer(x))`` the table and the view are real tensors among meta tensors. Their meta
tensors must also be a tensor and its view. The oracles are FlopCounterMode, the storages that a dispatch mode sees, and the run
itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fxflops

from .live_bytes import Live

Write = Callable[[torch.Tensor, torch.Tensor], object]
VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t[:, :16],
    lambda t: t[:, 1::2],
    lambda t: t.view(-1)[16:144].view(8, 16),
    lambda t: t.unsqueeze(0)[0, :, 16:],
    lambda t: t.t()[:16].t(),
    lambda t: t.unflatten(1, (2, 16))[:, 1],
    lambda t: t.narrow(1, 4, 16),
    lambda t: t.as_strided((8, 16), (32, 2), 1),
)
WRITES: tuple[Write, ...] = (
    lambda view, y: view.copy_(y),
    lambda view, y: view.add_(y),
    lambda view, y: view.mul_(y),
    lambda view, y: view.__setitem__(slice(None), y),
    lambda view, y: view.index_add_(0, torch.arange(8), y),
    lambda view, y: view.scatter_add_(0, torch.zeros(8, 16, dtype=torch.long), y),
    lambda view, y: view.diagonal().add_(y.diagonal()),
    lambda view, y: view[2:5].sub_(y[2:5]),
)


class Writes(nn.Module):
    """Creates a table and perhaps a view of it, writes to views of the table, and computes with the table and the first view."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(draw.randint(1, 3))])
        self.last = nn.Linear(32, 16)
        self.writes = [(draw.choice(VIEWS), draw.choice(WRITES)) for _ in self.layers]
        self.early = draw.choice((None, *VIEWS))
        self.make = draw.choice((torch.zeros, torch.ones))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.make(8, 32)
        early = None if self.early is None else self.early(table)
        for layer, (view, write) in zip(self.layers, self.writes, strict=True):
            write(view(table), layer(x))
        y = self.last(table)
        return y if early is None else y + early


class Parts(nn.Module):
    """Writes the real and the imaginary parts of a complex table."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(8, 16, dtype=torch.complex64)
        table.real.copy_(self.a(x))
        torch.view_as_real(table)[..., 1].add_(self.b(x))
        return table.abs()


class Recast(nn.Module):
    """Writes to a table of real numbers through a complex view."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(8, 16, 2)
        torch.view_as_complex(table).add_(self.a(x))
        return table[..., 0]


def check(model: nn.Module) -> None:
    x = torch.randn(8, 16)

    def step() -> None:
        out = model(x)
        out.sum().backward()

    step()
    model.zero_grad()
    with Live([x, *model.parameters()]) as live:
        step()
    model.zero_grad()
    with FlopCounterMode(display=False) as flops:
        step()
    model.zero_grad()
    with fxflops.profile(model) as block:
        step()
    model.zero_grad()
    counted, measured = fxflops.count(model, x, backward=True), block.report
    assert 2 * (counted.total_macs + counted.total_backward_macs) == flops.get_total_flops()
    assert counted.total_backward_flops == measured.total_backward_flops
    assert abs(counted.max_memory - live.peak) <= 8  # the sum in the step is not part of the model
    on_meta = fxflops.count(model, x.to("meta"), backward=True)
    assert (on_meta.total_backward_flops, on_meta.max_memory) == (counted.total_backward_flops, counted.max_memory)


@pytest.mark.parametrize("seed", range(24))
def test_writes_through_views_of_a_table(seed: int) -> None:
    check(Writes(seed))


@pytest.mark.parametrize("make", [Parts, Recast])
def test_complex_tables(make: type[nn.Module]) -> None:
    check(make())
