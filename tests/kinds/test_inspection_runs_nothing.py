"""Inspecting a model must run no operators, neither those that printing a graph would run nor any other.

The oracles are a dispatch mode of this file, which sees the operators that run with and without fxflops, and torch's
FlopCounterMode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fxflops

# torch announces the end of TorchScript, and warns when a traced size becomes a constant.
pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Seen(TorchDispatchMode):
    """Records the operators that run while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """A linear layer and a step after it. Each step puts another kind of constant into a traced graph."""

    def __init__(self, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(8, 8), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self.layer(x), x)


class Branches(nn.Module):
    """If scripted, its graph has blocks inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if x.size(0) > 1:
                x = self.layer(x) * 2.0 + 1
        return x


def block() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 8))


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "times a float": lambda y, x: y * 2.0,
    "plus an int": lambda y, x: y + 1,
    "an int less": lambda y, x: 1 - y,
    # Complex tensors only: once TorchScript has optimized a product of a real tensor and a complex number, its gradient raises.
    "times a complex number": lambda y, x: torch.view_as_real(torch.complex(y, y) * (1 + 2j)).sum(-1),
    "view by a size": lambda y, x: y.view(x.size(0) * 8),
    "reshape by half a size": lambda y, x: y.reshape(y.shape[0] // 2, 2, -1),
    "divided by a size": lambda y, x: y / y.numel(),
    "a constant tensor": lambda y, x: y * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    "a constant of no dims": lambda y, x: y * torch.tensor(2.0),
    "a constant index": lambda y, x: y[:, torch.tensor([1, 2])],
    "a constant mask": lambda y, x: y.masked_fill(torch.tensor([True, False] * 4), -1e9),
    "a constant matrix": lambda y, x: y @ torch.ones(8, 8),
    "an empty constant": lambda y, x: y * torch.tensor([]).sum(),
    "where": lambda y, x: torch.where(y > 0, y, 0.5),
    "a bfloat16 constant": lambda y, x: y.to(torch.bfloat16) * torch.tensor(2, dtype=torch.bfloat16),
}


def traced(model: nn.Module, x: torch.Tensor = X) -> tuple[nn.Module, torch.Tensor]:
    return torch.jit.trace(model.eval(), x, check_trace=False), x


def frozen(model: nn.Module, x: torch.Tensor = X) -> tuple[nn.Module, torch.Tensor]:
    return torch.jit.freeze(traced(model, x)[0]), x


IMAGE = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
PROGRAMS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    **{f"traced: {name}": lambda step=step: traced(Net(step)) for name, step in STEPS.items()},
    **{f"frozen: {name}": lambda step=step: frozen(Net(step)) for name, step in STEPS.items()},
    "scripted with branches": lambda: (torch.jit.script(Branches()), X),
    "a frozen script with branches": lambda: (torch.jit.freeze(torch.jit.script(Branches().eval())), X),
    "traced images": lambda: traced(block(), IMAGE),
    "a traced part": lambda: (nn.Sequential(nn.Linear(8, 8), traced(Net(STEPS["times a float"]))[0]), X),
    "a traced part in a traced model": lambda: traced(
        nn.Sequential(nn.Linear(8, 8), traced(Net(STEPS["plus an int"]))[0], nn.Linear(8, 4))
    ),
    "not scripted": lambda: (Branches(), X),
    "torch.fx": lambda: (torch.fx.symbolic_trace(Net(STEPS["times a float"])), X),
    "torch.export": lambda: (torch.export.export(Net(STEPS["times a float"]), (X,)).module(), X),
}


@pytest.fixture(params=PROGRAMS, scope="module")
def program(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return PROGRAMS[request.param]()


def products_of(model: nn.Module, x: torch.Tensor) -> float:
    """Return the multiply-accumulates that torch counts in the model's own run."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), unoptimized():
        model(x)
    return counter.get_total_flops() / 2


def unoptimized() -> Any:
    """Disable TorchScript's optimizer, which runs operators of its own in the first calls."""
    return torch.jit.optimized_execution(False)


@pytest.mark.parametrize("count", [fxflops.count, fxflops.analyze])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "with backward"])
def test_a_program_is_counted_as_it_runs(program: Any, count: Any, backward: bool) -> None:
    model, x = program
    x = x.clone().requires_grad_(backward)  # a frozen program has no parameters
    report = count(model, x, backward=backward)
    assert (report.total_macs, report.complete) == (products_of(model, x), True)


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
def test_a_profiled_program_runs_the_operators_that_it_runs_alone(program: Any, detail: Any) -> None:
    model, x = program
    with torch.no_grad(), unoptimized():
        with Seen() as alone:
            model(x)
        with Seen() as profiled, fxflops.profile(model, detail=detail):
            model(x)
    assert profiled.operators == alone.operators


def test_the_operators_of_onednn_are_still_found() -> None:
    model = torch.jit.optimize_for_inference(traced(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), IMAGE)[0])
    hidden = [line for line in str(model.inlined_graph).split() if line.lower().startswith("prim::mkldnn")]
    report = fxflops.count(model, IMAGE)
    assert not report.complete
    assert any(name.partition("(")[0] == missing.op for name in hidden for missing in report.missing)


def test_attention_has_its_products_in_a_traced_program() -> None:
    torch.manual_seed(0)
    model, x = traced(Net(lambda y, x: F.scaled_dot_product_attention(y.view(1, 2, 1, 8), *[y.view(1, 2, 1, 8)] * 2)))
    # 8 x 8 MACs for each of 2 rows. Then 2 heads with one query and one key each: 8 MACs for the score and 8 for the weighted
    # value.
    assert fxflops.count(model, x).total_macs == 2 * 8 * 8 + 2 * (8 + 8)
