"""Modules of names that torch.fx writes into its code as they are, where they break it."""

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
