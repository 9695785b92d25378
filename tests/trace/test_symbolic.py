"""Symbolic graphs: the branches that fixed arguments take, and the line that cannot be traced."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from fxflops import TraceError
from fxflops.ops import BASE
from fxflops.trace.symbolic import constants_of, symbolic


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, deep: bool = True, *, times: int = 1) -> torch.Tensor:
        for _ in range(times):
            x = self.fc(x)
        return self.fc(x) if deep else x


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(("bound", "layers"), [({}, 2), ({"deep": False}, 1), ({"deep": False, "times": 3}, 3)])
def test_the_branches_of_fixed_arguments_are_taken(bound: dict[str, int], layers: int) -> None:
    model, x = Deep(), torch.randn(2, 4)
    graph = symbolic(model, BASE, constants_of(model, bound), lambda value: None)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["fc"] * layers
    assert torch.equal(graph(x), model(x, **bound))


def test_what_cannot_be_traced_is_told_with_its_line() -> None:
    line = inspect.getsourcelines(Branching.forward)[1] + 1
    with pytest.raises(TraceError, match=rf"cannot trace Branching.*\n  at {__file__}:{line} in forward\n"):
        symbolic(Branching(), BASE, {}, lambda value: None)
