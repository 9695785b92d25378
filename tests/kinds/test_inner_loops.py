"""If a forward creates an optimizer for an inner loop, nothing may keep the optimizer's tensors alive longer than the loop does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops

from .live_bytes import Live


class Inner(nn.Module):
    def __init__(self, make: Any, steps: int) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(16, 32), nn.Linear(32, 16)
        self.make, self.steps = make, steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x) + self.adapted(x)).square().sum()  # type: ignore[no-any-return]

    def adapted(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            w = torch.zeros(64, 32, requires_grad=True)
            optimizer = self.make([w])
            target = self.layer(x.detach()).detach()
            for _ in range(self.steps):
                optimizer.zero_grad()
                (target - w).square().sum().backward()
                optimizer.step()
        return w.detach()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("make", [lambda w: torch.optim.SGD(w, lr=0.1), torch.optim.Adam], ids=["SGD", "Adam"])
def test_the_peak_is_that_of_the_storages(make: Any, steps: int, backward: bool) -> None:
    model, x = Inner(make, steps), torch.randn(64, 16)

    def run() -> None:
        out = model(x)
        if backward:
            out.backward()

    live = Live([*model.parameters(), x])
    with torch.set_grad_enabled(backward):
        with live:
            run()
        model.zero_grad()
        with fxflops.profile(model) as p:
            run()
        model.zero_grad()
        count = fxflops.count(model, x, mode="as_is", backward=backward)
        analyzed = fxflops.analyze(model, x, mode="as_is", backward=backward, repeats=0)
    for report in (p.report, count, analyzed):
        assert report.max_memory == pytest.approx(live.peak, abs=64)
