"""A model does the same under the observer's modes as without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, overrides
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

import fxflops
from fxflops.records.tensors import has_own_dispatch
from fxflops.torch_internals import fake_tensors


def vendored(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Like a function copied from torch and changed: it computes two products, torch's function of that name none."""
    if has_torch_function((x, weight)):
        return handle_torch_function(F.normalize, (x, weight), x)
    return (x @ weight) @ weight


def vendored_with_overrides(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if overrides.has_torch_function((x, weight)):
        return overrides.handle_torch_function(F.normalize, (x, weight), x)
    return (x @ weight) @ weight


def closed_over(times: int) -> Any:
    def vendored(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if has_torch_function((x, weight)):
            return handle_torch_function(F.normalize, (x, weight), x)
        for _ in range(times):
            x = x @ weight
        return x

    return vendored


class Net(nn.Module):
    def __init__(self, *functions: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.functions = functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.functions:
            x = function(x, self.weight)
        return x


@pytest.mark.parametrize(
    ("functions", "products"),
    [
        ([vendored], 2),
        ([vendored_with_overrides], 2),
        ([closed_over(3), closed_over(1), vendored], 6),
    ],
)
def test_a_function_that_was_copied_from_torch_runs_its_own_body(functions: list[Any], products: int) -> None:
    model, x = Net(*functions), torch.randn(4, 8)
    wanted = products * 4 * 8 * 8
    for report in (fxflops.count(model, x), fxflops.analyze(model, x, trace="record", repeats=0, progress=False)):
        assert report.total_macs == wanted
        assert report.complete
    assert torch.equal(Net(*functions)(x), x)  # its weight is the identity


class Swallows(nn.Module):
    """Runs its head if a value is as expected, and continues without the head if reading the value raises."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.body, self.head, self.error = nn.Linear(8, 8), nn.Linear(8, 2), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        try:
            if x.sum().item() == x.sum().item():
                x = self.head(x)
        except self.error:
            pass
        return x


@pytest.mark.parametrize("error", [Exception, RuntimeError])
def test_an_error_of_metas_that_the_model_catches_is_not_believed(error: type[Exception]) -> None:
    report = fxflops.count(Swallows(error), torch.randn(4, 8))
    assert report.total_macs == 4 * 8 * 8 + 4 * 8 * 2
    assert report.trace == "counted on real tensors"


class Probes(nn.Module):
    """Catches an error that real tensors raise too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = x @ torch.ones(3, 3)
        except RuntimeError:
            x = self.body(x)
        return x


def test_an_error_that_the_model_catches_of_its_own_is_believed() -> None:
    report = fxflops.count(Probes(), torch.randn(4, 8))
    assert report.total_macs == 4 * 8 * 8
    assert report.trace == "counted on the meta device"


class Wraps(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("cls", "own"), [(torch.Tensor, False), (nn.Parameter, False), (fake_tensors()[0], False), (Wraps, True)]
)
def test_a_class_that_computes_its_operators_itself(cls: type, own: bool) -> None:
    assert has_own_dispatch(cls) is own
