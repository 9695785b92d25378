"""convention="flowflops_graph": operators by their input shapes, compared with flowflops's documentation and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import count

N, C, H, W = 2, 4, 6, 8
SAMPLE = C * H * W


class Runs(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(x)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


CASES: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "conv": (lambda x: F.conv2d(x, ones(6, 2, 3, 3), ones(6), padding=1, groups=2), H * W * 6 * (9 * 2 + 1)),
    "conv stride": (lambda x: F.conv2d(x, ones(6, C, 3, 3), stride=2), 2 * 3 * 6 * 9 * C),
    "conv of the same size": (lambda x: F.conv2d(x, ones(6, C, 3, 3), padding="same"), H * W * 6 * 9 * C),
    "conv with dilation, as without": (lambda x: F.conv2d(x, ones(6, C, 3, 3), dilation=2), 4 * 6 * 6 * 9 * C),
    "linear": (lambda x: F.linear(x, ones(5, W), ones(5)), N * SAMPLE * 5 + 5),
    "linear without bias": (lambda x: F.linear(x, ones(5, W)), N * SAMPLE * 5),
    "matmul": (lambda x: x @ ones(W, 5), N * SAMPLE * W),
    "batch_norm": (lambda x: F.batch_norm(x, ones(C), ones(C)), 2 * SAMPLE),
    "instance_norm": (lambda x: F.instance_norm(x), SAMPLE + 10 * C),
    "max_pool": (lambda x: F.max_pool2d(x, 2), SAMPLE),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 1), SAMPLE),
    "activations": (lambda x: F.silu(F.elu(F.relu6(F.leaky_relu(F.relu(x))))).sigmoid(), 6 * SAMPLE),
    "uncounted": (lambda x: F.gelu(x).softmax(-1).flatten(1).sqrt().var(), 0),
    "sum of two": (lambda x: x + x, N * SAMPLE),
    "product with a larger": (lambda x: ones(N, C, 1, 1) * x, N * SAMPLE),
    "product with a smaller": (lambda x: x * ones(N, C, 1, 1), N * C),
    "with a number": (lambda x: (2 * x - 1) / 3, 3 * SAMPLE),
    "mean": (lambda x: x.mean((2, 3)), SAMPLE + C),
    "sum": (lambda x: x.sum((2, 3)), SAMPLE),
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    run, expected = CASES[name]
    report = count(Runs(run), torch.randn(N, C, H, W), convention="flowflops_graph")
    assert report.total_flops == expected
    assert report.total_macs == report.recount("fxflops").total_macs


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(C, 6, 3, padding="same"),
        nn.BatchNorm2d(C),
        nn.ReLU6(),
        nn.MaxPool2d(2),
        nn.Linear(W, 5),
        nn.GroupNorm(2, C),
    ],
    ids=lambda module: type(module).__name__,
)
def test_of_one_sample_a_layer_costs_the_same_in_both_modes(module: nn.Module) -> None:
    report = count(module, torch.randn(1, C, H, W), convention="flowflops_graph")
    assert report.total_flops == report.recount("flowflops_eager").total_flops > 0
