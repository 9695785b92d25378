"""convention="pytorch_profiler": its documented LeNet5, and each rule as factors. The tool itself is no longer available."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import count
from tests.conventions.pool import built

CONVENTION = "pytorch_profiler"


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features = nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)
        self.feature_extractor = nn.Sequential(*features, nn.Conv2d(16, 120, 5), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.classifier(self.feature_extractor(x).flatten(1))
        return logits, F.softmax(logits, dim=1)


PRINTED = {
    "": 429_248,
    "feature_extractor": 418_328,
    "feature_extractor.0": 122_304,
    "feature_extractor.1": 0,
    "feature_extractor.2": 4_704,
    "feature_extractor.3": 241_600,
    "feature_extractor.5": 1_600,
    "feature_extractor.6": 48_120,
    "classifier": 10_920,
    "classifier.0": 10_080,
    "classifier.2": 840,
}
X = torch.ones(2, 6, 8, 8)
N = 2 * 6 * 8 * 8
SEQUENCE = torch.ones(5, 2, 3)
MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int]] = {
    "linear": (lambda: nn.Linear(8, 3), X, 2 * 6 * 8 * 8 * 3),
    "grouped": (lambda: nn.Conv2d(6, 4, 3, stride=2, groups=2), X, 2 * 4 * 3 * 3 * (3 * 9 + 1)),
    "no bias": (lambda: nn.Conv2d(6, 4, 3, padding=1, bias=False), X, 2 * 4 * 8 * 8 * 6 * 9),
    "one dim": (lambda: nn.Conv1d(6, 4, 3), X[:1, :, 0], 4 * 6 * (6 * 3 + 1)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3), X, N * 4 * 9 + 2 * 4 * 10 * 10),
    "relu": (nn.ReLU, X, N),
    "relu6": (nn.ReLU6, X, 0),
    "prelu": (nn.PReLU, X, N),
    "gelu": (nn.GELU, X, 0),
    "tanh": (nn.Tanh, X, 0),
    "softmax": (lambda: nn.Softmax(1), X, N),
    "batch norm": (lambda: nn.BatchNorm2d(6, affine=False), X, 2 * N),
    "layer norm": (lambda: nn.LayerNorm(8), X, 0),
    "max pool": (lambda: nn.MaxPool2d(2), X, N),
    "global pool": (lambda: nn.AdaptiveAvgPool2d(1), X, N),
    "upsampled to": (lambda: nn.Upsample((16, 12)), X, 16 * 12),
    "upsampled by": (lambda: nn.Upsample(scale_factor=2), X, N),
    "dropout": (nn.Dropout, X, 0),
    "rnn": (lambda: nn.RNN(3, 4), SEQUENCE, 5 * 2 * 4 * (3 + 4 + 1 + 1 + 1)),
    "gru": (lambda: nn.GRU(3, 4, bias=False), SEQUENCE, 5 * 2 * 4 * (3 * (3 + 4) + 7)),
    "lstm": (lambda: nn.LSTM(3, 4), SEQUENCE, 5 * 2 * 4 * (4 * (3 + 4 + 1 + 1) + 10)),
    "lstm, two layers": (
        lambda: nn.LSTM(3, 4, 2, bidirectional=True),
        SEQUENCE,
        2 * 5 * 2 * 4 * (4 * (3 + 4 + 2) + 10 + 4 * (8 + 4 + 2) + 10),
    ),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), SEQUENCE[0], 2 * 4 * (4 * (3 + 4 + 1 + 1) + 10)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16), X[0], 6 * 8 * 8 * 16 * 2),
}


class Calls(nn.Module):
    """A function in a module with or without a child."""

    def __init__(self, function: Callable[[torch.Tensor], Any], child: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        if child is not None:
            self.child = child

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_the_printed_rows() -> None:
    rows = count(LeNet5(), torch.ones(1, 1, 32, 32), convention=CONVENTION, strict=True).by_module()
    assert {path: rows[path].total.flops for path in PRINTED} == PRINTED


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    build, x, expected = MODULES[name]
    assert count(build(), x, convention=CONVENTION, strict=True).total_flops == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.linear(x, torch.ones(3, 8)), N * 3),
        (lambda x: F.conv2d(x, torch.ones(4, 6, 3, 3)), 2 * 4 * 6 * 6 * 6 * 9),
        (F.relu, N),
        (torch.relu, 0),
        (torch.Tensor.relu, 0),
        (lambda x: F.softmax(x, 1), N),
        (lambda x: torch.softmax(x, 1), 0),
        (lambda x: F.max_pool2d(x, 2), N),
        (lambda x: F.interpolate(x, size=(4, 4)), 16),
        (lambda x: x @ x, 0),
        (lambda x: x + x, 0),
    ],
)
def test_functions_are_seen_in_modules_without_children(function: Callable[[Any], Any], expected: int) -> None:
    assert count(Calls(function), X, convention=CONVENTION).total_flops == expected
    assert count(Calls(function, nn.Identity()), X, convention=CONVENTION).total_flops == 0


@pytest.mark.parametrize("name", ["resnet18", "vit", "lstm", "bert", "unet"])
def test_counted_again_it_is_the_same(name: str) -> None:
    model, args, kwargs = built(name)
    report = count(model, args, kwargs, convention=CONVENTION)
    base = report.recount("fxflops")
    assert report.complete
    assert base.recount(CONVENTION).total_flops == report.total_flops > 0
    assert base.total_macs == report.total_macs
