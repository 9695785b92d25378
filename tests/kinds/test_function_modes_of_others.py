"""Kind: a user's function mode that replaces the calls of the model's code. The calls that it makes instead must be counted and
run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import fxflops

ROWS, WIDTH = 8, 16
LAYER = ROWS * WIDTH * WIDTH
X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


class Folded(TorchFunctionMode):
    """pytorch#147995: products with other shapes than in the model's code, here half as large."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight = args[0], args[1]
            return func(x[:, : WIDTH // 2], weight[:, : WIDTH // 2])
        return func(*args, **(kwargs or {}))


class Adapted(TorchFunctionMode):
    """Adds two products to each linear layer, as an adapter does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is F.linear:
            small = args[1][:4]
            out = out + args[0] @ small.t() @ small
        return out


class Cached(TorchFunctionMode):
    """Replaces the product by a copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].clone() if func is F.linear else func(*args, **(kwargs or {}))


class Looking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, tuple[Callable[[], TorchFunctionMode], int]] = {
    "other shapes": (Folded, LAYER // 2),
    "calls more": (Adapted, LAYER + 2 * ROWS * WIDTH * 4),
    "calls none": (Cached, 0),
    "looks only": (Looking, LAYER),
}


class Within(nn.Module):
    """Enables the mode in its own forward."""

    def __init__(self, model: nn.Module, make: Callable[[], TorchFunctionMode]) -> None:
        super().__init__()
        self.model, self.make = model, make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.make():
            out: torch.Tensor = self.model(x)
        return out


def macs(way: str, model: nn.Module) -> int | None:
    if way == "profile":
        with fxflops.profile(model) as p:
            model(X)
        return p.report.total_macs
    if way == "analyze":
        return fxflops.analyze(model, X, repeats=1, trace="record").total_macs
    return fxflops.count(model, X).total_macs


@pytest.mark.parametrize("way", ["count", "analyze", "profile"])
@pytest.mark.parametrize("where", ["around", "within", "with a default device"])
@pytest.mark.parametrize("name", MODES)
def test_what_a_mode_makes_is_counted(name: str, where: str, way: str) -> None:
    make, expected = MODES[name]
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
    if where == "within":
        assert macs(way, Within(model, make)) == expected
        return
    with torch.device("cpu") if where != "around" else nullcontext(), make():
        assert macs(way, model) == expected


@pytest.mark.parametrize("name", MODES)
def test_a_block_computes_what_it_computes_without(name: str) -> None:
    """This also holds if the model calls a torch function written in Python, which the mode sees as one call."""
    make, _ = MODES[name]
    attention = nn.MultiheadAttention(WIDTH, 2)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())
    with make():
        expected = model(X), attention(X, X, X)[0]
        with fxflops.profile(model):
            out = model(X), attention(X, X, X)[0]
    assert all(map(torch.equal, expected, out))
    assert not torch.overrides._get_current_function_mode_stack()  # neither fxflops's mode nor the user's is on
