"""Fused optimizers against the textbook step on counting numbers, and against torch's own plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fxflops.ops import BASE, apply
from fxflops.records import Cost, Operation, Spec, specs_in
from fxflops.records.tensors import spec_of
from tests.oracle import Tally, numbers, tallying

SHAPE = (3, 4)


class Counting(TorchDispatchMode):
    """Add up the cost of every operator whose first tensor has the parameter's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        specs, options = spec_of(args), spec_of(kwargs or {})
        out = func(*args, **(kwargs or {}))
        entry = BASE.find(func)
        assert entry is not None, func
        operand = next(specs_in(specs), Spec(()))
        if tuple(operand) == SHAPE:
            self.cost = self.cost.plus(apply(entry, Operation(entry.op, func, specs, options, spec_of(out))))
        return out


def step_of(optimizer: type[torch.optim.Optimizer], steps: int = 1, device: str = "cpu", **options: Any) -> Cost:
    """The cost of the operators of the last of ``steps`` steps."""
    parameter = torch.nn.Parameter(torch.rand(SHAPE, device=device))
    made = optimizer([parameter], lr=0.1, **options)
    counting = Counting()
    for step in range(steps):
        parameter.grad = torch.rand(SHAPE, device=device)
        if step < steps - 1:
            made.step()
    with counting:
        made.step()
    return counting.cost


def adam(*, weight_decay: float = 0, decoupled: bool = False, amsgrad: bool = False, maximize: bool = False) -> Tally:
    with tallying() as tally:
        p, g, m, v = (numbers(*SHAPE) for _ in range(4))
        if maximize:
            g = np.exp(g)  # stands for its sign
        if weight_decay:
            p, g = (p * 0.9, g) if decoupled else (p, g + 0.1 * p)
        m = m + 0.1 * (g - m)
        v = 0.9 * v + (0.1 * g) * g
        if amsgrad:
            v = np.exp(v)  # stands for the larger one
        _ = p + 0.1 * (m / (np.sqrt(v) / 2 + 1e-8))
    return tally


OPTIONS = [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.1}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_and_adamw(cls: Any, options: dict[str, Any], device: str) -> None:
    decay = options.get("weight_decay", 0)
    expected = adam(**{**options, "weight_decay": decay, "decoupled": cls is torch.optim.AdamW})
    options = {"weight_decay": 0, "device": device, **options}
    assert expected == step_of(cls, fused=True, **options)
    if decay or cls is torch.optim.Adam:  # an older AdamW's plain loop multiplies by its decay even if that is 0
        assert expected == step_of(cls, foreach=False, fused=False, **options)
        assert expected == step_of(cls, foreach=True, **options)


SGD = [
    ({}, lambda p, g, buf: p + 0.1 * g),
    ({"weight_decay": 0.1}, lambda p, g, buf: p + 0.1 * (g + 0.1 * p)),
    ({"momentum": 0.9}, lambda p, g, buf: p + 0.1 * (0.9 * buf + g)),
    ({"momentum": 0.9, "dampening": 0.1}, lambda p, g, buf: p + 0.1 * (0.9 * buf + 0.9 * g)),
    ({"momentum": 0.9, "nesterov": True}, lambda p, g, buf: p + 0.1 * (g + 0.9 * (0.9 * buf + g))),
    ({"maximize": True}, lambda p, g, buf: p + 0.1 * np.exp(g)),
]


@pytest.mark.parametrize(("options", "textbook"), SGD, ids=[str(options) for options, _ in SGD])
def test_sgd(options: dict[str, Any], textbook: Any, device: str) -> None:
    with tallying() as tally:
        textbook(*(numbers(*SHAPE) for _ in range(3)))
    assert tally == step_of(torch.optim.SGD, 2, device, fused=True, **options)
    assert tally.flops == step_of(torch.optim.SGD, 2, device, foreach=False, fused=False, **options).flops


def test_the_first_momentum_is_the_gradient() -> None:
    with tallying() as tally:
        _ = numbers(*SHAPE) + 0.1 * numbers(*SHAPE)
    assert tally == step_of(torch.optim.SGD, fused=True, momentum=0.9)
    assert tally == step_of(torch.optim.SGD, foreach=False, momentum=0.9)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_adagrad(options: dict[str, Any]) -> None:
    with tallying() as tally:
        p, g, s = (numbers(*SHAPE) for _ in range(3))
        if "maximize" in options:
            g = np.exp(g)
        if "weight_decay" in options:
            g = g + 0.1 * p
        _ = p + 0.1 * (g / (np.sqrt(s + g * g) + 1e-10))
    assert tally == step_of(torch.optim.Adagrad, fused=True, **options)
    assert tally == step_of(torch.optim.Adagrad, foreach=False, fused=False, **options)


PLAIN = dict.fromkeys(("weight_decay", "momentum", "dampening"), 0.0) | dict.fromkeys(
    ("amsgrad", "maximize", "nesterov", "is_first_step"), False
)


def cost(name: str, *args: Any, out: Any = None, **options: Any) -> Cost:
    entry = BASE.get(f"aten::{name}")
    assert entry is not None
    return apply(entry, Operation(entry.op, name, args, options, out))


def test_unscaling_is_counted() -> None:
    lists = (Spec(SHAPE), Spec((5,)))
    with tallying() as tally:
        _ = numbers(12 + 5) / 2
    plain = cost("_fused_adam", *([lists] * 6), **PLAIN)
    scaled = cost("_fused_adam", *([lists] * 6), **PLAIN, grad_scale=Spec(()))
    assert tally.others == scaled.others - plain.others
    assert cost("_fused_adamw", *([lists] * 6), **PLAIN) == plain
    assert cost("_fused_sgd", *([lists] * 3), **PLAIN, grad_scale=Spec(())).others == 17
    assert cost("_fused_adagrad", *([lists] * 4), **PLAIN, grad_scale=Spec(())).others == 3 * 17


def test_gradient_scaling() -> None:
    """x * inv_scale and a check that x is finite. For the scale: was inf found, step + 1, enough steps, * growth, is it finite."""
    with tallying() as tally:
        for n in (12, 5):
            np.exp(numbers(n) * 2)
    assert tally == cost("_amp_foreach_non_finite_check_and_unscale", (Spec(SHAPE), Spec((5,))), Spec(()), Spec(()))
    assert cost("_amp_update_scale", Spec(()), Spec(()), Spec(()), 2.0, 0.5, 2000) == Cost(muls=1, adds=1, others=3)
