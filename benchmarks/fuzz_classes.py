"""Classes for random nets, in addition to torch's own: layers that override methods, autograd functions, containers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize


class Pair(NamedTuple):
    """A result that holds two tensors."""

    first: Any
    second: Any


class Scaled(nn.Linear):
    """A layer whose forward adds work to its base class's forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Computed(nn.Linear):
    """A layer whose weight is computed at each access."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        self.gain = nn.Parameter(torch.ones(o, 1))
        self.raw = nn.Parameter(self._parameters.pop("weight").detach())

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        return self.raw * self.gain

    @weight.setter
    def weight(self, value: Any) -> None:
        self.register_parameter("weight", value)


class Kept(nn.Linear):
    """A subclass that changes nothing."""


class Called(nn.Linear):
    """A layer whose __call__ does more than its forward."""

    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x).relu()


class Quiet(nn.LayerNorm):
    """A layer that replaces its base class's forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.weight


class Hyper(nn.Module):
    """A module whose inner layer has a plain tensor as its weight: the output of another layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.maker = nn.Linear(size, size)
        self.layer = nn.Linear(size, size, bias=False)
        del self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight = self.maker(x.reshape(-1, x.shape[-1])[: x.shape[-1]]).sum(0).expand(x.shape[-1], -1)
        return self.layer(x)


class Standardized(nn.Conv2d):
    """A layer that overrides a method that its base class's forward calls."""

    def _conv_forward(self, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        return super()._conv_forward(x, weight, bias)


class Reweighted1d(nn.Conv1d):
    """A one-dimensional convolution that overrides the same method."""

    def _conv_forward(self, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        return super()._conv_forward(x, weight * 0.5, None if bias is None else bias * 2)


class Residual(nn.Sequential):
    """A container with its own forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return x + out if out.shape == x.shape else out


class Sharp(nn.MultiheadAttention):
    """Attention whose queries are scaled first."""

    def forward(self, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(query * 2, *args, **kwargs)


class Attention(nn.Module):
    """Attention as libraries write it."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))


class Nested(nn.Module):
    """A module that takes and returns containers."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.layer = nn.Linear(i, o)

    def forward(self, d: Any) -> Any:
        out = self.layer(d["v"][0])
        return {"out": (out, Pair(out.detach(), None))}


class Halved(nn.Module):
    """A parametrization that makes a square weight symmetric."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 + x.T * 0.5


def parametrized(layer: nn.Module) -> nn.Module:
    """Return the layer with a symmetric weight."""
    parametrize.register_parametrization(layer, "weight", Halved())
    return layer


class Doubled(torch.autograd.Function):
    """An elementwise function with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2


class Product(torch.autograd.Function):
    """A matrix product with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        _, w = ctx.saved_tensors
        return grad @ w.mT, None
