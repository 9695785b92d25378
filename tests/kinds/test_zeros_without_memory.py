"""Tensors of zeros with a shape but no memory: autograd's gradient of ``sgn`` of real numbers, and everything computed from it.

The oracle is a dispatch mode that tracks the storages of the tensors that do have memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import fxflops

from .live_bytes import Live


class LiveMemory(Live):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # torch computes the shape of a product with such zeros on meta tensors.
        self.enter(t for t in tree_leaves(out) if not (t.is_meta or t._is_zerotensor()))
        return out


class Weighted(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(20, 20)), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight * x).sum()


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.sgn,
    lambda t: torch.sgn(t) * t,
    lambda t: torch.sgn(t.relu()).exp(),
    lambda t: torch.sgn(t * 2),
    torch.sign,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_they_are_not_in_the_peak(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, x = Weighted(function), torch.randn(20, 20)
    with LiveMemory([model.weight, x]) as live:
        out = model(x)
        out.backward()
    model.zero_grad()
    peaks = [
        fxflops.count(model, x, mode="as_is", backward=True).max_memory,
        fxflops.analyze(model, x, mode="as_is", backward=True, repeats=0, progress=False).max_memory,
    ]
    with fxflops.profile(model) as p:
        model(x).backward()
    assert [*peaks, p.report.max_memory] == pytest.approx([live.peak] * 3, abs=16)  # the loss and its gradient
