"""Traces of torch before 2.1 do not show numbers among the arguments. Their operators must count as in the full trace, or be listed
as missing.

The oracle is the same trace of a real run, with everything that torch.profiler writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxflops

Draw = Callable[[], tuple[nn.Module, Tensor]]


class Residual(nn.Module):
    """Two branches with different strides and channels. The second begins before the first ends."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1))
        self.short = nn.Conv2d(4, 8, 1, 2)
        self.first = nn.Conv2d(3, 4, 7, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        y = self.long(x)
        return (y + self.short(x)).relu()


class Attends(nn.Module):
    """Token embeddings, a Transformer layer, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.classes = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.layer(self.tokens(x)))


def _frozen() -> tuple[nn.Module, Tensor]:
    """Return a model whose first convolution has no gradients, and whose second has gradients of its input and bias only."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 6, 1))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model, torch.randn(2, 3, 9, 8)


DRAWS: dict[str, Draw] = {
    "linear": lambda: (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(4, 8)),
    "residual": lambda: (Residual(), torch.randn(2, 3, 33, 32)),
    "depthwise": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.ReLU6(), nn.Conv2d(8, 6, 1), nn.Hardswish()),
        torch.randn(2, 8, 17, 16),
    ),
    "dilated": lambda: (
        nn.Sequential(nn.Conv1d(4, 8, 3, 2, 2, dilation=2, groups=2), nn.LeakyReLU(), nn.Conv1d(8, 8, 4)),
        torch.randn(2, 4, 32),
    ),
    "three dimensions": lambda: (nn.Sequential(nn.Conv3d(2, 4, (1, 3, 2), (1, 2, 2))), torch.randn(1, 2, 4, 9, 8)),
    "transposed": lambda: (
        nn.Sequential(nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, 2, output_padding=1)),
        torch.randn(2, 6, 5, 7),
    ),
    "pooled": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 5), nn.MaxPool2d(2), nn.BatchNorm2d(8), nn.AvgPool2d(2), nn.Flatten()),
        torch.randn(2, 3, 16, 16),
    ),
    "attention": lambda: (Attends(), torch.randint(0, 50, (2, 8))),
    "recurrent": lambda: (nn.LSTM(8, 16), torch.randn(5, 2, 8)),
    "frozen": _frozen,
}


def _trace(draw: Draw, path: Path, training: bool) -> None:
    torch.manual_seed(0)
    model, x = draw()
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        with torch.set_grad_enabled(training):
            out = model(x)
        out = out if isinstance(out, Tensor) else out[0]
        if training:
            out.sum().backward()
    profiler.export_chrome_trace(str(path))


def _aged(path: Path, old: Path) -> None:
    """Write the trace as torch 2.0 does: without numbers and strides, and with lists of numbers that look like None."""
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        args: dict[str, Any] = event.get("args") or {}
        args.pop("Concrete Inputs", None)
        args.pop("Input Strides", None)
        types = args.get("Input type")
        if types:
            args["Input type"] = ["" if each == "ScalarList" else each for each in types]
            dims = zip(types, args["Input Dims"], strict=True)
            args["Input Dims"] = [[] if each == "TensorList" else shape for each, shape in dims]
    old.write_text(json.dumps(content))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", DRAWS)
def test_each_operator_is_as_in_the_whole_trace_or_listed(name: str, training: bool, tmp_path: Path) -> None:
    whole, old = tmp_path / "whole.json", tmp_path / "old.json"
    _trace(DRAWS[name], whole, training)
    _aged(whole, old)
    full, report = fxflops.read_trace(whole), fxflops.read_trace(old)
    for phase in ("forward", "backward"):
        known, rows = full.by_operator(phase), report.by_operator(phase)
        for op in {*rows} - {missing.op for missing in report.missing}:
            assert rows[op].macs <= known[op].macs
            assert rows[op].flops <= known[op].flops
        lost = {op for op in known if op not in rows or rows[op].flops < known[op].flops}
        assert len(lost) <= len(report.missing)
    if report.complete:
        assert (report.total_flops, report.total_backward_flops) == (full.total_flops, full.total_backward_flops)
    for missing in report.missing:
        assert "Error" not in missing.why


@pytest.mark.parametrize(
    "name", ["linear", "residual", "depthwise", "dilated", "three dimensions", "transposed", "frozen"]
)
def test_products_and_convolutions_are_known(name: str, tmp_path: Path) -> None:
    whole, old = tmp_path / "whole.json", tmp_path / "old.json"
    _trace(DRAWS[name], whole, training=True)
    _aged(whole, old)
    full, report = fxflops.read_trace(whole), fxflops.read_trace(old)
    assert full.total_macs > 0
    assert (report.total_macs, report.total_backward_macs) == (full.total_macs, full.total_backward_macs)
