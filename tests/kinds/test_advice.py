"""Advice in an error must be true: if the user follows it and makes the same call again, the call works.

Each case is a call that raises. If the error says that a batch dimension helps, the test repeats the call with a batch dimension.
If it does not, the test checks that a batch dimension would not have helped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxflops

ADVICE = "the model runs with a batch dimension"
Make = Callable[[], nn.Module]


class Refuses(torch.autograd.Function):
    """A function whose backward pass raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("there is no gradient")


class NeedsBatch(nn.Module):
    """A linear layer that needs three dimensions, followed by a function of its result."""

    def __init__(self, then: Callable[[Tensor], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 3:
            raise ValueError("three dimensions, please")
        return self.then(self.layer(x))


def _not_zero(y: Tensor) -> Tensor:
    if float(y.detach().sum()) != 0:
        raise ValueError("the values are wrong")
    return y


def _raising_optimizer(parameters: Any) -> torch.optim.Optimizer:
    class Raising(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no step today")

    return Raising(parameters, 0.1)


def _of_three_dimensions(parameters: Any) -> torch.optim.Optimizer:
    class Picky(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            if any(p.grad.dim() < 3 for group in self.param_groups for p in group["params"]):
                raise ValueError("three dimensions, please")

    return Picky(parameters, 0.1)


def _hooked(model: nn.Module, name: str, hook: Callable[..., None]) -> nn.Module:
    getattr(model, name)(hook)
    return model


def _checks(module: nn.Module, inputs: Any, *_: Any) -> None:
    if inputs[0].dim() < 3:
        raise ValueError("the hook needs three dimensions")


def _raises(*_: Any) -> None:
    raise ValueError("the hook raises")


def _convs(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *last)


IMAGE = (3, 8, 8)
CASES: dict[str, tuple[Make, tuple[int, ...]]] = {
    # The model, and the shape of an input for which it raises.
    "forward": (NeedsBatch, (2, 4)),
    "norm": (_convs, IMAGE),
    "backward too": (lambda: NeedsBatch(Refuses.apply), (2, 4)),
    "no gradient": (lambda: NeedsBatch(Tensor.detach), (2, 4)),
    "backward alone": (lambda: nn.Sequential(nn.Linear(4, 4), Applies()), (2, 4)),
    "values": (lambda: NeedsBatch(_not_zero), (2, 4)),
    "hook that checks": (lambda: _hooked(nn.Linear(4, 4), "register_forward_hook", _checks), (2, 4)),
    "hook before that checks": (lambda: _hooked(nn.Linear(4, 4), "register_forward_pre_hook", _checks), (2, 4)),
    "hook that raises": (lambda: _hooked(nn.Linear(4, 4), "register_forward_hook", _raises), (2, 4)),
    "backward hook": (lambda: _hooked(nn.Linear(4, 4), "register_full_backward_hook", _raises), (2, 4)),
    "backward hook too": (lambda: _hooked(NeedsBatch(), "register_full_backward_hook", _raises), (2, 4)),
    "traced": (lambda: torch.jit.trace(_convs().eval(), torch.randn(1, *IMAGE)), IMAGE),
    "traced with a scalar": (lambda: torch.jit.trace(_convs(Doubles()).eval(), torch.randn(1, *IMAGE)), IMAGE),
    "scripted": (lambda: torch.jit.script(_convs()), IMAGE),
    "one value": (lambda: nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4)), IMAGE),
    "other channels": (lambda: nn.Conv2d(5, 4, 3), IMAGE),
}


class Applies(nn.Module):
    """A layer whose backward pass raises."""

    def forward(self, x: Tensor) -> Tensor:
        return Refuses.apply(x)


class Doubles(nn.Module):
    """A layer with a Python number, which becomes a constant in a trace."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0


Call = Callable[[nn.Module, Tensor], fxflops.Report]
CALLS: dict[str, Call] = {
    "count": fxflops.count,
    "count backward": lambda model, x: fxflops.count(model, x, backward=True),
    "analyze": lambda model, x: fxflops.analyze(model, x, repeats=1),
    "analyze backward": lambda model, x: fxflops.analyze(model, x, backward=True, repeats=1),
    "SGD": lambda model, x: fxflops.count(model, x, backward=True, optimizer=torch.optim.SGD),
    "raising optimizer": lambda model, x: fxflops.count(model, x, backward=True, optimizer=_raising_optimizer),
    "picky optimizer": lambda model, x: fxflops.count(model, x, backward=True, optimizer=_of_three_dimensions),
    "TorchFLOPsByFX": lambda model, x: fxflops.TorchFLOPsByFX(model).propagate(x),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CASES)
def test_the_same_call_works_with_the_advice(name: str, call: str) -> None:
    make, shape = CASES[name]
    model, x = make(), torch.randn(shape)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    message = ""
    try:
        CALLS[call](model, x)
    except Exception as error:
        message = str(error)
    if ADVICE in message:
        CALLS[call](model, x.unsqueeze(0))
    elif message:
        assert not _helps(CALLS[call], model, x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def _helps(call: Call, model: nn.Module, x: Tensor) -> bool:
    try:
        call(model, x.unsqueeze(0))
    except Exception:
        return False
    return True
