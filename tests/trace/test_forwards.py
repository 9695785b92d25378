"""What stands for a module's forward while it is counted, and for that of a copy that the model makes of it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.allocator import allocated
from benchmarks.memory_truth import bytes_of, step

X = torch.randn(4, 64)


class Copies(nn.Module):
    """Runs three copies of a layer, one after the other; or copies of copies, or keeps one."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(64, 64), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            layer = copy.deepcopy(self.layer)
            layer = copy.deepcopy(layer) if self.way == "again" else layer
            KEPT.append(layer) if self.way == "kept" else None
            x = layer(x)
        return x


KEPT: list[nn.Module] = []


@pytest.mark.parametrize("way", ["", "again"])
def test_a_copy_is_let_go_of_as_it_is_without(way: str) -> None:
    model = Copies(way)
    truth = allocated(partial(step, model, (X,), {}, None), bytes_of([*model.parameters(), X]))
    report = fxflops.count(model, X)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert report.max_memory == truth.held
    assert report.total_macs == 3 * 4 * 64 * 64


def test_a_copy_that_stays_has_its_own_forward() -> None:
    KEPT.clear()
    fxflops.count(Copies("kept"), X)
    assert KEPT
    for layer in KEPT:
        assert "forward" not in vars(layer)
    KEPT.clear()


def test_a_forward_of_the_modules_own_is_copied() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)
            self.layer.forward = self.twice  # type: ignore[method-assign]

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.layer.weight) * 2

        def forward(self, x: torch.Tensor) -> Any:
            return copy.deepcopy(self.layer)(x)

    assert fxflops.count(Own(), X).total_flops == 2 * 4 * 64 * 64 - 4 * 64 + 4 * 64


def test_a_static_forward_takes_no_module() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return torch.relu(x)

    report = fxflops.count(nn.Sequential(nn.Linear(64, 64), Static()), X)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert report.total_macs == 4 * 64 * 64


class Changes(nn.Module):
    """Changes its layer in its forward, before it is called: twice the layer's work from then on."""

    def __init__(self, way: str) -> None:
        super().__init__()
        layer: nn.Module = nn.Linear(64, 64, bias=False)
        self.layer, self.way = torch.fx.symbolic_trace(layer) if way == "graph" else layer, way

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(torch.nn.functional.linear(x, self.layer.weight), self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if self.way == "forward":
            layer.forward = self.twice  # type: ignore[method-assign]
        elif self.way == "hook":
            layer.register_forward_hook(lambda module, args, out: torch.nn.functional.linear(out, module.weight))
        elif self.way == "compiled":
            layer.compile(backend="eager")
        elif self.way == "copied":
            layer = copy.copy(layer)
            layer.forward = self.twice  # type: ignore[method-assign]
        elif self.way == "graph":
            layer = copy.deepcopy(layer)
        out = layer(x)
        return out if self.way in ("forward", "hook", "copied") else layer(out)


@pytest.mark.parametrize("way", ["forward", "hook", "compiled", "copied", "graph"])
def test_a_layer_that_the_forward_changes_is_counted_as_it_then_is(way: str) -> None:
    model = Changes(way)
    before = dict(vars(model.layer))
    report = fxflops.count(model, X)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert report.total_macs == 2 * 4 * 64 * 64
    assert report.complete
    assert vars(model.layer) == before
    assert not model.layer._forward_hooks
