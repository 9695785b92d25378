"""convention="thop": the number of thop's own run, on the models of the pool and rule by rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from fxflops import Report, count
from tests.conventions.pool import POOL, Runs, built, counted

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # thop compares versions with distutils
    import thop

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:This API is being deprecated:UserWarning:thop"),
]


class ByPosition(nn.Module):
    """Passes positional inputs to a model by name, because thop only gives inputs by position."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Any) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def theirs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> float:
    if kwargs:
        model, args = ByPosition(model, list(kwargs)), tuple(kwargs.values())
    ops, _ = thop.profile(model, inputs=args, verbose=False)
    return ops


def ours(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Report:
    return by_it(count(model, args, kwargs))


def by_it(report: Report) -> Report:
    recounted = report.recount("thop")
    assert recounted.total_macs == report.total_macs
    assert recounted.total_int_ops == 0
    return recounted


@pytest.mark.parametrize("name", POOL)
def test_the_number_is_thops(name: str) -> None:
    assert by_it(counted(name)).total_flops == theirs(*built(name))


class LinearOfMine(nn.Linear):
    """A class that thop does not know."""


def norms() -> list[nn.Module]:
    affine = [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, affine=True), nn.LayerNorm(8), nn.SyncBatchNorm(4)]
    plain = [nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4), nn.LayerNorm(8, elementwise_affine=False)]
    return [*affine, *plain, nn.GroupNorm(2, 4), nn.RMSNorm(8), nn.LayerNorm(8, bias=False)]


def registered_with_a_child() -> nn.Module:
    linear = nn.Linear(8, 4)
    linear.add_module("inner", nn.Linear(4, 4))
    linear.register_forward_hook(lambda module, args, out: module.inner(out))
    return linear


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "conv": lambda: (nn.Conv2d(4, 6, 3, groups=2, stride=2), torch.randn(2, 4, 8, 8)),
    "conv without bias": lambda: (nn.Conv1d(4, 6, 3, bias=False, dilation=2), torch.randn(2, 4, 8)),
    "conv of volumes": lambda: (nn.Conv3d(2, 3, (1, 2, 3)), torch.randn(1, 2, 4, 4, 4)),
    "conv without a batch": lambda: (nn.Conv2d(4, 6, 3), torch.randn(4, 8, 9)),
    "conv in other words": lambda: (nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular"), torch.randn(2, 4, 8, 8)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2), torch.randn(2, 4, 5, 5)),
    "transposed in groups": lambda: (nn.ConvTranspose1d(4, 6, 3, groups=2), torch.randn(2, 4, 5)),
    "transposed volumes": lambda: (nn.ConvTranspose3d(2, 3, 2), torch.randn(1, 2, 3, 3, 3)),
    "linear": lambda: (nn.Linear(4, 5), torch.randn(2, 3, 4)),
    "linear of a vector": lambda: (nn.Linear(4, 5, bias=False), torch.randn(4)),
    "linear of mine": lambda: (LinearOfMine(4, 5), torch.randn(2, 4)),
    "norms": lambda: (nn.Sequential(*norms()), torch.randn(2, 4, 8)),
    "norms of images": lambda: (nn.Sequential(nn.BatchNorm2d(4), nn.InstanceNorm2d(4)), torch.randn(2, 4, 5, 5)),
    "norms of volumes": lambda: (nn.Sequential(nn.BatchNorm3d(2), nn.InstanceNorm3d(2)), torch.randn(2, 2, 3, 3, 3)),
    "activations": lambda: (
        nn.Sequential(nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(), nn.GELU(), nn.Sigmoid(), nn.Dropout()),
        torch.randn(2, 4, 8),
    ),
    "softmax": lambda: (nn.Softmax(dim=1), torch.randn(2, 4, 8)),
    "softmax from the end": lambda: (nn.Softmax(dim=-1), torch.randn(2, 4, 8)),
    "average pools": lambda: (
        Runs(lambda x, one, two, three: (one(x[0, 0]), two(x[0]), three(x)),
             one=nn.AvgPool1d(2), two=nn.AvgPool2d(2), three=nn.AvgPool3d(2)), torch.randn(1, 3, 8, 8, 8),
    ),
    "max pools": lambda: (
        Runs(lambda x, one, two, three: (one(x[0, 0]), two(x[0]), three(x)),
             one=nn.MaxPool1d(2), two=nn.AdaptiveMaxPool2d(2), three=nn.MaxPool3d(2)), torch.randn(1, 3, 8, 8, 8),
    ),
    **{
        f"adaptive pool {size} to {to}": lambda size=size, to=to: (
            getattr(nn, f"AdaptiveAvgPool{len(size)}d")(to), torch.randn(2, 9, *size)
        )
        for size, to in [
            ((7,), 3), ((7,), 10), ((7, 7), 3), ((7, 11), (3, 7)), ((13, 17), 6), ((7, 9, 11), (3, 5, 6)), ((5, 6, 7), 3),
        ]
    },
    "adaptive pool without a batch": lambda: (nn.AdaptiveAvgPool2d(3), torch.randn(4, 7, 8)),
    **{
        f"upsample {mode}": lambda mode=mode, dims=dims: (
            nn.Upsample(scale_factor=1.5, mode=mode), torch.randn(1, 2, *[4] * dims)
        )
        for mode, dims in [("nearest", 2), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3), ("area", 2)]
    },
    "upsample's subclasses": lambda: (
        nn.Sequential(nn.UpsamplingBilinear2d(scale_factor=2), nn.UpsamplingNearest2d(scale_factor=2)),
        torch.randn(1, 2, 3, 3),
    ),
    "moves": lambda: (nn.Sequential(nn.ZeroPad2d(1), nn.PixelShuffle(2)), torch.randn(1, 4, 3, 3)),
    **{
        f"{cls.__name__} {settings}": lambda cls=cls, settings=settings: (cls(4, 5, **settings), torch.randn(3, 2, 4))
        for cls in (nn.RNN, nn.GRU, nn.LSTM)
        for settings in ({}, {"bias": False, "batch_first": True}, {"num_layers": 3, "bidirectional": True})
    },
    "projected": lambda: (nn.LSTM(4, 5, num_layers=2, proj_size=3), torch.randn(3, 2, 4)),
    "rnn of one sequence": lambda: (nn.RNN(4, 5), torch.randn(3, 4)),
    **{
        f"packed {cls.__name__}": lambda cls=cls: (
            Runs(lambda x, rnn: rnn(pack_sequence([x[0], x[1, :2]])), rnn=cls(4, 5, num_layers=2)), torch.randn(2, 3, 4)
        )
        for cls in (nn.GRU, nn.LSTM)
    },
    **{
        f"{cls.__name__}, bias={bias}": lambda cls=cls, bias=bias: (cls(4, 5, bias=bias), torch.randn(3, 4))
        for cls in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)
        for bias in (True, False)
    },
    "cell of one": lambda: (nn.GRUCell(4, 5), torch.randn(4)),
    "attention": lambda: (Runs(lambda x, mha: mha(x, x, x)[0], mha=nn.MultiheadAttention(8, 2)), torch.randn(3, 2, 8)),
    "encoder": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 2, 8)),
    "functions": lambda: (Runs(lambda x: nn.functional.linear(x, torch.ones(5, 8)) @ torch.ones(5, 5)), torch.randn(3, 8)),
    "one module twice": lambda: (twice(nn.Linear(8, 8)), torch.randn(3, 8)),
    "several calls, one not made": lambda: (
        Runs(lambda x, fc, idle: fc(fc(x)) + fc(x[:1]), fc=nn.Linear(8, 8), idle=nn.Linear(8, 8)), torch.randn(3, 8)
    ),
    "two heads in a row": lambda: (nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.ModuleList([nn.Linear(8, 8)])[0]),
                                   torch.randn(3, 8)),
    "hooked by the user": lambda: (registered_with_a_child(), torch.randn(3, 8)),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), torch.randn(1, 4, 8)),
    "pruned": lambda: (pruned(nn.Conv1d(4, 6, 3)), torch.randn(1, 4, 8)),
}  # fmt: skip


