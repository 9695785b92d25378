"""convention="fvcore": the same total as fvcore 0.1.5, run on a copy of the same model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import Report, count
from tests.conventions.pool import POOL, copied, lent

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # fvcore scripts a function when it is imported
    from fvcore.nn import FlopCountAnalysis

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*torch.jit.*:{category}")
    for category in ("FutureWarning", "DeprecationWarning")
]

OBJECTS = ("gpt2", "llama", "opt", "t5", "bart")
"""Models of the pool that return things torch.jit.trace rejects: caches, or outputs that hold tuples of None."""


class Positional(nn.Module):
    """Adapts a model to torch.jit.trace: tensors in, and a tuple of all output tensors out."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: torch.Tensor) -> Any:
        out = self.model(**dict(zip(self.names, args, strict=True))) if self.names else self.model(*args)
        return tuple(tensors_in(out))


class Named(Positional):
    """The same, but returns the model's own output."""

    def forward(self, *args: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, args, strict=True)))


class Runs(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: torch.Tensor) -> Any:
        return self.run(*args)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def theirs(model: nn.Module, args: tuple[Any, ...]) -> float:
    analysis = FlopCountAnalysis(copied(model)[0], args)
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none").total()


def ours(model: nn.Module, args: tuple[Any, ...]) -> Report:
    base = count(model, args, mode="as_is")
    report = base.recount("fvcore")
    assert report.total_macs == base.total_macs
    assert report.total_int_ops == 0
    assert report.complete
    return report


@pytest.mark.parametrize("name", POOL)
def test_the_total_is_fvcores(name: str) -> None:
    model, args, kwargs = lent(name)
    if kwargs:
        model, args = Positional(model, list(kwargs)), tuple(kwargs.values())
    assert ours(model, args).total_flops == theirs(model, args)


@pytest.mark.parametrize("name", OBJECTS)
def test_fvcore_needs_tensors_out(name: str) -> None:
    model, _, kwargs = lent(name)
    with pytest.raises(RuntimeError, match="Only tuples, lists and Variables are supported as JIT"):
        theirs(Named(model, list(kwargs)), tuple(kwargs.values()))


