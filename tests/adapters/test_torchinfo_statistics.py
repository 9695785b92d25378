"""Inputs and outputs that torchinfo accepts, and the figures it gives for them, compared with the adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchinfo as original
from torch import nn

from fxflops.adapters.torchinfo import summary


class Bundle:
    """An object that holds tensors, like torchvision's ImageList."""

    def __init__(self, tensors: torch.Tensor) -> None:
        self.tensors = tensors


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 7)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"first": None, "last": ({"inner": [Bundle(self.fc(x))]},)}


class OfNumpy(nn.Module):
    """A model that takes arrays and returns an array."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x: np.ndarray[Any, Any], scale: np.ndarray[Any, Any] | None = None) -> Any:
        return self.fc(torch.from_numpy(x)).detach().numpy()


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(4, 6), nn.Linear(6, 2)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.table(ids) + x)


class Deferred(nn.Module):
    """A parameter that the first forward creates."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: nn.Parameter = nn.UninitializedParameter()  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = nn.Parameter(torch.zeros(128))
        return x


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2), nn.LazyBatchNorm1d())


ARRAY = np.ones((2, 3), dtype=np.float32)
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "nested": (Nested, {"input_data": torch.ones(2, 10)}),
    "array": (OfNumpy, {"input_data": ARRAY}),
    "arrays": (OfNumpy, {"input_data": [ARRAY, np.ones(1)]}),
    "arrays by name": (OfNumpy, {"input_data": {"x": ARRAY}}),
    "legacy dtypes": (OfTwo, {"input_size": [(2, 3), (2, 3, 6)], "dtypes": [torch.LongTensor, torch.FloatTensor]}),
    "dtypes": (OfTwo, {"input_size": [(2, 3), (2, 3, 6)], "dtypes": [torch.long, torch.float]}),
    "dtypes by name": (OfTwo, {"input_size": [(2, 3), (1,)], "dtypes": ["torch.LongTensor", "torch.FloatTensor"]}),
    "lazy": (lazy, {"input_size": (2, 3, 8, 8)}),
    "lazy, not run": (lazy, {}),
    "deferred": (Deferred, {"input_data": torch.ones(2, 2)}),
    "deferred, not run": (Deferred, {}),
}


def facts_of(statistics: Any) -> list[Any]:
    rows = [
        (each.class_name, each.depth, each.input_size, each.output_size, each.num_params, each.macs)
        for each in statistics.summary_list
    ]
    sizes = statistics.total_input, statistics.total_param_bytes, statistics.total_output_bytes
    return [rows, statistics.input_size, sizes, statistics.total_params, statistics.total_mult_adds]


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:the number is a lower bound")  # the original does not notice numpy's work
@pytest.mark.parametrize("name", CASES)
def test_as_the_original_has_it(name: str) -> None:
    make, settings = CASES[name]
    # Without a device the original moves the model, but not its inputs, to a GPU if there is one.
    theirs = original.summary(make(), verbose=0, device="cpu", **settings)
    assert facts_of(summary(make(), verbose=0, **settings)) == facts_of(theirs)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_model_stays_lazy() -> None:
    model = lazy()
    assert summary(model, (2, 3, 8, 8), verbose=0).total_params == (3 * 9 + 1) * 4 + (4 * 6 * 6 + 1) * 2 + 2 * 2
    assert isinstance(model[0], nn.LazyConv2d)
    assert isinstance(model[2].weight, nn.UninitializedParameter)
    assert isinstance(summary(model, verbose=0).summary_list[1].module, nn.LazyConv2d)
