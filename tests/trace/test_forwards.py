"""The replacement of a module's forward during a count, also in copies that the model makes of the module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.allocator import allocated
from benchmarks.memory_truth import bytes_of, step
from fxflops import Report, analyze, count

X = torch.randn(4, 64)


class Copies(nn.Module):
    """Run three copies of a layer in sequence. The copies may be copies of copies, or may be kept."""

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
    """Change its layer during the forward, before calling it. The layer then does twice the work."""

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


def scripted() -> Any:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 5)
    return torch.jit.freeze(torch.jit.script(nn.Sequential(*layers).eval()))


IMAGE = torch.randn(1, 3, 6, 6)
PRODUCTS = 4 * 4 * 4 * 3 * 3 * 3 + 4 * 4 * 4 * 5
COUNTS: dict[str, Callable[[Any], Report]] = {
    "count": lambda model: count(model, IMAGE),
    "as_is": lambda model: count(model, IMAGE, mode="as_is"),
    "analyze": lambda model: analyze(model, IMAGE, repeats=1, progress=False),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", COUNTS)
def test_a_frozen_script_counts_the_same_each_time(way: str) -> None:
    """The script's optimizer, which compares weights in the first calls, is not the model. A frozen script has no training mode."""
    model = scripted()
    reports = [COUNTS[way](model) for _ in range(3)]
    assert [report.total_macs for report in reports] == [PRODUCTS] * 3
    assert len({report.total_flops for report in reports}) == 1
    assert all(report.complete for report in reports)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="optimize_for_inference takes oneDNN's kernels")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", COUNTS)
def test_kernels_that_a_script_hides_are_told(way: str) -> None:
    report = COUNTS[way](torch.jit.optimize_for_inference(scripted()))
    assert not report.complete
    assert [(missing.op, missing.calls) for missing in report.missing] == [("prim::mkldnn_convolution", 1)]


def graphed(module: nn.Module) -> nn.Module:
    """Replace the forward like torch.cuda.make_graphed_callables: its result exists already."""
    out = module(torch.ones(2, 4)).detach()

    def new_fwd(x: torch.Tensor) -> torch.Tensor:
        return out.clone()

    new_fwd.__module__ = torch.cuda.make_graphed_callables.__module__
    module.forward = new_fwd
    return module


@pytest.mark.parametrize("call", [fxflops.count, fxflops.analyze])
def test_what_a_replayed_graph_computes_is_not_known(call: Any) -> None:
    report = call(nn.Sequential(nn.Linear(4, 4), graphed(nn.Linear(4, 4))), torch.ones(2, 4))
    assert not report.complete
    assert [(item.op, item.path) for item in report.missing] == [("torch.cuda.CUDAGraph", "1")]


@pytest.mark.cuda
@pytest.mark.parametrize("call", [fxflops.count, fxflops.analyze])
def test_what_a_replayed_graph_computes_is_not_known_on_cuda(call: Any) -> None:
    x = torch.ones(2, 4, device="cuda")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda().eval()
    with torch.no_grad():
        torch.cuda.make_graphed_callables(model[1], (x,))
    report = call(model, x)
    assert not report.complete
    assert [(item.op, item.path) for item in report.missing] == [("torch.cuda.CUDAGraph", "1")]


class Replaying(nn.Module):
    """Captures its layer once, and replays the graph in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.graph = nn.Linear(4, 4), torch.cuda.CUDAGraph()
        self.x = torch.ones(2, 4, device="cuda")

    def capture(self) -> None:
        with torch.cuda.graph(self.graph):
            self.y = self.fc(self.x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()


@pytest.mark.cuda
def test_a_module_that_has_a_graph_may_replay_it() -> None:
    model = Replaying().cuda().eval()
    with torch.no_grad():
        model.capture()
    report = fxflops.count(model, torch.ones(2, 4, device="cuda"))
    assert not report.complete
    assert [item.op for item in report.missing] == ["torch.cuda.CUDAGraph"]