def f(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


V, IMAGE = torch.rand(4), (2, 4, 6, 6)
CELL = f(3, 4), f(3, 5)
PLACES = (1, 1), (0, 0), (1, 1)
CASES: dict[str, tuple[Any, ...]] = {
    "linear": (nn.Linear(4, 5), f(2, 3, 4)),
    "linear of a vector": (F.linear, f(4), f(5, 4)),
    "linear to one": (F.linear, f(3, 4), f(4)),
    "Bilinear": (nn.Bilinear(4, 5, 6), f(3, 4), f(3, 5)),
    "mm": (torch.mm, f(3, 4), f(4, 5)),
    "x.mm": (torch.Tensor.mm, f(3, 4), f(4, 5)),
    "bmm": (torch.bmm, f(2, 3, 4), f(2, 4, 5)),
    "@": (lambda a, b: a @ b, f(2, 3, 4), f(4, 5)),
    "@ broadcasts the left": (lambda a, b: a @ b, f(3, 4), f(7, 4, 5)),
    "@ broadcasts both": (lambda a, b: a @ b, f(2, 1, 3, 4), f(1, 7, 4, 5)),
    "vector @ matrix": (lambda a, b: a @ b, f(4), f(4, 5)),
    "reflected @": (lambda a, b: b.__rmatmul__(a), f(3, 4), f(4, 5)),
    "linalg.matmul": (torch.linalg.matmul, f(3, 4), f(4, 5)),
    "mv": (torch.mv, f(3, 4), f(4)),
    "dot": (torch.dot, f(4), f(4)),
    "inner": (torch.inner, f(3, 4), f(5, 4)),
    "outer": (torch.outer, f(3), f(4)),
    "addmm": (torch.addmm, f(5), f(3, 4), f(4, 5)),
    "addmm in place": (lambda x, a, b: x.clone().addmm_(a, b), f(3, 5), f(3, 4), f(4, 5)),
    "baddbmm": (torch.baddbmm, f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "addbmm": (torch.addbmm, f(3, 5), f(2, 3, 4), f(2, 4, 5)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), f(3, 4), f(4, 5)),
    "multi_dot": (lambda *m: torch.linalg.multi_dot(m), f(3, 4), f(4, 5), f(5, 6)),
    "cdist": (torch.cdist, f(30, 4), f(50, 4)),
    "cov": (torch.cov, f(4, 9)),
    "integers": (lambda a, b: a.long() @ b.long(), f(3, 4), f(4, 5)),
    "complex": (lambda a, b: a.cfloat() @ b.cfloat(), f(3, 4), f(4, 5)),
    "attention": (F.scaled_dot_product_attention, f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4)),
    "MultiheadAttention": (nn.MultiheadAttention(8, 2), f(3, 1, 8), f(4, 1, 8), f(4, 1, 8)),
    "MultiheadAttention with biases": (
        nn.MultiheadAttention(8, 2, kdim=6, vdim=5, add_bias_kv=True, add_zero_attn=True), f(3, 1, 8), f(4, 1, 6), f(4, 1, 5),
    ),
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), f(3, 1, 8)),
    "decoder layer": (nn.TransformerDecoderLayer(8, 2, 16), f(3, 1, 8), f(4, 1, 8)),
    "conv": (nn.Conv2d(4, 6, 3, groups=2, stride=2, padding=1), f(*IMAGE)),
    "conv of a subclass": (type("Mine", (nn.Conv2d,), {})(4, 6, 3), f(*IMAGE)),
    "conv of one sample": (nn.Conv3d(4, 6, 3), f(4, 6, 6, 6)),
    'conv padding="same"': (nn.Conv2d(4, 6, 3, padding="same"), f(*IMAGE)),
    'conv padding="same" reflected': (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), f(*IMAGE)),
    "F.conv1d": (lambda x, w: F.conv1d(x, w, None, 2, 1), f(2, 4, 7), f(6, 4, 3)),
    'F.conv2d padding="valid"': (lambda x, w: F.conv2d(x, w, None, 1, "valid"), f(*IMAGE), f(6, 4, 3, 3)),
    "conv of complex numbers": (lambda x, w: F.conv2d(x.cfloat(), w.cfloat()), f(*IMAGE), f(6, 4, 3, 3)),
    "conv_transpose": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), f(*IMAGE)),
    "F.conv_transpose3d": (F.conv_transpose3d, f(4, 6, 6, 6), f(4, 6, 3, 3, 3)),
    "convolution": (lambda x, w: torch.convolution(x, w, None, *PLACES, False, (0, 0), 1), f(*IMAGE), f(6, 4, 3, 3)),
    "convolution transposed": (lambda x, w: torch.convolution(x, w, None, *PLACES, True, (0, 0), 1), f(*IMAGE), f(4, 6, 3, 3)),
    "conv_tbc": (torch.conv_tbc, f(7, 2, 4), f(3, 4, 6), f(6)),
    "RNNCell": (nn.RNNCell(4, 5, nonlinearity="relu"), f(3, 4)),
    "LSTMCell": (nn.LSTMCell(4, 5), f(3, 4)),
    "GRUCell of one sample": (nn.GRUCell(4, 5, bias=False), f(4)),
    "lstm_cell": (lambda x, h, *w: torch.lstm_cell(x, (h, h), *w), *CELL, f(20, 4), f(20, 5)),
    "gru_cell": (torch.gru_cell, *CELL, f(15, 4), f(15, 5)),
    "LSTM": (nn.LSTM(4, 5, proj_size=2), f(3, 2, 4)),
    "batch_norm": (nn.BatchNorm2d(4).eval(), f(*IMAGE)),
    "batch_norm not affine": (nn.BatchNorm2d(4, affine=False).eval(), f(*IMAGE)),
    "batch_norm in training": (nn.BatchNorm2d(4), f(*IMAGE)),
    "batch_norm without statistics": (nn.BatchNorm2d(4, track_running_stats=False).eval(), f(*IMAGE)),
    "F.batch_norm": (lambda x: F.batch_norm(x, V, V, V, V), f(2, 4, 3)),
    "F.batch_norm in training": (lambda x: F.batch_norm(x, None, None, training=True), f(2, 4, 3)),
    "torch.batch_norm": (lambda x: torch.batch_norm(x, V, V, V, V, False, 0.1, 1e-5, True), f(2, 4, 3)),
    "native_batch_norm": (lambda x: torch.native_batch_norm(x, V, V, V, V, False, 0.1, 1e-5)[0], f(2, 4, 3)),
    "layer_norm": (nn.LayerNorm(4), f(2, 4)),
    "layer_norm not affine": (nn.LayerNorm(4, elementwise_affine=False), f(2, 4)),
    "F.layer_norm": (lambda x: F.layer_norm(x, (4,), V), f(2, 3, 4)),
    "torch.layer_norm": (lambda x: torch.layer_norm(x, (4,), V, V), f(2, 3, 4)),
    "native_layer_norm": (lambda x: torch.native_layer_norm(x, (4,), V, V, 1e-5)[0], f(2, 4)),
    "group_norm": (nn.GroupNorm(2, 4), f(2, 4, 3)),
    "F.group_norm": (lambda x: F.group_norm(x, 2), f(2, 4, 3)),
    "instance_norm": (nn.InstanceNorm2d(4), f(*IMAGE)),
    "instance_norm affine": (nn.InstanceNorm1d(4, affine=True), f(4, 3)),
    "F.instance_norm": (lambda x: F.instance_norm(x, None, None, V, V), f(2, 4, 3)),
    "torch.instance_norm": (lambda x: torch.instance_norm(x, V, V, None, None, True, 0.1, 1e-5, True), f(2, 4, 3)),
    "RMSNorm": (nn.RMSNorm(4), f(2, 4)),
    "LocalResponseNorm": (nn.LocalResponseNorm(3), f(*IMAGE)),
    "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), f(2, 4)),
    "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)).eval(), f(2, 4)),
    "Upsample": (nn.Upsample(scale_factor=2), f(*IMAGE)),
    "Upsample in 1 dim": (nn.Upsample(scale_factor=2), f(2, 3, 4)),
    "UpsamplingBilinear2d": (nn.UpsamplingBilinear2d(scale_factor=2), f(*IMAGE)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), f(*IMAGE)),
    "interpolate": (lambda x: F.interpolate(x, None, 1.7, "bilinear", recompute_scale_factor=True), f(*IMAGE)),
    "antialias": (lambda x: F.interpolate(x, size=(2, 2), mode="bilinear", antialias=True), f(*IMAGE)),
    "area": (lambda x: F.interpolate(x, size=(2, 2), mode="area"), f(*IMAGE)),
    "area in 1 dim": (lambda x: F.interpolate(x, size=2, mode="area"), f(2, 3, 4)),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d(1), f(2, 3, 4)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(2), f(3, 4, 4)),
    "F.adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, None)), f(*IMAGE)),
    "grid_sample": (lambda x, grid: F.grid_sample(x, grid, "nearest"), f(*IMAGE), f(2, 5, 5, 2)),
    "grid_sample of volumes": (F.grid_sample, f(2, 3, 4, 4, 4), f(2, 5, 5, 5, 3)),
    "grid_sampler": (lambda x, grid: torch.grid_sampler(x, grid, 0, 0, False), f(*IMAGE), f(2, 5, 5, 2)),
    "grid_sampler_2d": (lambda x, grid: torch.grid_sampler_2d(x, grid, 0, 0, False), f(*IMAGE), f(2, 5, 5, 2)),
    "einsum as bmm": (lambda a, b: torch.einsum("nct,ncp->ntp", a, b), f(2, 5, 3), f(2, 5, 7)),
    "einsum as bmm reversed": (lambda a, b: torch.einsum("ntg, ncg -> nct", a, b), f(2, 5, 3), f(2, 7, 3)),
    "einsum of three": (lambda *m: torch.einsum("ij,jk,kl->il", *m), f(13, 14), f(14, 15), f(15, 16)),
    "einsum without an arrow": (lambda a, b: torch.einsum("bA,ac", [a, b]), f(13, 14), f(14, 15)),
    "einsum with dots": (lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), f(7, 3, 4), f(7, 4, 5)),
    "einsum by numbers": (lambda a, b: torch.einsum(a, [..., 0, 27], b, [..., 27, 2], [..., 0, 2]), f(7, 3, 4), f(7, 4, 5)),
    "einsum in four digits": (lambda a, b: torch.einsum("ij,kj->ik", a, b), f(123, 457), f(11, 457)),
    "einsum of one": (lambda a: torch.einsum("ij->j", a), f(7, 6)),
}  # fmt: skip


