"""Whole runs made again: the report is the one that is made anew, and what cannot be told is run again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from anew import assert_same
from torch import nn

import fxflops
from fxflops.trace.plans import forget

RAN: list[nn.Module] = []
"""The models whose forward really ran: a list that no module holds."""


class Model(nn.Module):
    """Runs what it is made of; ``returns`` makes of a tensor what the model returns."""

    def __init__(self, *parts: nn.Module, returns: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.returns = returns

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        RAN.append(self)
        for part in self.parts:
            x = part(x)
        x = x if y is None else x + y
        return x if self.returns is None else self.returns(x)


class Output:
    """What no block could put out again."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.fixture(autouse=True)
def anew() -> None:
    forget()
    RAN.clear()


X = torch.randn(2, 8)


def layers(count: int = 2) -> list[nn.Linear]:
    return [nn.Linear(8, 8, bias=False) for _ in range(count)]


def tied() -> Model:
    model = Model(*layers())
    model.parts[1].weight = model.parts[0].weight
    return model


def lying(*places: int) -> Model:
    """A model whose weights stand on one storage, at these places."""
    model, storage = Model(*layers(len(places))), torch.randn(4 * 64)
    for part, place in zip(model.parts, places, strict=True):
        part.weight = nn.Parameter(storage[64 * place :][:64].view(8, 8))
    return model


def with_buffer(named: str) -> Model:
    model = Model(*layers())
    if named == "parameter":
        model.shift = nn.Parameter(torch.zeros(8), requires_grad=False)
    else:
        model.register_buffer("shift", torch.zeros(8))
    return model


def shared() -> Model:
    (layer,) = layers(1)
    return Model(layer, layer)


def frozen() -> Model:
    model = Model(*layers())
    model.parts[0].weight.requires_grad_(False)
    return model


MODELS = {
    "plain": lambda: Model(*layers()),
    "tied": tied,
    "on one storage": lambda: lying(0, 0),
    "side by side": lambda: lying(0, 1),
    "with a parameter": lambda: with_buffer("parameter"),
    "with a buffer": lambda: with_buffer("buffer"),
    "with a shared layer": shared,
    "frozen": frozen,
    "of float64": lambda: Model(*layers()).double(),
    "on meta": lambda: Model(*layers()).to("meta"),
    "of another object": lambda: Model(*layers(), returns=Output),
    "in training": lambda: Model(nn.BatchNorm1d(8)).train(),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_known_beside_all_others_is_counted_as_anew(name: str) -> None:
    for make in MODELS.values():
        fxflops.count(model := make(), X.to(next(model.parameters())), mode="as_is")
    model = MODELS[name]()
    assert_same(model, x := X.to(next(model.parameters())), mode="as_is", first=False)
    RAN.clear()
    fxflops.count(MODELS[name](), x, mode="as_is")
    assert not RAN


@pytest.mark.parametrize(
    "args",
    [(X, X), (X, X.clone()), (X[:1], X[1:]), (torch.randn(4, 8)[:2],), (torch.randn(8, 2).T,), (X, None), (X, 1.0)],
    ids=["twice the same", "two", "views of one", "of a larger one", "transposed", "none", "number"],
)
def test_arguments_that_lie_otherwise_are_others(args: tuple[Any, ...]) -> None:
    model = Model(*layers())
    fxflops.count(model, X)
    assert_same(model, args, first=False)


def _hook(model: nn.Module) -> None:
    model.parts[0].register_forward_hook(lambda *_: None)


def _other_forward(model: nn.Module) -> None:
    model.parts[0].forward = lambda x: x + 1


def _own_call(model: nn.Module) -> None:
    class Called(Model):
        def __call__(self, x: torch.Tensor) -> Any:
            RAN.append(self)
            return super().__call__(x + 1)

    model.__class__ = Called


@pytest.mark.parametrize("change", [_hook, _other_forward, _own_call])
def test_what_more_may_be_done_is_done_each_time(change: Callable[[nn.Module], None]) -> None:
    model = Model(*layers())
    fxflops.count(model, X)
    change(model)
    for _ in range(2):
        RAN.clear()
        fxflops.count(model, X)
        assert RAN
    assert_same(model, X)


class Unhashable:
    """Is called like a function, and has no hash."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_what_has_no_hash_keeps_a_model_from_being_known() -> None:
    model = Model(*layers(), returns=functools.partial(Unhashable()))
    for _ in range(2):
        RAN.clear()
        fxflops.count(model, X)
        assert RAN
    assert_same(model, X)


def test_under_autocast_a_model_runs() -> None:
    model = Model(*layers())
    fxflops.count(model, X)
    RAN.clear()
    with torch.autocast("cpu", torch.bfloat16):
        fxflops.count(model, X)
    assert RAN


def test_what_a_formula_of_the_users_changes_is_counted_anew() -> None:
    model = Model(*layers())
    fxflops.count(model, X)
    assert fxflops.count(model, X, formulas={nn.Linear: lambda *_, **__: 7}).total_flops == 14
