"""Memory that a ``profile`` block uses must count wherever it is held: in attributes, closures, other objects, or earlier graphs.

The oracle is a dispatch mode of this test, which is given every tensor that existed before the block.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import fxflops
from tests.kinds.live_bytes import Live

ROWS, WIDTH = 64, 32
GLOBAL = torch.randn(ROWS, WIDTH)


class Case(NamedTuple):
    """A model, the code of a block, and the tensors that existed before the block, except parameters and buffers."""

    model: nn.Module
    block: Callable[[], Any]
    before: list[torch.Tensor]


class Adds(nn.Module):
    """A layer, plus a tensor that ``get(self)`` returns."""

    def __init__(self, get: Callable[[Any], torch.Tensor], **attributes: Any) -> None:
        super().__init__()
        self.layer, self.get = nn.Linear(WIDTH, WIDTH), get
        self.__dict__.update(attributes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.get(self)  # type: ignore[no-any-return]


def x() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def adding(get: Callable[[Any], torch.Tensor], there: torch.Tensor, **attributes: Any) -> Case:
    model, given = Adds(get, **attributes), x()
    return Case(model, lambda: model(given), [given, there])


def attribute() -> Case:
    held = x()
    return adding(lambda self: self.held, held, held=held)


def in_a_list() -> Case:
    held = x()
    return adding(lambda self: self.held[1], held, held=["a", held])


def in_an_object() -> Case:
    held = x()
    return adding(lambda self: self.held.by["a"], held, held=SimpleNamespace(by={"a": held}))


def in_a_closure() -> Case:
    held = x()
    return adding(lambda self: held, held)


def a_global() -> Case:
    return adding(lambda self: GLOBAL, GLOBAL)


def a_view_of_more() -> Case:
    held = torch.randn(4 * ROWS, WIDTH)
    return adding(lambda self: self.held[::4], held, held=held)


def never_used() -> Case:
    held = x()
    return adding(lambda self: self.layer.bias, held, held=held)


def given_to_a_layer() -> Case:
    held = x()

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self) -> torch.Tensor:
            return self.layer(held)  # type: ignore[no-any-return]

    model = Fixed()
    return Case(model, model, [held])


def replaced_in_the_block() -> Case:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(WIDTH, WIDTH), torch.zeros(ROWS, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.layer(x + self.last)
            return self.last

    model, given = Remembers(), x()
    last = [model.last]

    def block() -> None:
        last.clear()
        for _ in range(3):
            model(given)

    return Case(model, block, [given, last[0]])


def added_up_in_place() -> Case:
    total = torch.zeros(WIDTH, WIDTH)

    def get(self: Any) -> torch.Tensor:
        total.add_(1)
        return self.layer.bias  # type: ignore[no-any-return]

    return adding(get, total)


def functional_weights() -> Case:
    model, given = nn.Linear(WIDTH, WIDTH), x()
    weights = {name: torch.randn_like(weight) for name, weight in model.named_parameters()}
    return Case(model, lambda: torch.func.functional_call(model, weights, (given,)), [given, *weights.values()])


def backward_of_an_earlier_forward() -> Case:
    model, given = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)), x()
    hidden = model[1](model[0](given))
    loss = model[2](hidden).square().mean()
    return Case(model, lambda: torch.autograd.grad(loss, [*model.parameters()], retain_graph=True), [given, hidden])


class OfSomebodyElse:
    """An optimizer that does not subclass torch's Optimizer."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.state = parameters, [torch.zeros_like(each) for each in parameters]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self.state, strict=True):
                mean.mul_(0.9).add_(parameter)
                parameter.sub_(mean, alpha=0.1)


def an_optimizer_of_somebody_else() -> Case:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = OfSomebodyElse([*model.parameters()])
    return Case(model, optimizer.step, [*optimizer.state])


def an_averaged_model() -> Case:
    model = nn.Linear(WIDTH, WIDTH)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    held = [*averaged.parameters(), *averaged.buffers()]
    return Case(model, lambda: averaged.update_parameters(model), held)


def another_model_in_the_loss() -> Case:
    model, teacher, given = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), x()

    def block() -> None:
        with torch.no_grad():
            nn.functional.mse_loss(model(given), teacher(given))

    return Case(model, block, [given, *teacher.parameters()])


CASES = [
    attribute,
    in_a_list,
    in_an_object,
    in_a_closure,
    a_global,
    a_view_of_more,
    never_used,
    given_to_a_layer,
    replaced_in_the_block,
    added_up_in_place,
    functional_weights,
    an_optimizer_of_somebody_else,
    an_averaged_model,
    another_model_in_the_loss,
]


@pytest.mark.parametrize("make", CASES)
def test_the_peak_is_that_of_the_storages(make: Callable[[], Case]) -> None:
    with torch.no_grad():
        _, block, _ = case = make()
        with Live([*case.model.parameters(), *case.model.buffers(), *case.before]) as expected:
            case.before.clear()
            block()
        case = make()
        case.before.clear()
        with fxflops.profile(case.model) as p:
            case.block()
    assert expected.peak > WIDTH * WIDTH * 4
    assert p.report.max_memory == expected.peak


def test_a_backward_pass_has_the_activations_of_an_earlier_forward() -> None:
    case = backward_of_an_earlier_forward()
    held = [*case.model.parameters(), *case.before]
    with Live(held) as expected:
        case.block()
    with fxflops.profile(case.model) as p:
        case.block()
    # The loss and the last layer's result are storages of the graph that the oracle does not know.
    assert 0 <= p.report.max_memory - expected.peak <= ROWS * WIDTH * 4 + 8
    assert p.report.memory["activations"] >= 2 * ROWS * WIDTH * 4


@pytest.mark.parametrize("make", [attribute, in_a_list, in_an_object, in_a_closure, never_used, given_to_a_layer])
def test_profile_and_count_agree(make: Callable[[], Case]) -> None:
    with torch.no_grad():
        case = make()
        given = () if make is given_to_a_layer else (case.before[0],)
        with fxflops.profile(case.model) as p:
            case.model(*given)
        counted = fxflops.count(case.model, given)
    assert (p.report.max_memory, p.report.memory["buffers"]) == (counted.max_memory, counted.memory["buffers"])
