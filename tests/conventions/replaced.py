"""Further cases for comparing tools that replace functions of torch, and a way to undo the replacements that they leave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@contextmanager
def restored() -> Iterator[None]:
    """Restore the functions of torch, torch.nn.functional, Tensor and einops on exit, whatever a tool left there."""
    owners = (torch, F, torch.Tensor, *([sys.modules["einops"]] if "einops" in sys.modules else []))
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, known in zip(owners, before, strict=True):
            for name, value in known.items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)
        for name in set(vars(torch.Tensor)) - set(before[2]):
            delattr(torch.Tensor, name)


class Runs(nn.Module):
    """A function as a model; the given modules come before the inputs. It has a parameter because some tools need one."""

    def __init__(self, run: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(modules)
        self.parameter = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(*self.parts, x)


def applied(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)


def of(run: Callable[[torch.Tensor], Any], *shape: int) -> tuple[nn.Module, torch.Tensor]:
    """A model that applies a function to one tensor."""
    return Runs(run), torch.randn(shape)


def module(part: nn.Module, *shape: int) -> tuple[nn.Module, torch.Tensor]:
    """A model that applies a module to one tensor."""
    return Runs(applied, part), torch.randn(shape)


class Plain(nn.Linear):
    """A subclass that inherits its forward."""


W, V, B = torch.randn(4, 4), torch.randn(4), torch.randn(2, 4, 5)

CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": lambda: module(nn.Linear(4, 5), 2, 3, 4),
    "linear of a vector": lambda: module(nn.Linear(4, 5, bias=False), 4),
    "subclass": lambda: module(Plain(4, 5), 2, 4),
    "conv1d": lambda: module(nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), 2, 4, 9),
    "conv2d no bias": lambda: module(nn.Conv2d(4, 6, (3, 2), dilation=(1, 2), bias=False), 2, 4, 9, 8),
    "conv2d circular": lambda: module(nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), 2, 4, 9, 8),
    "conv3d": lambda: module(nn.Conv3d(2, 3, 2), 1, 2, 4, 4, 4),
    "F.conv2d": lambda: of(lambda x: F.conv2d(x, torch.randn(5, 4, 3, 3), torch.randn(5)), 1, 4, 6, 6),
    **{
        cls.__name__: lambda cls=cls: module(cls(), 2, 4, 3)
        for cls in (
            *(nn.ReLU, nn.ReLU6, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.PReLU, nn.Sigmoid, nn.Tanh, nn.Hardtanh),
            *(nn.Hardswish, nn.Mish, nn.Softplus, nn.SELU, nn.CELU, nn.LogSigmoid, nn.Identity, nn.Dropout, nn.Flatten),
        )
    },
    "Softmax": lambda: module(nn.Softmax(-1), 2, 4),
    "Softmax2d": lambda: module(nn.Softmax2d(), 2, 4, 3, 3),
    "Softmin": lambda: module(nn.Softmin(-1), 2, 4),
    "LogSoftmax": lambda: module(nn.LogSoftmax(-1), 2, 4),
    "F.relu": lambda: of(lambda x: F.relu6(F.elu(F.leaky_relu(F.silu(F.gelu(F.relu(x)))))), 2, 4),
    "F.softmax": lambda: of(lambda x: F.softmax(x, dim=-1), 2, 4),
    "torch.relu": lambda: of(lambda x: torch.relu(torch.softmax(x, -1)).softmax(-1).relu(), 2, 4),
    "BatchNorm1d": lambda: module(nn.BatchNorm1d(4), 5, 4),
    "BatchNorm2d plain": lambda: module(nn.BatchNorm2d(4, affine=False), 2, 4, 3, 3),
    "BatchNorm2d of the batch": lambda: module(nn.BatchNorm2d(4, track_running_stats=False), 2, 4, 3, 3),
    "BatchNorm3d": lambda: module(nn.BatchNorm3d(4), 2, 4, 3, 3, 3),
    "F.batch_norm": lambda: of(lambda x: F.batch_norm(x, None, None, training=True), 2, 4, 3),
    "LayerNorm": lambda: module(nn.LayerNorm(4), 2, 3, 4),
    "LayerNorm plain": lambda: module(nn.LayerNorm(4, elementwise_affine=False), 2, 3, 4),
    "F.layer_norm": lambda: of(lambda x: F.layer_norm(x, (4,), V), 2, 3, 4),
    "GroupNorm": lambda: module(nn.GroupNorm(2, 4), 2, 4, 3),
    "GroupNorm plain": lambda: module(nn.GroupNorm(2, 4, affine=False), 2, 4, 3),
    "F.group_norm": lambda: of(lambda x: F.group_norm(x, 2), 2, 4, 3),
    "InstanceNorm2d": lambda: module(nn.InstanceNorm2d(4), 2, 4, 3, 3),
    "InstanceNorm1d affine": lambda: module(nn.InstanceNorm1d(4, affine=True), 2, 4, 3),
    "F.instance_norm": lambda: of(lambda x: F.instance_norm(x, weight=V), 2, 4, 3),
    "RMSNorm": lambda: module(nn.RMSNorm(4), 2, 4),
    "LocalResponseNorm": lambda: module(nn.LocalResponseNorm(3), 2, 5, 4, 4),
    "F.local_response_norm": lambda: of(lambda x: F.local_response_norm(x, 2), 2, 5, 4),
    **{
        f"{name}{dims}d": lambda name=name, dims=dims: module(getattr(nn, f"{name}{dims}d")(2), 2, 3, *[6] * dims)
        for name in ("AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
        for dims in (1, 2, 3)
    },
    "MaxPool2d with indices": lambda: module(nn.MaxPool2d(3, 2, 1, return_indices=True), 2, 3, 7, 7),
    "F.pooling": lambda: of(lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 1)), 2, 3, 6, 6),
    "F.max_pool1d with indices": lambda: of(lambda x: F.max_pool1d(x, 2, return_indices=True), 2, 3, 6),
    "LPPool2d": lambda: module(nn.LPPool2d(2, 3), 2, 3, 6, 6),
    "LPPool1d inf": lambda: module(nn.LPPool1d(float("inf"), 3), 2, 3, 6),
    "F.interpolate": lambda: of(lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), 2, 3, 4, 4),
    "F.interpolate int": lambda: of(lambda x: F.interpolate(x, size=5), 2, 3, 4, 4),
    "F.interpolate factor": lambda: of(lambda x: F.interpolate(x, scale_factor=2), 2, 3, 4, 4),
    "F.interpolate area": lambda: of(lambda x: F.interpolate(x, scale_factor=2, mode="area"), 2, 3, 4, 4),
    "Embedding": lambda: of(lambda x: F.embedding((x > 0).long(), W), 3),
    "torch.matmul": lambda: of(lambda x: torch.matmul(x, W).matmul(W), 2, 3, 4),
    "matmul broadcast": lambda: of(lambda x: torch.matmul(x, B), 4, 4),
    "matmul of vectors": lambda: of(lambda x: (torch.matmul(x, V), torch.matmul(V, W), torch.matmul(V, V)), 3, 4),
    "operators": lambda: of(lambda x: (x @ W + 1) * 2 - x / 3, 3, 4),
    "mm, bmm": lambda: of(lambda x: (torch.mm(x[0], W).mm(W), torch.bmm(x, B).bmm(B.transpose(1, 2))), 2, 4, 4),
    "addmm": lambda: of(lambda x: (torch.addmm(x, x, W).addmm(x, W), torch.addmm(V, x, W, beta=0)), 3, 4),
    "baddbmm": lambda: of(lambda x: (torch.baddbmm(x, x, x).baddbmm(x, x), torch.addbmm(x[0], x, x)), 2, 4, 4),
    "add, mul": lambda: of(lambda x: torch.add(x, x, alpha=2).add(1).mul(x).add_(1).sub(1).mul_(2), 3, 4),
    "add, mul broadcast": lambda: of(lambda x: (torch.mul(x, V), torch.add(x[:, :, None], V), torch.mul(2, x)), 3, 4),
    "einsum": lambda: of(lambda x: torch.einsum("b i j, jk -> bik", x, W), 2, 3, 4),
    "einsum of three": lambda: of(lambda x: torch.einsum("bij,jk,kl->bil", x, W, W), 2, 3, 4),
    "einsum of many digits": lambda: of(lambda x: torch.einsum("ij,ij->i", x, x), 101, 123),
    "einsum ellipsis": lambda: of(lambda x: torch.einsum("...j,jk->...k", x, W), 2, 3, 4),
    "integers": lambda: of(lambda x: torch.add(x.long(), 1).mul(x.long()), 3, 4),
    "attention": lambda: of(lambda x: F.scaled_dot_product_attention(x, x, x), 2, 3, 4),
    "MultiheadAttention": lambda: (Runs(lambda part, x: part(x, x, x), nn.MultiheadAttention(8, 2)), torch.randn(5, 2, 8)),
    "MultiheadAttention alone": lambda: (
        Runs(lambda part, x: part(x, x, x, need_weights=False), nn.MultiheadAttention(8, 2)), torch.randn(5, 2, 8),
    ),
    "MultiheadAttention masked": lambda: (
        Runs(lambda part, x: part(x, x, x, attn_mask=torch.zeros(5, 5)), nn.MultiheadAttention(8, 2, kdim=8)),
        torch.randn(5, 2, 8),
    ),
    "TransformerEncoderLayer": lambda: module(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, 5, 8),
    "TransformerEncoderLayer of modules": lambda: module(
        nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU(), norm_first=True, batch_first=True), 2, 5, 8
    ),
    "RNN": lambda: module(nn.RNN(4, 5, num_layers=2), 6, 2, 4),
    "GRU bidirectional": lambda: module(nn.GRU(4, 5, num_layers=2, bidirectional=True, bias=False), 6, 2, 4),
    "LSTM projected": lambda: module(nn.LSTM(4, 5, proj_size=3), 6, 2, 4),
    "LSTM no batch": lambda: module(nn.LSTM(4, 5), 6, 4),
    "RNNCell": lambda: module(nn.RNNCell(4, 5), 2, 4),
    "GRUCell": lambda: module(nn.GRUCell(4, 5, bias=False), 2, 4),
    "LSTMCell": lambda: module(nn.LSTMCell(4, 5), 2, 4),
}  # fmt: skip
"""Functions, methods and modules, each with an input."""

CHANGING_SIZES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "even kernel, same": lambda: module(nn.Conv2d(4, 6, (2, 3), padding="same", dilation=(3, 2)), 1, 4, 6, 7),
    "odd kernel, same": lambda: module(nn.Conv1d(4, 6, 3, padding="same"), 1, 4, 6),
    "same, circular": lambda: module(nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular"), 1, 4, 6),
    "valid": lambda: module(nn.Conv1d(4, 6, 3, padding="valid"), 1, 4, 6),
    "ConvTranspose1d": lambda: module(nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, dilation=2), 2, 4, 5),
    "ConvTranspose2d": lambda: module(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False), 2, 4, 5, 5),
    "ConvTranspose3d": lambda: module(nn.ConvTranspose3d(2, 3, 2, stride=2, output_padding=1), 1, 2, 3, 3, 3),
    "F.conv_transpose2d": lambda: of(
        lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 2, 2), torch.ones(3)), 1, 4, 5, 5
    ),
    "Upsample": lambda: module(nn.Upsample(scale_factor=2), 1, 4, 5, 5),
    "Upsample to a size": lambda: module(nn.Upsample(size=(7, 8), mode="bilinear"), 1, 4, 5, 5),
    "UpsamplingNearest2d": lambda: module(nn.UpsamplingNearest2d(scale_factor=2), 1, 4, 5, 5),
}
"""Cases on which flops-profiler raises."""
