"""Modules with names that break the code written by torch.fx, or that are attributes of its GraphModule."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

import fxflops
from fxflops.errors import RunError

NAMES = ["a\nb", "it's", 'so"called"', "back\\slash", '")#']


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x).relu()
        return x


@pytest.mark.parametrize("trace", ["symbolic", "record"])
def test_any_name_is_analyzed(trace: str) -> None:
    report = fxflops.analyze(Chain(), torch.randn(1, 2), trace=trace)
    assert report.total_macs == len(NAMES) * 4
    assert {*report.by_module()} == {"", *NAMES}


def test_the_graph_is_run_node_by_node() -> None:
    model, x = Chain(), torch.randn(1, 2)
    counter = fxflops.TorchFLOPsByFX(model)
    counter.propagate(x)
    graph = counter.graph_model
    with pytest.raises(RunError, match="name"):
        graph(x)
    assert torch.equal(fx.Interpreter(copy.deepcopy(graph)).run(x), model(x))


@pytest.mark.parametrize("branches", [False, True], ids=["symbolic", "recorded"])
@pytest.mark.parametrize("name", ["code", "graph", "recompile", "to_folder"])
def test_a_module_may_be_named_as_an_attribute_of_a_graph_module(name: str, branches: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
            self.last = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if branches and x.isnan().any():
                return x
            return self.last(self.get_submodule(name)(x) + self._modules[name][0].bias)

    report = fxflops.analyze(Model(), torch.randn(3, 4), repeats=0)
    assert report.total_macs == 3 * 4 * 5 + 3 * 5 * 2
    assert {*report.by_module()} == {"", name, f"{name}.0", f"{name}.1", "last"}
    assert report.trace == ("recorded trace" if branches else "symbolic trace")
