"""convention="ptflops": the number of ptflops 0.7.5's own run, on the models of the pool and op by op."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from ptflops import get_model_complexity_info
from torch import nn

from fxflops import Report, count
from tests.conventions.pool import POOL, Runs, copied, counted, lent

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


def theirs(model: nn.Module, args: Any, kwargs: Any = None) -> int:
    """ptflops's number for a run. With keyword inputs only, it does not divide by the batch size."""
    names = list(inspect.signature(model.forward).parameters)
    inputs = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    with redirect_stdout(io.StringIO()) as printed:
        macs, _ = get_model_complexity_info(
            copied(model)[0], (1,), print_per_layer_stat=False, as_strings=False, input_constructor=lambda _: inputs
        )
    assert macs is not None, printed.getvalue()
    return int(macs)


def ours(model: nn.Module, args: Any, kwargs: Any = None) -> Report:
    return by_it(count(model, args, kwargs))


def by_it(report: Report) -> Report:
    assert report.recount("ptflops").total_macs == report.total_macs
    assert report.recount("ptflops").total_int_ops == 0
    return report.recount("ptflops")


@pytest.mark.parametrize("name", POOL)
def test_the_number_is_ptflopss(name: str) -> None:
    assert by_it(counted(name)).total_flops == theirs(*lent(name))


