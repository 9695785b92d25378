"""Tensors that autograd nodes create and keep are memory of a step on the CPU. The prediction must equal the CPU allocator's peak,
byte for byte.

The Python numbers in products and quotients take 8 bytes per call. Checkpoint with ``use_reentrant=True`` keeps a random state of
5,056 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from benchmarks.what_fits import measured, trained

LAYERS = 5


class Layers(nn.Module):
    """Layers, each followed by a function, then a wide layer in which the step peaks."""

    def __init__(self, between: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(LAYERS))
        self.between, self.wide = between, nn.Linear(16, 4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.between(layer, x)
        return self.wide(x).sigmoid()  # type: ignore[no-any-return]


def half_of(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x) * 0.5  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "product": half_of,
    "number first": lambda layer, x: 2 * layer(x),
    "quotient": lambda layer, x: layer(x) / 3,
    "both": lambda layer, x: layer(x) / 3 * 0.5,
    "functions": lambda layer, x: torch.div(torch.mul(layer(x), 0.5), 3.0),
    "methods": lambda layer, x: layer(x).mul(0.5).div(3.0),
    "without gradient": lambda layer, x: layer(x) + x.detach() * 0.5,
    "sum": lambda layer, x: layer(x) + 0.5,
    "power": lambda layer, x: layer(x) ** 3.0,
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "reentrant product": lambda layer, x: checkpoint(half_of, layer, x, use_reentrant=True),
    "reentrant without states": lambda layer, x: checkpoint(layer, x, use_reentrant=True, preserve_rng_state=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_peaks_as_the_allocator_says(way: str) -> None:
    torch.manual_seed(0)
    model, x = Layers(WAYS[way]).train(), torch.randn(256, 16, requires_grad=True)
    optimizer = trained(model, ((x,), {}))
    x.grad = None
    took: Any = measured(model, ((x,), {}), optimizer)
    x.grad = None
    report = fxflops.count(model, x, backward=True, optimizer=optimizer)
    assert report.max_memory == took
