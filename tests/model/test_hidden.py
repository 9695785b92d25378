"""A user's function mode around a count sees the model's own calls, and no calls of fxflops."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import fxflops

MODEL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
X = torch.ones(2, 4)


class Seen(TorchFunctionMode):
    """Records the names of the calls that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_mode_sees_no_read_of_ours(device: str, backward: bool) -> None:
    model, x = copy.deepcopy(MODEL).to(device), X.to(device)
    with Seen() as seen:
        fxflops.count(model, x, backward=backward)
    assert "__get__" not in seen.names, seen.names
    assert "linear" in seen.names
