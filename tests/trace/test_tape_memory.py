"""Profiling keeps none of autograd's graph alive: a step allocates the same inside ``profile()`` as outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile as torch_profile
from torch.utils.checkpoint import checkpoint

import fxflops

X = torch.randn(2048, 32)
Step = Callable[[nn.Module], object]


class Blocks(nn.Module):
    """Sixteen blocks, which may be checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(16))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(32, 32), Blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) + self.teacher(x).detach()


def step(model: nn.Module) -> None:
    model(X).sum().backward()
    model.zero_grad()


def validate(model: nn.Module) -> None:
    """Run with gradients on, as many loops do by mistake. Each batch's graph is freed before the next."""
    for _ in range(4):
        model(X)


CASES: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "plain": (Blocks, step),
    "checkpointed": (lambda: Blocks(reentrant=False), step),
    "checkpointed, reentrant": (lambda: Blocks(reentrant=True), step),
    "distilled": (Distilled, step),
    "validated": (Blocks, validate),
}


def allocated(run: Callable[[], object]) -> int:
    """The most bytes that were allocated at one time during the run."""
    with torch_profile(profile_memory=True, acc_events=True) as watched:
        run()
    assert watched.profiler is not None
    live = most = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


@pytest.mark.parametrize("case", CASES)
def test_what_is_allocated_inside_is_what_is_allocated_outside(case: str) -> None:
    build, run = CASES[case]
    model = build()
    run(model)  # warm up
    outside = allocated(lambda: run(model))

    def inside() -> None:
        with fxflops.profile(model) as profiled:
            run(model)
        reports.append(profiled.report)

    reports: list[fxflops.Report] = []
    assert allocated(inside) <= 1.02 * outside
    there_before = sum(parameter.nbytes for parameter in model.parameters())
    assert reports[0].max_memory - there_before == pytest.approx(outside, rel=0.05)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_predicted_to_be_freed(reentrant: bool) -> None:
    model = Blocks(reentrant)
    step(model)
    there_before = sum(parameter.nbytes for parameter in model.parameters()) + X.nbytes
    report = fxflops.count(model, X, backward=True)
    predicted = report.max_memory
    assert report.trace == "counted on the meta device"
    assert predicted - there_before == pytest.approx(allocated(lambda: step(model)), rel=0.05)


@pytest.mark.parametrize("given", ["values", "a list"])
@pytest.mark.parametrize("affine", [True, False])
def test_a_first_batch_norm_makes_no_gradient_of_values_that_learn_nothing(given: str, affine: bool) -> None:
    """torch's meta kernel makes one anyway, as large as the input."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(8, affine=affine), nn.Conv2d(8, 8, 1)

        def forward(self, x: Any) -> torch.Tensor:
            return self.conv(self.norm(x if given == "values" else x[0]))

    x = torch.randn(2, 8, 9, 9)
    given_to = x if given == "values" else ([x],)
    predicted, ran = (run(Net(), given_to, backward=True) for run in (fxflops.count, fxflops.analyze))
    assert predicted.trace == "counted on the meta device"
    assert predicted.max_memory == ran.max_memory
