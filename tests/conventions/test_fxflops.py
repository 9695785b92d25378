"""convention="fxflops": the default. An op has the same number however it is written; torch_flops counts some differently."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.conventions import CONVENTIONS, GONE

aten = torch.ops.aten


class Runs(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("door", [fxflops.analyze, fxflops.count, fxflops.profile])
def test_it_is_the_default(door: Callable[..., Any]) -> None:
    assert inspect.signature(door).parameters["convention"].default == "fxflops"
    assert inspect.signature(fxflops.TorchFLOPsByFX).parameters["convention"].default == "torch_flops"
    assert next(iter(CONVENTIONS)) == "fxflops"
    assert [*CONVENTIONS][-len(GONE) :] == [*GONE]


@pytest.mark.parametrize(
    ("model", "of_torch_flops"),
    [
        (nn.MaxPool2d(3), 2),
        (nn.MaxPool2d((3, 3)), 8),
        (Runs(lambda x: F.max_pool2d(x, 3)), 2),
        (Runs(lambda x: torch.max_pool2d(x, (3, 3))), 8),
        (Runs(lambda x: aten.max_pool2d_with_indices(x, [3, 3])[0]), 8),
        (Runs(lambda x: F.max_pool2d(x, kernel_size=3, return_indices=True)[0]), 2),
    ],
)
def test_nine_elements_are_eight_comparisons_however_they_are_written(model: nn.Module, of_torch_flops: int) -> None:
    report = fxflops.count(model, torch.zeros(1, 2, 9, 12), strict=True)
    outputs = 2 * 3 * 4
    assert report.convention == "fxflops"
    assert report.total_flops == 8 * outputs
    assert report.recount("torch_flops").total_flops == of_torch_flops * outputs


def test_what_is_asserted_is_no_work() -> None:
    def asserting(x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[0] == 3, "three of them")
        return x + 1

    report = fxflops.count(Runs(asserting), torch.zeros(3))
    assert (report.total_flops, report.recount("torch_flops").total_flops) == (3, 3 + 1)


def test_resnet50_is_its_published_total_and_six_comparisons_more_for_each_output_of_its_pool() -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        report = fxflops.count(timm.create_model("resnet50"), torch.empty(1, 3, 224, 224))
    assert report.total_flops == 8_227_340_288 + (8 - 2) * 64 * 56 * 56
