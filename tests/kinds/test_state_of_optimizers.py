"""The predicted peak of a training step includes what the optimizer holds when the step begins, and what its step allocates and
frees.

The oracle is a dispatch mode that tracks the storages of the third step of a real training loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

import fxflops

from .live_bytes import Live


class Own(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.updates: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.update(p), alpha=group["lr"])

    def update(self, p: Any) -> torch.Tensor:
        raise NotImplementedError


class Replaced(Own):
    """Replaces its state by a new tensor in each step."""

    def update(self, p: Any) -> torch.Tensor:
        before = self.state[p].get("m", torch.zeros_like(p))
        self.state[p]["m"] = before * 0.9 + p.grad
        return self.state[p]["m"]


class Noted(Own):
    """Stores the update on the parameter until ``zero_grad``."""

    def update(self, p: Any) -> torch.Tensor:
        p.noted = p.grad * 2
        return p.noted

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.noted = None
        super().zero_grad(set_to_none)


class NotedWithState(Noted):
    def update(self, p: Any) -> torch.Tensor:
        state = self.state[p].setdefault("m", torch.zeros_like(p))
        return state.mul_(0.9).add_(super().update(p))


class OnParameter(Own):
    """Stores its state as an attribute of the parameter."""

    def update(self, p: Any) -> torch.Tensor:
        p.momentum = getattr(p, "momentum", torch.zeros_like(p))
        return p.momentum.mul_(0.9).add_(p.grad)


class Collected(Own):
    """Collects the updates in a list until ``zero_grad``."""

    def update(self, p: Any) -> torch.Tensor:
        self.updates.append(p.grad * 2)
        return self.updates[-1]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.updates.clear()
        super().zero_grad(set_to_none)


class Last(Own):
    """Keeps the latest updates of all parameters until the next step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        before, self.updates = self.updates, []
        super().step()
        del before

    def update(self, p: Any) -> torch.Tensor:
        self.updates.append(p.grad * 2)
        return self.updates[-1]


class Dropping(Own):
    """Drops the gradients in its own step."""

    def update(self, p: Any) -> torch.Tensor:
        gradient, p.grad = p.grad, None
        return gradient * 2


class Zeroing(Own):
    """Sets gradients to zero rather than dropping them."""

    def update(self, p: Any) -> torch.Tensor:
        return p.grad * 2

    def zero_grad(self, set_to_none: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.zero_()


OWN = [Replaced, Noted, OnParameter, NotedWithState, Collected, Last, Dropping]
TORCHS = [
    functools.partial(SGD, lr=0.1),
    functools.partial(SGD, lr=0.1, momentum=0.9),
    *(functools.partial(each, foreach=False) for each in (Adam, AdamW, Adadelta, NAdam, RMSprop)),
    functools.partial(Adam, amsgrad=True, foreach=True),
    functools.partial(Adagrad, foreach=False),
]


def reached(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from reached(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from reached(each)


def made(make: Callable[[Any], Optimizer], steps: int) -> tuple[nn.Module, torch.Tensor, Optimizer, Callable[[], None]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 48))
    x, optimizer = torch.randn(8, 32), make(model.parameters())

    def step() -> None:
        out = model(x)
        out.sum().backward()
        optimizer.step()
        del out

    for _ in range(steps):
        step()
        optimizer.zero_grad()
    return model, x, optimizer, step


@pytest.mark.parametrize("make", [*OWN, *TORCHS])
def test_the_peak_of_a_step(make: Any) -> None:
    model, x, optimizer, step = made(make, 2)
    live = Live([*model.parameters(), x, *reached(vars(optimizer)), *reached([*map(vars, model.parameters())])])
    with live:
        step()
    peak = pytest.approx(live.peak, abs=4)  # the loss, a single number
    model, x, optimizer, _ = made(make, 2)
    assert fxflops.count(model, x, backward=True, optimizer=optimizer).max_memory == peak
    new, x, optimizer, _ = made(make, 0)
    assert fxflops.count(new, x, backward=True, optimizer=optimizer).max_memory == peak
    assert fxflops.count(new, x, backward=True, optimizer=make).max_memory == peak


@pytest.mark.parametrize("make", [*OWN, Zeroing, *TORCHS])
def test_a_training_goes_on_as_without_a_count(make: Any) -> None:
    ends = []
    for counts in (False, True):
        model, x, optimizer, step = made(make, 2)
        if counts:
            fxflops.count(model, x, backward=True, optimizer=optimizer)
        step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
