"""A module is counted as a whole only if its class's formula describes what its forward does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxflops

Way = Callable[[nn.Module, torch.Tensor], fxflops.Report]
WAYS: dict[str, Way] = {
    "count": fxflops.count,
    "analyze": lambda model, x: fxflops.analyze(model, x, repeats=0, progress=False),
    "record": lambda model, x: fxflops.analyze(model, x, trace="record", repeats=0, progress=False),
}
IMAGES, ROWS = torch.randn(2, 3, 8, 8), torch.randn(5, 8)
CONV = 2 * 4 * 6 * 6 * 27
"""MACs of a 3x3 convolution from 3 to 4 channels on IMAGES."""
LINEAR = 5 * 8 * 16


class Standardized(nn.Conv2d):
    """Keeps the forward, but overrides a method that it calls."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return super()._conv_forward(input, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Factored(nn.Linear):
    """Its weight is computed by a property."""

    def __init__(self) -> None:
        super().__init__(8, 16)
        del self._parameters["weight"]
        self.a, self.b = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 8))

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        return self.a @ self.b


class LookedUp(nn.Linear):
    """Its weight is computed by ``__getattr__``."""

    def __init__(self) -> None:
        super().__init__(8, 16)
        del self._parameters["weight"]
        self.a, self.b = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 8))

    def __getattr__(self, name: str) -> torch.Tensor:
        return self.a @ self.b if name == "weight" and "b" in self._parameters else super().__getattr__(name)  # type: ignore[return-value]


class Flattened(nn.Module):
    """The layer's weight is a plain tensor, e.g. a view of one flat parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(16 * 8))
        self.layer = nn.Linear(8, 16)
        del self.layer.weight
        self.layer.weight = self.flat.view(16, 8)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Generated(nn.Module):
    """The layer's weight is another layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.layer = nn.Linear(4, 16 * 8), nn.Linear(8, 16)
        del self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight = self.generator(x[0, :4]).view(16, 8)
        return self.layer(x)


class OnTheInstance(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 4, 3)
        self._conv_forward = lambda input, weight, bias: F.conv2d(input, weight * 2, bias)  # type: ignore[method-assign]


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int, int]] = {
    # the filters' 108 elements: 26 adds and a division for each of 4 means, a subtraction for each element
    "a method of the subclass": (lambda: Standardized(3, 4, 3), IMAGES, CONV, 4 * 27 + 108),
    "a method on the instance": (OnTheInstance, IMAGES, CONV, 108),
    "a property": (Factored, ROWS, LINEAR + 16 * 8 * 2, 2 * 16 * 8 * 2 - 16 * 8),
    "__getattr__": (LookedUp, ROWS, LINEAR + 16 * 8 * 2, 2 * 16 * 8 * 2 - 16 * 8),
    "a plain tensor": (Flattened, ROWS, LINEAR, 0),
    "an output": (Generated, ROWS, LINEAR + 4 * 16 * 8, 2 * 4 * 16 * 8),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_what_comes_before_a_layers_product_is_counted(case: str, way: str) -> None:
    build, x, macs, extra = CASES[case]
    model = build()
    report = WAYS[way](model, x)
    plain = 2 * CONV if x is IMAGES else 2 * LINEAR  # with a bias each MAC is a multiplication and an addition
    assert (report.total_macs, report.total_flops) == (macs, plain + extra)
    assert report.complete


class Renamed(nn.Conv2d):
    """Overrides nothing that the forward uses."""

    def extra_repr(self) -> str:
        return "mine"

    def helper(self) -> int:
        return 1


def test_a_subclass_that_changes_nothing_is_counted_as_a_whole() -> None:
    calls = fxflops.count(nn.Sequential(Renamed(3, 4, 3)), IMAGES).calls
    assert [call.target for call in calls] == [Renamed]


class Doubled:
    """Patch a module's method or a function: its result [*, 16] is multiplied by a [16, 16] matrix."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.own = owner, name, getattr(owner, name)

    def __enter__(self) -> None:
        own = self.own

        @functools.wraps(own)
        def patched(*args: Any) -> Any:
            return own(*args) @ torch.ones(16, 16)

        setattr(self.owner, self.name, patched)

    def __exit__(self, *_: Any) -> None:
        setattr(self.owner, self.name, self.own)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("owner", "name"), [(nn.Linear, "forward"), (F, "linear")])
def test_what_is_put_in_the_place_of_torchs_own_is_counted(owner: Any, name: str, way: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16))
    for _ in range(2):
        assert WAYS[way](model, ROWS).total_macs == LINEAR
        with Doubled(owner, name):
            assert WAYS[way](model, ROWS).total_macs == LINEAR + 5 * 16 * 16


class Replaces(nn.Module):
    """Replaces its layer's forward for the second of three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.layer.forward = lambda x: x.repeat(1, 2)  # type: ignore[method-assign]
        y = y + self.layer(x)
        del self.layer.forward
        return y + self.layer(x)


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_that_is_replaced_in_the_run_is_the_one_that_counts(way: str) -> None:
    report = WAYS[way](Replaces(), ROWS)
    assert report.total_macs == 2 * LINEAR
    assert report.total_flops == 2 * 2 * LINEAR + 2 * 5 * 16
