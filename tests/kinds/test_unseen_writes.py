"""Uninitialized memory may be asked for its shape, copied, and written to. Only reading it is an escape.

The oracle is the memory itself. Each case runs on ``torch.empty`` filled with NaN, and its result has a NaN exactly where it has
read uninitialized memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, linearize, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import fxflops

Case = Callable[[torch.Tensor], Any]
SHAPE = (2, 3)


def later(make: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """Return a case that makes a tensor from an uninitialized one, and then writes to the latter and reads it."""

    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        other = make(out)
        out.copy_(x)
        return out.sum() + torch.zeros_like(other).sum()

    return run


def filled(make: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    """Return a case that makes a tensor from an uninitialized one, never writes to the latter, and reads the result."""
    return lambda x: make(torch.empty_like(x)).sum() + x.sum()


def conv_backward(x: torch.Tensor, weight: torch.Tensor, *which: bool, transposed: bool = False) -> torch.Tensor:
    """Return the gradient of the input or of the weight of a convolution with one channel."""
    given = torch.ones(1, 1, weight.shape[-1] - 1 + x.shape[-1] if transposed else x.shape[-1] - weight.shape[-1] + 1)
    settings = [0], [1], [0], [1], transposed, [0], 1
    grads = torch.ops.aten.convolution_backward(given, x, weight, *settings, output_mask=[*which, False])
    return next(grad for grad in grads if grad is not None)


class Scripted(nn.Module):
    """A scripted module: its operators reach the observer from C++."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        other = torch.zeros_like(out) + torch.ones_like(out)
        moved = out.clone().to(torch.float64)
        moved.copy_(x)
        out.copy_(x)
        return other + out + moved


@cache
def scripted() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(Scripted())


WRITTEN: dict[str, Case] = {
    "zeros_like": later(torch.zeros_like),
    "ones_like": later(torch.ones_like),
    "full_like": later(lambda out: torch.full_like(out, 2.0)),
    "rand_like": later(torch.rand_like),
    "randn_like": later(torch.randn_like),
    "randint_like": later(lambda out: torch.randint_like(out, 5)),
    "empty_like": later(torch.empty_like),
    "by name": later(lambda out: torch.zeros_like(input=out)),
    "another dtype": later(lambda out: torch.zeros_like(out, dtype=torch.float64)),
    "new_zeros": later(lambda out: out.new_zeros(4)),
    "new_ones": later(lambda out: out.new_ones(4)),
    "new_full": later(lambda out: out.new_full((4,), 1.0)),
    "new_empty": later(lambda out: out.new_empty(4)),
    "new_empty_strided": later(lambda out: out.new_empty_strided((4,), (1,))),
    "operators": later(torch.ops.aten.zeros_like.default),
    "type_as": later(lambda out: torch.ones(3).type_as(out)),
    "to another": later(lambda out: torch.ones(3).to(out)),
    "expand_as": later(lambda out: torch.ones(3).expand_as(out)),
    "views": later(lambda out: out.view(-1)[1:].unsqueeze(0).detach()),
    "deepcopy": later(copy.deepcopy),
    "clone, written": lambda x: torch.empty_like(x).clone().copy_(x) + 1,
    "clone by name, written": lambda x: torch.clone(input=torch.empty_like(x)).copy_(x) + 1,
    "identity": later(nn.Identity()),
    "flatten": later(nn.Flatten(0)),
    "twice": later(lambda out: torch.zeros_like(torch.ones_like(out))),
    "read as zeros": filled(lambda out: torch.zeros_like(out) + 1),
    "read as type": filled(lambda out: torch.ones(SHAPE).type_as(out) + 1),
    "beta=0": lambda x: torch.baddbmm(torch.empty(1, 2, 2), x[None], x.T[None], beta=0),
    "beta=0 by name": lambda x: torch.baddbmm(input=torch.empty(1, 2, 2), batch1=x[None], batch2=x.T[None], beta=0),
    "beta=0, a vector": lambda x: torch.addmv(torch.empty(2), x, x[0], beta=0),
    "functional fill": filled(lambda out: torch.fill(out, 3.0)),
    "functional copy": lambda x: torch.ops.aten.copy.default(torch.empty_like(x), x) + 1,
    "functional uniform": filled(lambda out: torch.ops.aten.uniform.default(out)),
    "slice_scatter": lambda x: torch.slice_scatter(torch.empty_like(x), x, 0, 0, 2) + 1,
    "index_copy": lambda x: torch.index_copy(torch.empty_like(x), 0, torch.tensor([1, 0]), x) + 1,
    "scatter": lambda x: torch.empty(3).scatter(0, torch.tensor([2, 0, 1]), x[0]) + 1,
    "index_put": lambda x: torch.empty(3).index_put((torch.tensor([2, 0, 1]),), x[0]) + 1,
    "conv_backward of the weight": lambda x: conv_backward(x.view(1, 1, 6), torch.empty(1, 1, 2), False, True),
    "conv_backward of the input": lambda x: conv_backward(torch.empty(1, 1, 6), x[None, :1], True, False),
    "transposed, of the weight": lambda x: conv_backward(
        x.view(1, 1, 6), torch.empty(1, 1, 2), False, True, transposed=True
    ),
    "gradients of samples": lambda x: vmap(grad(lambda w, row: F.conv1d(row[None, None], w).sum()), (None, 0))(
        torch.ones(1, 1, 2), x
    ),
    "asked whether it is as large": lambda x: (
        torch.ops.aten.is_same_size(x, torch.empty_like(x)) + torch.ops.aten.is_same_size(torch.empty_like(x), x) + x
    ),
    "bernoulli of a shape": filled(lambda out: torch.bernoulli(out, 0.5)),
    "bernoulli of a shape by name": filled(lambda out: torch.bernoulli(input=out, p=0.5)),
    "bernoulli of a shape, a method": filled(lambda out: out.bernoulli(p=0.5)),
    "bernoulli of a shape, an operator": filled(lambda out: torch.ops.aten.bernoulli.p(out, 0.5)),
    "bernoulli of a shape and a tensor": filled(
        lambda out: torch.ops.aten.bernoulli.Tensor(out, torch.full(SHAPE, 0.5))
    ),
    **{
        f"{name} under vmap, {randomness}": lambda x, drop=drop, randomness=randomness: vmap(
            lambda row: drop(row, 0.5, True), randomness=randomness
        )(torch.stack([x, x]))
        for name, drop in {
            "dropout": F.dropout,
            "alpha_dropout": F.alpha_dropout,
            "dropout1d": F.dropout1d,
            "feature_alpha_dropout": F.feature_alpha_dropout,
        }.items()
        for randomness in ("different", "same")
    },
    "dropout in place under vmap": lambda x: vmap(
        lambda row: F.dropout(row * 1, 0.5, True, inplace=True), randomness="different"
    )(x),
    "linearize": lambda x: linearize(lambda y: torch.tanh(y @ torch.ones(3, 3)), x)[1](torch.ones_like(x)),
    "scripted": lambda x: scripted()(x),
    "in place": lambda x: torch.empty_like(x).normal_() + 1,
    "out=": lambda x: torch.add(x, 1, out=torch.empty_like(x)) + 1,
}
READ: dict[str, Case] = {
    "added": filled(lambda out: out + 1),
    "by name": filled(lambda out: torch.add(input=out, other=1)),
    "after zeros_like": filled(lambda out: torch.zeros_like(out) + out),
    "after type_as": filled(lambda out: torch.ones(SHAPE).type_as(out) * out),
    "cloned": filled(lambda out: out.clone() + 1),
    "cloned by name": filled(lambda out: torch.clone(input=out) + 1),
    "moved": filled(lambda out: out.to(torch.float64) + 1),
    "stacked": filled(lambda out: torch.stack([out, out])),
    "where": filled(lambda out: torch.where(torch.zeros(SHAPE, dtype=torch.bool), torch.ones(SHAPE), out)),
    "beta=1": lambda x: torch.addmv(torch.empty(2), x, x[0], beta=1),
    "beta=0, but a factor": lambda x: torch.addmv(torch.ones(2), torch.empty(2, 3), x[0], beta=0),
    "scattered from": lambda x: torch.zeros(3).scatter(0, torch.tensor([2, 0, 1]), torch.empty(3)) + 1,
    "accumulated into": lambda x: torch.empty(3).index_put((torch.tensor([2, 0, 1]),), x[0], accumulate=True) + 1,
    "added up into": lambda x: torch.empty(3).scatter_add(0, torch.tensor([2, 0, 1]), x[0]) + 1,
    "conv_backward of the input": lambda x: conv_backward(x.view(1, 1, 6), torch.empty(1, 1, 2), True, False),
    "conv_backward of the weight": lambda x: conv_backward(torch.empty(1, 1, 6), x[None, :1], False, True),
    "a layer": filled(lambda out: nn.Linear(3, 3)(out)),
    "after a question": filled(lambda out: out + torch.ops.aten.is_same_size(out, out)),
}
NOT_DIFFERENTIABLE = [
    *map(WRITTEN.__getitem__, ("functional copy", "out=")),
    *(case for cases in (WRITTEN, READ) for name, case in cases.items() if "of the " in name or "samples" in name),
]
"""Cases that torch cannot differentiate, or whose second derivatives read more memory."""