def as_model(run: Any) -> nn.Module:
    return run if isinstance(run, nn.Module) else Runs(run)


@pytest.mark.filterwarnings("ignore:.*(enable_nested_tensor|grid_sample|batch_norm|instance_norm).*:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_an_operators_charge_is_fvcores(name: str) -> None:
    run, *args = CASES[name]
    assert ours(as_model(run), tuple(args)).total_flops == theirs(as_model(run), tuple(args))


RAISING: dict[str, tuple[type[Exception], int, Any]] = {
    "matrix @ vector": (IndexError, 3 * 4, (lambda a, b: a @ b, f(3, 4), f(4))),
    "vector @ vector": (IndexError, 4, (lambda a, b: a @ b, f(4), f(4))),
    "layer_norm of a vector": (AssertionError, 5 * 4, (nn.LayerNorm(4), f(4))),
    "layer_norm in 6 dims": (AssertionError, 5 * 8, (nn.LayerNorm(4), f(1, 1, 1, 1, 2, 4))),
}


@pytest.mark.parametrize("name", RAISING)
def test_where_fvcore_raises_this_is_what_it_means(name: str) -> None:
    error, meant, (run, *args) = RAISING[name]
    with pytest.raises(error):
        theirs(as_model(run), tuple(args))
    assert ours(as_model(run), tuple(args)).total_flops == meant


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ x


@torch.jit.script_if_tracing
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x @ x


UNTOLD: dict[str, tuple[int, int, Callable[[torch.Tensor], Any]]] = {
    "what no output needs": (0, 64, lambda x: (x @ x, x + 1)[1]),
    "in an autograd.Function": (0, 64, Double.apply),
    "in a scripted function": (0, 64, scripted),  # scripted only while tracing
    "called as torch.ops.aten": (64, 64, torch.ops.aten.mm),
}
"""fvcore's number, ours, and the function. A call does not show whether fvcore would see it."""


@pytest.mark.parametrize("name", UNTOLD)
def test_what_no_call_tells(name: str) -> None:
    fvcores, here, run = UNTOLD[name]
    args = (f(4, 4),) * (2 if "aten" in name else 1)
    assert (theirs(Runs(run), args), ours(Runs(run), args).total_flops) == (fvcores, here)