def twice(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, module)


def pruned(module: nn.Module) -> nn.Module:
    from torch.nn.utils import prune

    prune.l1_unstructured(module, "weight", amount=0.5)
    return module


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    model, x = CASES[name]()
    whole = nn.Sequential(model)
    assert ours(whole, (x,)).total_flops == theirs(whole, (x,))


def test_a_hooked_module_as_the_model_itself() -> None:
    assert ours(nn.Linear(8, 4), (torch.ones(3, 8),)).total_flops == theirs(nn.Linear(8, 4), (torch.ones(3, 8),)) == 96


@pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax:UserWarning")
def test_where_thop_raises() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(TypeError, match="NoneType"):
        theirs(nn.Softmax(), (x,))
    assert ours(nn.Softmax(), (x,)).total_flops == theirs(nn.Softmax(dim=1), (x,)) == 2 * (4 + 3 + 4)
    with pytest.raises(IndexError, match="tuple index out of range"):
        theirs(Runs(lambda x, norm: norm(input=x), norm=nn.LayerNorm(4)), (x,))
    by_name = Runs(lambda x, norm: norm(input=x), norm=nn.LayerNorm(4))
    assert ours(by_name, (x,)).total_flops == 4 * x.numel()


def test_under_two_parents_thop_charges_each_call_for_each_and_breaks_the_model() -> None:
    shared, x = nn.Linear(8, 8), torch.ones(1, 8)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    assert ours(model, (x,)).total_flops == 2 * 64
    assert theirs(model, (x,)) == 4 * 2 * 64
    with pytest.raises(AttributeError, match="total_ops"):
        model(x)