class Runs(nn.Module):
    def __init__(self, run: Case) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(x)


class Poisoned(TorchDispatchMode):
    """Fills uninitialized memory with NaN."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "empty" in func._schema.name and out.is_floating_point():
            torch.ops.aten.fill_(out, float("nan"))
        return out


def counted(run: Case, x: torch.Tensor) -> fxflops.Report:
    return fxflops.count(Runs(run), x)


def backward(run: Case, x: torch.Tensor) -> fxflops.Report:
    def both(x: torch.Tensor) -> torch.Tensor:
        return run(x.detach() if run in NOT_DIFFERENTIABLE else x).sum() + x.sum()  # type: ignore[no-any-return]

    return fxflops.count(Runs(both), x.clone().requires_grad_(True), backward=True)


def analyzed(run: Case, x: torch.Tensor) -> fxflops.Report:
    return fxflops.analyze(Runs(run), x, trace="record", repeats=0, progress=False)


def profiled(run: Case, x: torch.Tensor) -> fxflops.Report:
    with fxflops.profile() as p:
        run(x)
    return p.report


WAYS = [counted, backward, analyzed, profiled]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Attempted to insert a get_attr"
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_not_read_is_no_escape(name: str, way: Any) -> None:
    run, x = WRITTEN[name], torch.ones(SHAPE)
    with Poisoned():
        assert not run(x).isnan().any()
    report = way(run, x)
    assert [(missing.op, missing.calls) for missing in report.missing] == []
    assert report.complete


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_an_escape(name: str, way: Any) -> None:
    run, x = READ[name], torch.ones(SHAPE)
    with Poisoned():
        assert run(x).isnan().any()
    report = way(run, x)
    assert [missing.op for missing in report.missing] == ["unseen write to torch.empty"]
    assert not report.complete