class ReLUOfMine(nn.ReLU):
    """Charged like the function F.relu, not by nn.ReLU's hook."""


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": lambda x: F.relu(x),
    "torch.relu": lambda x: torch.relu(x).relu(),
    "activations": lambda x: F.elu(F.relu6(F.gelu(F.silu(F.prelu(x, torch.ones(4)))))),
    "uncharged activations": lambda x: F.leaky_relu(F.hardswish(F.sigmoid(F.tanh(x)))),
    "softmax": lambda x: F.softmax(x, 1),
    "torch.softmax": lambda x: torch.softmax(x, 1).softmax(0),
    "pools": lambda x: [f(x, 2) for f in (F.avg_pool2d, F.max_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d)],
    "pools of lines": lambda x: [
        f(x[0], 2) for f in (F.avg_pool1d, F.max_pool1d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d)
    ],
    "pools of volumes": lambda x: [
        f(x, 2) for f in (F.avg_pool3d, F.max_pool3d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d)
    ],
    "pool with indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "adaptive pool with indices": lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True)[0],
    "torch.max_pool2d": lambda x: torch.max_pool1d(x[0], 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate by a part": lambda x: F.interpolate(x, scale_factor=1.3),
    "interpolate by parts": lambda x: F.interpolate(x, scale_factor=(2.7, 1.5)),
    "interpolate to a size": lambda x: F.interpolate(x, 5),
    "interpolate to sizes": lambda x: F.interpolate(x, (5, 6), mode="bilinear"),
    "interpolate by area": lambda x: F.interpolate(x, (3, 2), mode="area"),
    "lp_pool": lambda x: F.lp_pool2d(x, 2, 2),
    "lp_pool of the largest": lambda x: F.lp_pool2d(x, float("inf"), 2),
    "local_response_norm": lambda x: F.local_response_norm(x, 3),
    "local_response_norm of lines": lambda x: F.local_response_norm(x[0], 2),
    "products": lambda x: torch.matmul(x, x).matmul(x).flatten(0, 1).bmm(torch.ones(8, 8, 3)),
    "torch.mm": lambda x: torch.mm(x[0, 0], x[0, 1]).mm(torch.ones(8, 5)),
    "vectors": lambda x: torch.matmul(x, torch.ones(8)),
    "operators": lambda x: (x @ x + x) * 2 - x,
    "linear": lambda x: F.linear(x, torch.ones(5, 8), torch.ones(5)),
    "einsum": lambda x: torch.einsum("abcd,abde->abce", x, x),
    "addmm": lambda x: torch.addmm(torch.ones(5), x[0, 0], torch.ones(8, 5)),
    "addmm beta": lambda x: torch.addmm(torch.ones(5), x[0, 0], torch.ones(8, 5), beta=0),
    "x.addmm": lambda x: torch.ones(8, 5).addmm(x[0, 0], torch.ones(8, 5)),
    "baddbmm": lambda x: torch.baddbmm(torch.ones(4, 8, 5), x[0], torch.ones(4, 8, 5)),
    "x.baddbmm": lambda x: torch.ones(4, 8, 5).baddbmm(x[0], torch.ones(4, 8, 5)),
    "elementwise": lambda x: torch.add(x, x, alpha=2).mul(x).add(1).mul(2.0),
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "numbers first": lambda x: torch.mul(x[0, 0, 0, 0], torch.add(torch.tensor(1.0), 2)),
    "aligned at the left": lambda x: torch.add(x, torch.ones(8)),
    "integers": lambda x: torch.add(torch.arange(6), 1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    model, x = Runs(CASES[name]), torch.randn(2, 4, 8, 8)
    assert ours(model, (x,)).total_flops == theirs(model, (x,))


def case(module: nn.Module, *shape: int) -> tuple[nn.Module, torch.Tensor]:
    return module, torch.randn(*shape)


MODULES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "conv": lambda: case(nn.Conv2d(4, 6, 3, groups=2, stride=2), 2, 4, 8, 8),
    "conv without bias": lambda: case(nn.Conv1d(4, 6, 3, bias=False), 2, 4, 8),
    "conv of volumes": lambda: case(nn.Conv3d(2, 3, 2), 1, 2, 4, 4, 4),
    "transposed": lambda: case(nn.ConvTranspose2d(4, 6, 3, stride=2), 2, 4, 5, 5),
    "transposed in groups": lambda: case(nn.ConvTranspose1d(4, 6, 3, groups=2), 2, 4, 5),
    "linear": lambda: case(nn.Linear(4, 5), 2, 3, 4),
    "linear without bias": lambda: case(nn.Linear(4, 5, bias=False), 4),
    **{
        cls.__name__: lambda cls=cls: case(cls(), 2, 4, 8)
        for cls in (
            nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.Hardswish, nn.Sigmoid,
            nn.Mish, ReLUOfMine,
        )
    },
    "softmax": lambda: case(nn.Softmax(1), 2, 4, 8),
    "softmax of channels": lambda: case(nn.Softmax2d(), 2, 4, 8, 8),
    **{
        cls.__name__: lambda cls=cls: case(cls(2), 2, 4, 8, 8)
        for cls in (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    },
    "pool with indices": lambda: case(nn.Sequential(nn.MaxPool2d(2, return_indices=True)), 2, 4, 8, 8),
    "lp_pool": lambda: case(nn.LPPool2d(2, 2), 2, 4, 8, 8),
    "local_response_norm": lambda: case(nn.LocalResponseNorm(3), 2, 4, 8, 8),
    "norms": lambda: case(
        nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4), nn.LayerNorm(8)), 2, 4, 8, 8
    ),
    "instance norms": lambda: case(nn.Sequential(nn.InstanceNorm1d(4), nn.InstanceNorm1d(4, affine=True)), 2, 4, 8),
    "rms norm": lambda: case(nn.RMSNorm(8), 2, 8),
    "upsample": lambda: case(nn.Upsample(scale_factor=2), 2, 4, 5, 5),
    "upsample to a size": lambda: case(nn.Upsample((7, 8), mode="bilinear"), 2, 4, 5, 5),
    "upsample of a subclass": lambda: case(nn.UpsamplingNearest2d(scale_factor=3), 2, 4, 5, 5),
    "lstm": lambda: case(nn.LSTM(4, 5, num_layers=2, bidirectional=True), 3, 2, 4),
    "lstm projected": lambda: case(nn.LSTM(4, 5, proj_size=3, bias=False), 3, 2, 4),
    "gru": lambda: case(nn.GRU(4, 5, batch_first=True), 3, 2, 4),
    "rnn of one sequence": lambda: case(nn.RNN(4, 5), 3, 4),
    "cells": lambda: case(nn.RNNCell(4, 5), 3, 4),
    "lstm cell": lambda: case(nn.LSTMCell(4, 5, bias=False), 3, 4),
    "gru cell": lambda: case(nn.GRUCell(4, 5), 3, 4),
    "attention": lambda: case(Runs(lambda x, mha: mha(x, x, x), mha=nn.MultiheadAttention(8, 2)), 3, 2, 8),
    "attention first": lambda: case(
        Runs(lambda x, mha: mha(x, x[:, :2], x[:, :2], need_weights=False)[0],
             mha=nn.MultiheadAttention(8, 2, bias=False, batch_first=True)), 3, 4, 8,
    ),
    "attention, other sizes": lambda: case(
        Runs(lambda x, mha: mha(x, x[..., :6], x[..., :4])[0], mha=nn.MultiheadAttention(8, 2, kdim=6, vdim=4)), 3, 2, 8
    ),
    "encoder layer": lambda: case(nn.TransformerEncoderLayer(8, 2, 16, activation=lambda x: F.gelu(x)), 3, 2, 8),
    "timm's attention": lambda: case(timm.models.vision_transformer.Attention(8, 2, qkv_bias=True), 2, 5, 8),
    "deformable": lambda: case(
        Runs(lambda x, conv: conv(x, x.new_zeros(1, 18, 6, 6)), conv=torchvision.ops.DeformConv2d(4, 6, 3)), 1, 4, 8, 8
    ),
    "deformable with a mask": lambda: case(
        Runs(lambda x, conv: conv(x, x.new_zeros(1, 18, 6, 6), x.new_ones(1, 9, 6, 6)),
             conv=torchvision.ops.DeformConv2d(4, 6, 3)), 1, 4, 8, 8,
    ),
    "two names for one": lambda: case(twice(nn.ReLU()), 2, 4),
    "hooked by the user": lambda: case(with_hook(nn.ReLU()), 2, 4),
    "weight norm": lambda: case(nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), 1, 4, 8),
}  # fmt: skip


def twice(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, module)


def with_hook(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda *_: None)
    return nn.Sequential(module)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    model, x = MODULES[name]()
    whole = nn.Sequential(model)
    assert ours(whole, (x,)).total_flops == theirs(whole, (x,))


def test_of_a_module_under_two_others_each_has_the_whole_sum() -> None:
    act = nn.LeakyReLU()
    model, x = nn.Sequential(nn.Sequential(act), nn.Sequential(act)), torch.randn(2, 4)
    assert theirs(model, (x,)) == 2 * ours(model, (x,)).total_flops == 4 * x.numel()


@pytest.mark.filterwarnings("ignore:`nn.functional.upsample` is deprecated:UserWarning")
def test_upsample_is_charged_as_itself_and_as_the_interpolate_in_it() -> None:
    model, x = Runs(lambda x: F.upsample(x, scale_factor=2)), torch.randn(2, 4, 5, 5)
    assert theirs(model, (x,)) == 2 * ours(model, (x,)).total_flops == 8 * x.numel()
