"""convention="torchinfo": the mult-adds of torchinfo's own run, on the models of the pool and case by case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torchinfo
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence

from fxflops import Report, count
from tests.conventions.pool import POOL, Runs, built, counted

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


def theirs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> int:
    return torchinfo.summary(model, input_data=list(args), verbose=0, **(kwargs or {})).total_mult_adds


def ours(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Report:
    return by_it(count(model, args, kwargs))


def by_it(report: Report) -> Report:
    recounted = report.recount("torchinfo")
    assert recounted.total_macs == report.total_macs
    assert recounted.total_int_ops == 0
    return recounted


@pytest.mark.parametrize("name", POOL)
def test_the_number_is_torchinfos(name: str) -> None:
    assert by_it(counted(name)).total_flops == theirs(*built(name))


class Own(nn.Module):
    """Has parameters with these names, and an output computed from the input."""

    def __init__(self, out: Callable[[torch.Tensor], Any], *names: str) -> None:
        super().__init__()
        self.out = out
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(3, 2)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(x)


class ConvLike(Own):
    """A convolution, by its class name."""


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "conv": lambda: (nn.Conv2d(4, 6, 3, groups=2, stride=2), torch.randn(2, 4, 8, 8)),
    "conv without a batch": lambda: (nn.Conv1d(4, 6, 3, bias=False), torch.randn(4, 8)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2), torch.randn(2, 4, 5, 5)),
    "linear": lambda: (nn.Linear(4, 5), torch.randn(2, 3, 4)),
    "bilinear": lambda: (Runs(lambda x, b: b(x, x), b=nn.Bilinear(4, 4, 5)), torch.randn(2, 3, 4)),
    "norms": lambda: (
        nn.Sequential(nn.BatchNorm1d(4), nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.RMSNorm(8), nn.PReLU()),
        torch.randn(2, 4, 8),
    ),
    "embedding": lambda: (nn.Embedding(20, 4), torch.ones(2, 3, dtype=torch.long)),
    **{
        cls.__name__: lambda cls=cls: (cls(4, 5, num_layers=2, bidirectional=True), torch.randn(3, 2, 4))
        for cls in (nn.RNN, nn.GRU, nn.LSTM)
    },
    "cell": lambda: (nn.LSTMCell(4, 5), torch.randn(3, 4)),
    "packed": lambda: (
        Runs(lambda x, rnn: rnn(pack_sequence([x[0], x[1, :2]])), rnn=nn.GRU(4, 5)), torch.randn(2, 3, 4)
    ),
    "attention": lambda: (Runs(lambda x, mha: mha(x, x, x)[0], mha=nn.MultiheadAttention(8, 2)), torch.randn(3, 2, 8)),
    "encoder": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 2, 8)),
    "one module twice": lambda: (twice(nn.Linear(8, 8)), torch.randn(3, 8)),
    "one module under two others": lambda: (
        Runs(lambda x, a, b: b(a(x)), a=nn.Sequential(shared := nn.Linear(8, 8)), b=nn.Sequential(shared)),
        torch.randn(3, 8),
    ),
    "names": lambda: (Own(lambda x: x, "weight", "bias", "weight_hh", "my_bias", "scale"), torch.randn(5, 7, 11)),
    "names of a convolution": lambda: (ConvLike(lambda x: x, "weight", "biased", "gamma"), torch.randn(5, 7, 11)),
    "out: tuple": lambda: (Own(lambda x: (x, x[0]), "weight"), torch.randn(5, 7)),
    "out: list": lambda: (Own(lambda x: [x[1:], x], "weights"), torch.randn(5, 7)),
    "out: nested": lambda: (Own(lambda x: ((x[1:], x), x), "weight"), torch.randn(5, 7)),
    "out: mapping": lambda: (Own(lambda x: {"a": x, "b": x[1:]}, "weight"), torch.randn(5, 7)),
    "out: mapping of more": lambda: (Own(lambda x: {"a": x, "b": {"c": [x[2:]], "d": x}}, "weight"), torch.randn(5, 7)),
    "out: tuple of mappings": lambda: (Own(lambda x: ({"a": x[2:], "b": x},), "weight"), torch.randn(5, 7)),
    "out: nothing": lambda: (Own(lambda x: None, "weights"), torch.randn(5, 7)),
    "out: a number": lambda: (Own(lambda x: x.sum(), "weights"), torch.randn(5, 7)),
    "out: empty": lambda: (Own(lambda x: [], "weights"), torch.randn(5, 7)),
    "container with parameters": lambda: (with_parameter(nn.Sequential(nn.Linear(7, 7))), torch.randn(5, 7)),
    "functions": lambda: (Runs(lambda x: nn.functional.linear(x, torch.ones(5, 7)).softmax(-1)), torch.randn(5, 7)),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), torch.randn(1, 4, 8)),
    "pruned, but all is left": lambda: (prune.identity(nn.Conv2d(4, 6, 3), "weight"), torch.randn(2, 4, 8, 8)),
    "no mask": lambda: (Own(lambda x: x, "weight_orig"), torch.randn(5, 7)),
}  # fmt: skip


def twice(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, module)


def with_parameter(module: nn.Module) -> nn.Module:
    module.register_parameter("weight", nn.Parameter(torch.ones(7)))
    return module


@pytest.mark.parametrize("name", CASES)
def test_charges(name: str) -> None:
    model, x = CASES[name]()
    whole = Runs(lambda x, inner: inner(x), inner=model)
    assert ours(whole, (x,)).total_flops == theirs(whole, (x,))


@dataclass
class Result:
    value: torch.Tensor


@pytest.mark.parametrize(
    "out",
    [lambda x: x.sum(), lambda x: None, lambda x: Result(x), lambda x: 3],
    ids=["number", "nothing", "object", "integer"],
)
def test_where_torchinfo_raises_the_output_is_one(out: Callable[[torch.Tensor], Any]) -> None:
    model, x = Own(out, "weight"), torch.randn(5, 7)
    with pytest.raises(RuntimeError, match="Failed to run torchinfo"):
        theirs(model, (x,))
    assert ours(model, (x,)).total_flops == model.weight.numel()


def test_what_no_shape_tells() -> None:
    x = torch.randn(5, 8)
    model = prune.l1_unstructured(nn.Linear(8, 4, bias=False), "weight", amount=0.5)
    assert 2 * theirs(model, (x,)) == ours(model, (x,)).total_flops == 5 * 32
    model = Own(lambda x: x, "weight")
    model.inner = nn.Sequential()
    assert theirs(model, (x,)) == 5 * 6
    assert ours(model, (x,)).total_flops == 0
    model = Own(lambda x: x, "weight")
    model.bias = model.weight
    assert 2 * theirs(model, (x,)) == ours(model, (x,)).total_flops == 2 * 5 * 6
