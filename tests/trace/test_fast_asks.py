"""The fast path of a count runs each kind of call only once, and the counts stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.run import model_run
from fxflops.torch_internals import current_graph_task_id
from fxflops.trace.function_calls import FunctionCalls
from fxflops.trace.operator_calls import OperatorCalls
from tests.trace.odd_models import Function, Stack, X
from tests.trace.test_meta_world import assert_same


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the functions, and the operators of backward passes, that the observer runs instead of remembering them."""
    names: Counter[str] = Counter()
    function, operator = FunctionCalls._observe_call, OperatorCalls._observe_operator

    def of_function(self: FunctionCalls, func: Any, *rest: Any) -> Any:
        names[func.__name__] += 1
        return function(self, func, *rest)

    def of_operator(self: OperatorCalls, func: Any, *rest: Any) -> Any:
        names[func.name()] += current_graph_task_id() != -1
        return operator(self, func, *rest)

    monkeypatch.setattr(FunctionCalls, "_observe_call", of_function)
    monkeypatch.setattr(OperatorCalls, "_observe_operator", of_operator)
    return names


def repeated(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = self.fc(x)
    for _ in range(3):
        torch._assert(x.ndim == 2, "rows")
        x = torch.relu(x).view(2, 8)
    return torch.linalg.det(x[:, :2]) + torch.linalg.det(x[:, :2])


def test_functions_are_asked_for_once_where_no_rule_tells(asked: Counter[str]) -> None:
    report = fxflops.count(Function(repeated), X)
    assert +asked == {"linalg_det": 1}
    assert report.by_operator()["det"].calls == 2


def test_operators_of_equal_layers_are_asked_for_once(asked: Counter[str]) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(5)))
    report = fxflops.count(model, X, backward=True)
    # The backward pass begins with an expanded gradient, so the last layer's gradient has different strides from the rest.
    # mm: once for a weight's gradient and once for an input's. The first layer's input needs no gradient.
    assert (asked["aten::tanh_backward"], asked["aten::mm"]) == (2, 2)
    assert report.by_operator("backward")["tanh_backward"].calls == 5
    assert report.total_backward_macs == (5 + 4) * 2 * 8 * 8


class Forces(nn.Module):
    """Takes a gradient through equal layers in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = self.fc(x).detach().requires_grad_()
            energy = self.fc(self.fc(self.fc(x).tanh()).tanh())
            return energy + torch.autograd.grad(energy, x, torch.ones_like(energy), retain_graph=True)[0]


def test_a_gradient_stands_in_the_module_that_takes_it() -> None:
    model = Stack(Forces(), nn.Linear(8, 8))
    report = fxflops.count(model, X, backward=True)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert {call.path for call in report.calls if call.phase == "gradient"} == {"0"}
    assert report.by_module()["0"].own.macs == 3 * 2 * 8 * 8
    assert_same(model, X, backward=True)


class Flat(nn.Module):
    """Calls a leaf that makes views several times, with keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.fc = nn.Flatten(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x * 2
        return [self.fc(self.flat(input=x)) for _ in range(3)]


def test_views_of_a_leaf_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []
    on_meta = model_run.meta_run

    def noted(*args: Any, observe_dispatch: bool, **options: Any) -> Any:
        runs.append(observe_dispatch)
        return on_meta(*args, observe_dispatch=observe_dispatch, **options)

    monkeypatch.setattr(model_run, "meta_run", noted)
    report = fxflops.count(Flat(), torch.randn(2, 2, 4))
    assert (runs, report.trace) == ([False], "counted on the meta device")  # no second run, to see who made the views
    assert_same(Flat(), torch.randn(2, 2, 4))


class Pools(nn.Module):
    """Keeps the result of every call of a layer, so that the last call is at the peak."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = (x * 2)[..., :32]
        return [self.layer(x) for _ in range(3)]


@pytest.mark.parametrize(
    ("layer", "shape"), [(lambda: nn.MaxPool2d(2), (1, 4, 32, 40)), (lambda: nn.Linear(32, 32), (9, 9, 40))]
)
def test_what_a_leaf_makes_on_the_way_is_live_each_time(layer: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    assert_same(Pools(layer()), torch.randn(shape))
