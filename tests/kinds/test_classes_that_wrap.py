"""Tensor subclasses that wrap other tensors and compute in their own ``__torch_dispatch__``: their memory is the wrapped tensors'
memory.

The oracle is a dispatch mode that tracks storages, including those of the operators that a subclass calls internally.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.masked import as_masked_tensor, masked_tensor
from torch.utils._pytree import tree_leaves, tree_map

import fxflops

from .live_bytes import Live

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # MaskedTensor warns each time that it is a prototype
    pytest.mark.usefixtures("no_collector"),  # its reductions leave reference cycles
]


class Wrapper(torch.Tensor):
    """Holds a tensor and copies the result of each operator, as quantized classes and logging wrappers do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Wrapper) else t, (args, kwargs or {}))
        return tree_map(lambda t: Wrapper(t.clone()) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


class LiveWithin(Live):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and type(tensor) not in (torch.Tensor, nn.Parameter):
                with self:
                    return type(tensor).__torch_dispatch__(func, types, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)


class Between(nn.Module):
    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(32, 32), nn.Linear(32, 32), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(x)))


def masked(function: Callable[[Any], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: function(masked_tensor(y.detach(), y > 0))


BETWEEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number": masked(lambda m: (m * 2).get_data()),
    "squared": masked(lambda m: (m * m).get_data()),
    "filled": masked(lambda m: (m * 2).to_tensor(0.0)),
    "several": masked(lambda m: ((m * 2).exp() + m).get_data()),
    "its mask": masked(lambda m: torch.where(m.get_mask(), m.get_data(), 0.0)),
    "a sum": masked(lambda m: m.sum(1).to_tensor(0.0)[:, None].expand(-1, 32).contiguous()),
    "a mean": masked(lambda m: m.mean(0).to_tensor(0.0).expand(32, 32).contiguous()),
    "a largest one": masked(lambda m: m.amax(1).to_tensor(0.0)[:, None].expand(-1, 32).contiguous()),
    "of its tensor": lambda y: as_masked_tensor(y.detach(), y > 0).sigmoid().get_data(),
    "a class of the user's": lambda y: (Wrapper(y.detach()) * 2).inner,
    "such a class, twice": lambda y: ((Wrapper(y.detach()) * 2).exp() + 1).inner,
}


@pytest.mark.parametrize("name", BETWEEN)
def test_the_peak_is_of_the_wrapped_tensors(name: str) -> None:
    model, x = Between(BETWEEN[name]), torch.randn(32, 32)
    with LiveWithin([*model.parameters(), x]) as live, torch.no_grad():
        model(x)
    assert fxflops.count(model, x).max_memory == live.peak
    assert fxflops.analyze(model, x, repeats=0, progress=False).max_memory == live.peak


@pytest.mark.parametrize("name", ["a number", "squared", "filled", "its mask", "a sum", "a class of the user's"])
def test_the_peak_of_a_training_step(name: str) -> None:
    model, x = Between(BETWEEN[name]), torch.randn(32, 32)
    with LiveWithin([*model.parameters(), x]) as live:
        out = model(x)  # kept until the end, as by a caller of backward
        out.sum().backward()
    model.zero_grad()
    report = fxflops.count(model, x, backward=True, mode="as_is")
    assert report.max_memory == pytest.approx(live.peak, abs=8)  # the loss and its gradient are numbers
