"""A number of numpy, or of a subclass of a Python number, must count like the plain number: in a call, in a layer, and in a
formula.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from tests.kinds.calls import Calls

X, IMAGE, IDS = torch.rand(4, 6), torch.rand(1, 4, 8, 8), torch.arange(4)


class Real(float):
    """A subclass of float, like those in fastai and other libraries."""


class Whole(enum.IntEnum):
    TWO = 2


REALS: dict[str, Callable[[Any], Any]] = {
    "addcmul": lambda v: torch.addcmul(X, X, X, value=v),
    "addcdiv": lambda v: torch.addcdiv(X, X, X, value=v),
    "alpha": lambda v: torch.add(X, X, alpha=v),
    "addmm": lambda v: torch.addmm(X, X @ X.T, X, beta=v, alpha=v),
    "baddbmm": lambda v: torch.baddbmm(X[None], X[None] @ X.T, X[None], beta=v),
    "product": lambda v: X * v,
    "power": lambda v: X**v,
    "compared": lambda v: v > X,
    "of integers": lambda v: IDS * v,
    "compared with integers": lambda v: IDS.lt(v),
    "norm": lambda v: X.norm(v),
    "dropout": lambda v: F.dropout(X, v),
    "leaky_relu": lambda v: F.leaky_relu(X, v),
    "interpolate": lambda v: F.interpolate(IMAGE, scale_factor=v * 4, mode="bilinear"),
    "isclose": lambda v: torch.isclose(X, X, rtol=v),
    "lerp": lambda v: torch.lerp(X, X, v),
    "clamp": lambda v: X.clamp(v, 1),
    "attention": lambda v: F.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, scale=v),
}
WHOLES: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda v: X[None].softmax(v),
    "sum": lambda v: X[None].sum(v),
    "sums": lambda v: X[None].sum(dim=(0, v)),
    "topk": lambda v: X.topk(v),
    "avg_pool": lambda v: F.avg_pool2d(IMAGE, v),
    "max_pool": lambda v: F.max_pool2d(IMAGE, (v, v)),
    "size": lambda v: F.interpolate(IMAGE, size=(v, v), mode="bilinear"),
    "stride": lambda v: F.conv2d(IMAGE, torch.ones(4, 4, 3, 3), stride=v),
    "groups": lambda v: F.conv2d(IMAGE, torch.ones(4, 2, 3, 3), groups=v),
    "group_norm": lambda v: F.group_norm(IMAGE, v),
    "diff": lambda v: X.diff(n=v),
    "matrix_power": lambda v: torch.matrix_power(X[:, :4], v),
    "fft": lambda v: torch.fft.fft(X, v),
    "stft": lambda v: torch.stft(X, 2 * v, return_complex=True),
    "cumsum": lambda v: X[None].cumsum(v),
    "glu": lambda v: F.glu(IMAGE, v),
    "chunk": lambda v: [part.exp() for part in X.chunk(v)],
}
LAYERS: dict[str, tuple[Callable[[Any], nn.Module], torch.Tensor]] = {
    "Linear": (lambda v: nn.Linear(3 * v, v), X),
    "LayerNorm": (lambda v: nn.LayerNorm(3 * v), X),
    "Conv2d": (lambda v: nn.Conv2d(2 * v, v, v, stride=v, groups=v), IMAGE),
    "MaxPool2d": (lambda v: nn.MaxPool2d(v), IMAGE),
    "AvgPool2d": (lambda v: nn.AvgPool2d(v, stride=v), IMAGE),
    "AdaptiveAvgPool2d": (lambda v: nn.AdaptiveAvgPool2d((v, v)), IMAGE),
    "Upsample": (lambda v: nn.Upsample(scale_factor=v, mode="bilinear"), IMAGE),
    "GroupNorm": (lambda v: nn.GroupNorm(v, 2 * v), IMAGE),
    "LocalResponseNorm": (lambda v: nn.LocalResponseNorm(v), IMAGE),
    "PixelShuffle": (lambda v: nn.Sequential(nn.PixelShuffle(v), nn.ReLU()), IMAGE),
    "LPPool2d": (lambda v: nn.LPPool2d(v, v), IMAGE),
}


def figures(model: nn.Module, *tensors: torch.Tensor) -> dict[str, Any]:
    """Return all counts of a report. The report goes through JSON, which cannot hold numpy's numbers."""
    report = fxflops.count(model, tensors)
    assert report.complete, report.missing
    counts = [report.total_flops, report.total_macs, report.total_int_ops]
    counts += [count for each in report.counted for count in each.cost]
    assert {type(count) for count in counts} == {int}
    figures: dict[str, Any] = json.loads(report.to_json())
    return {name: value for name, value in figures.items() if name.startswith("total")} | {"counts": counts}


@pytest.mark.parametrize("name", REALS)
def test_a_real_number(name: str) -> None:
    function = REALS[name]
    expected = figures(Calls(lambda x: function(0.5)), X)
    for value in (np.float64(0.5), np.float32(0.5), Real(0.5)):
        assert figures(Calls(lambda x, v=value: function(v)), X) == expected, type(value)


@pytest.mark.parametrize("name", WHOLES)
def test_a_whole_number(name: str) -> None:
    function = WHOLES[name]
    expected = figures(Calls(lambda x: function(2)), X)
    for value in (np.int64(2), np.int32(2), Whole.TWO):
        assert figures(Calls(lambda x, v=value: function(v)), X) == expected, type(value)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_whole_numbers(name: str) -> None:
    make, x = LAYERS[name]
    expected = figures(make(2), x)
    assert figures(make(np.int64(2)), x) == expected
    if name in ("MaxPool2d", "AvgPool2d"):  # one setting must not reuse the result of another
        pool = getattr(nn, name)
        both = nn.Sequential(pool(np.int64(2)), pool(np.int64(4)))
        plain = nn.Sequential(pool(2), pool(4))
        assert figures(both, x) == figures(plain, x)


@pytest.mark.parametrize("result", [np.int64(7), fxflops.Cost(muls=np.int64(3), adds=np.int32(4))])
def test_a_users_formula_returns_numpys_numbers(result: Any) -> None:
    report = fxflops.count(Calls(torch.exp), X, formulas={torch.exp: lambda input, *, out: result})
    assert report.total_flops == 7
    assert type(report.total_flops) is int
    assert json.loads(report.to_json())
