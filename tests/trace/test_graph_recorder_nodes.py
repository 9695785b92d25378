"""The nodes of a recorded graph: how a call and its arguments are written."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.trace.test_graph_recorder import recorded

X = torch.arange(6.0).reshape(2, 3) / 3


class Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body
        self.fc = nn.Linear(3, 3)
        self.held = [torch.eye(3).to_sparse()]

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


class Factor(float):
    """A subclass of float."""


class Reduction(enum.IntEnum):
    ROWS = 1


def sets_data(self: Body, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.data = x * 3
    y.requires_grad = False
    return y + 1


NODES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "an item": (lambda self, x: x[0], [operator.getitem]),
    "a property": (lambda self, x: x.T, [getattr]),
    "a property that is set": (sets_data, ["clone", operator.mul, setattr, operator.add]),
    "a number of another class": (lambda self, x: x * Factor(2.0), [operator.mul]),
    "an enum": (lambda self, x: x.sum(Reduction.ROWS), ["sum"]),
    "a sparse constant": (lambda self, x: torch.sparse.mm(self.held[0], x.T), [getattr, torch.sparse.mm]),
    "a dict": (lambda self, x: {"y": x.relu()}, ["relu"]),
}


@pytest.mark.parametrize("name", NODES)
def test_a_call_is_written_as_it_was_made(name: str) -> None:
    body, targets = NODES[name]
    model = Body(body).requires_grad_(False)
    _, graph = recorded(model, X)
    assert [node.target for node in graph.graph.nodes if node.op.startswith("call")] == targets
    torch.testing.assert_close(graph(X), model(X))


def test_arguments_are_plain_values_and_nodes() -> None:
    _, graph = recorded(Body(lambda self, x: {"y": x * Factor(2.0)}), X)
    node = next(node for node in graph.graph.nodes if node.target is operator.mul)
    assert type(node.args[1]) is float
    assert graph.graph.output_node().args == ({"y": node},)


def test_a_tensor_of_a_layer_has_a_name_outside_of_it() -> None:
    _, graph = recorded(Body(lambda self, x: F.linear(self.fc(x), self.fc.weight)), X)
    read = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    assert "_fc_weight" in read
    assert not any(name.startswith("fc.") for name in read)
