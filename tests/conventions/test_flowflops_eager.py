"""convention="flowflops_eager": modules only, compared with the numbers in flowflops's documentation and tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import count

N, C, H, W = 2, 4, 6, 8


class Functions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.max_pool2d(x, 2)) + 1


class BasicBlock(nn.Module):
    """The block in flowflops's documentation."""

    def __init__(self, inplanes: int = 32, planes: int = 32) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(inplanes, planes, 3, padding=1), nn.BatchNorm2d(planes), nn.ReLU()
        self.fc = nn.Linear(64, planes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out += x
        return self.fc(self.relu(out))


MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "conv": (lambda: nn.Conv2d(C, 6, 3, groups=2, padding=1), N * H * W * 6 * (9 * 2 + 1)),
    "transposed": (lambda: nn.ConvTranspose2d(C, 6, 2, stride=2, bias=False), N * (2 * H) * (2 * W) * C * 4 * 6),
    "linear": (lambda: nn.Linear(W, 5), (N * C * H * W * 5 + 5) * N),
    "linear without bias": (lambda: nn.Linear(W, 5, bias=False), N * C * H * W * 5 * N),
    **{cls.__name__: (cls, N * C * H * W) for cls in (nn.ReLU, nn.PReLU, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.GELU)},
    **{cls.__name__: (cls, 0) for cls in (nn.SiLU, nn.Sigmoid, nn.Identity, Functions)},
    "max_pool": (lambda: nn.MaxPool2d(2), N * C * H * W),
    "adaptive_avg_pool": (lambda: nn.AdaptiveAvgPool2d(1), N * C * H * W),
    "adaptive_max_pool": (lambda: nn.AdaptiveMaxPool2d(1), 0),
    "batch_norm": (lambda: nn.BatchNorm2d(C), 2 * N * C * H * W),
    "batch_norm, not affine": (lambda: nn.BatchNorm2d(C, affine=False), N * C * H * W),
    "group_norm": (lambda: nn.GroupNorm(2, C), 2 * N * C * H * W),
    "instance_norm": (lambda: nn.InstanceNorm2d(C), N * C * H * W + 10 * N * C),
    "instance_norm, affine": (lambda: nn.InstanceNorm2d(C, affine=True), 2 * (N * C * H * W + 10 * N * C)),
    "layer_norm": (lambda: nn.LayerNorm(W), 0),
    "upsample": (lambda: nn.Upsample(scale_factor=2), C * 2 * H * 2 * W),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    build, expected = MODULES[name]
    assert count(build(), torch.randn(N, C, H, W), convention="flowflops_eager").total_flops == expected


def test_recurrent() -> None:
    # One step: both products, both biases, and 10 operations per hidden unit.
    step = 4 * 5 * 3 + 4 * 5 * 5 + 2 * 4 * 5 + 10 * 5
    report = count(nn.LSTM(3, 5, batch_first=True), torch.randn(2, 7, 3), convention="flowflops_eager")
    assert report.total_flops == 2 * 7 * step
    assert count(nn.LSTMCell(3, 5), torch.randn(2, 3), convention="flowflops_eager").total_flops == 2 * step


def test_the_documented_block() -> None:
    report = count(BasicBlock(), torch.randn(1, 32, 64, 64), convention="flowflops_eager")
    pixels = 32 * 64 * 64
    own = {path: row.own.flops for path, row in report.by_module().items()}
    assert own == {
        "": 0, "conv1": pixels * (9 * 32 + 1), "bn1": 2 * pixels, "relu": 2 * pixels, "fc": pixels * 32 + 32,
    }  # fmt: skip
