"""If a forward changes ``requires_grad`` of its weights or the gradient mode, a count's backward pass must follow.

The oracle is torch's FlopCounterMode around the model's own forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import fxflops


def frozen_call(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.a.requires_grad_(False)
    y = m.a(x)
    m.a.requires_grad_(True)
    return m.b(y)  # type: ignore[no-any-return]


def frozen_by_attribute(m: Any, x: torch.Tensor) -> torch.Tensor:
    for p in m.a.parameters():
        p.requires_grad = False
    y = m.a(x)
    for p in m.a.parameters():
        p.requires_grad = True
    return m.b(y)  # type: ignore[no-any-return]


def frozen_weight(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.a.weight.requires_grad_(False)
    y = F.linear(x, m.a.weight, m.a.bias)
    m.a.weight.requires_grad_(True)
    return m.b(y)  # type: ignore[no-any-return]


def asks(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.a.requires_grad_(False)
    y = m.a(x) if m.a.weight.requires_grad else m.a(x) + m.c(x)
    m.a.requires_grad_(True)
    return m.b(y)  # type: ignore[no-any-return]


def stays_frozen(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.b(m.a(x))
    m.b.requires_grad_(False)
    return y  # type: ignore[no-any-return]


def thawed(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.c.requires_grad_(False)
    m.c.requires_grad_(True)
    return m.b(m.a(x) + m.c(x))  # type: ignore[no-any-return]


def twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    m.a.requires_grad_(False)
    z = m.a(x)
    m.a.requires_grad_(True)
    return m.b(y + z)  # type: ignore[no-any-return]


def inference_first(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scale = m.a(x).mean()
    return m.b(m.a(x) + scale.item() * 0)  # type: ignore[no-any-return]


def inference_of_a_weight(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        m.b.weight.norm()
    return m.b(m.a(x))  # type: ignore[no-any-return]


def inference_of_all(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        m.b(m.a(x))
    return m.b(m.a(x))  # type: ignore[no-any-return]


def no_grad_first(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.b(m.a(x))
    return m.b(m.a(x))  # type: ignore[no-any-return]


FORWARDS = [
    frozen_call, frozen_by_attribute, frozen_weight, asks, stays_frozen, thawed, twice, inference_first,
    inference_of_a_weight, inference_of_all, no_grad_first,
]  # fmt: skip


class Net(nn.Module):
    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 32)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self, x).sum()


@pytest.mark.parametrize("use", FORWARDS)
def test_the_backward_pass_is_torchs(use: Any) -> None:
    model, x = Net(use), torch.randn(64, 16)
    with FlopCounterMode(display=False) as counter:
        model(x).backward()
    model.requires_grad_(True)
    flags = [p.requires_grad for p in model.parameters()]
    count = fxflops.count(model, x, mode="as_is", backward=True)
    analyzed = fxflops.analyze(model, x, mode="as_is", backward=True, repeats=0)
    for report in (count, analyzed):
        assert 2 * sum(each.macs for each in report.counted) == counter.get_total_flops()
    assert flags == [p.requires_grad for p in model.parameters()]
