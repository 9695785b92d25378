"""Programs of torch.export and TorchScript must count like the eager model that they were made from, in total and module by module."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import fxflops

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
X, IMAGE = torch.randn(4, 8), torch.randn(2, 3, 9, 9)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(8, 8), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))  # type: ignore[no-any-return]


class Net(nn.Module):
    """A model with two blocks, buffers and a plain tensor. Its forward calls a function."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b = Block(), Block()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.plain = torch.ones(8)
        self.function = forward

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def under_autocast(net: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return net.a(x)


def without_gradients(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        y = net.a(x)
    return net.b(y)


def writing(net: Any, x: Tensor) -> Any:
    net.seen.add_(1)
    net.mean.mul_(0.9).add_(x.mean(0) * 0.1)
    return net.a(x) + net.mean


def of_views(net: Any, x: Tensor) -> Any:
    y = x.view(8, 4)
    return y, y.t(), net.a(x)


def nested(net: Any, given: Any) -> Any:
    return {"sum": net.a(given[0]) + given[1]["k"]}


def flagged(net: Any, x: Tensor, flag: bool, times: int) -> Any:
    return net.a(x) * times if flag else x


def attending(net: Any, x: Tensor) -> Any:
    q = net.a(x).view(1, 2, 4, 4)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def branching(net: Any, x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 2, net.a, net.b, (x,))


def checkpointed(net: Any, x: Tensor) -> Any:
    return checkpoint(net.a, x, use_reentrant=False)


FORWARDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (lambda net, x: net.b(net.a(x)), (X,)),
    "a module twice": (lambda net, x: net.a(net.a(x)) + net.a(x), (X,)),
    "autocast": (under_autocast, (X,)),
    "no_grad": (without_gradients, (X,)),
    "buffers are written": (writing, (X,)),
    "an input is written": (lambda net, x: net.a(x.add_(1)), (X.clone(),)),
    "outputs are views": (of_views, (X,)),
    "nested inputs": (nested, ([X, {"k": X}],)),
    "constants among the inputs": (flagged, (X, True, 3)),
    "constant tensors": (lambda net, x: net.a(x) + torch.tensor([1.0] * 8) + net.plain, (X,)),
    "an unused input": (lambda net, x, y: net.a(x), (X, X)),
    "attention": (attending, (X,)),
    "cond": (branching, (X,)),
    "checkpoint": (checkpointed, (X,)),
}
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    **{name: lambda f=f, args=args: (Net(f).eval(), args) for name, (f, args) in FORWARDS.items()},  # type: ignore[misc]
    "layers": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Hardswish(),
            nn.Dropout(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        ).eval(),
        (IMAGE,),
    ),
    "batch norm that trains": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (IMAGE,)),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(2, 5, 8),)),
    "lstm": lambda: (nn.LSTM(8, 4, batch_first=True).eval(), (torch.randn(2, 5, 8),)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)), (torch.zeros(2, 3, dtype=torch.long),)),
}


def sums(report: fxflops.Report) -> dict[str, Any]:
    """Return everything that must be equal: totals, parameters, missing operators, and the sums of each module that computes."""
    modules = {path: (row.total.macs, row.total.flops) for path, row in report.by_module().items()}
    return {
        "macs": report.total_macs,
        "flops": report.total_flops,
        "params": report.params[0],
        "missing": [missing.op for missing in report.missing],
        "modules": {path: sums for path, sums in modules.items() if sums != (0, 0)},
    }


def through_a_file(program: Any, tmp_path: Path) -> Any:
    torch.export.save(program, tmp_path / "program.pt2")
    return tmp_path / "program.pt2"


@pytest.mark.parametrize("name", MODELS)
def test_a_program_counts_as_its_model(name: str, tmp_path: Path) -> None:
    model, args = MODELS[name]()
    eager = sums(fxflops.count(model, args, mode="as_is"))
    program = export(model, args)
    assert sums(fxflops.count(program, args)) == eager
    assert sums(fxflops.count(program)) == eager  # with the inputs of the export
    assert sums(fxflops.count(through_a_file(program, tmp_path), args)) == eager
    assert eager["flops"]


@pytest.mark.parametrize("name", ["plain", "a module twice", "nested inputs", "cond"])
def test_other_ways_to_export(name: str) -> None:
    model, args = MODELS[name]()
    eager = sums(fxflops.count(model, args))
    strict = sums(fxflops.count(export(model, args, strict=True)))
    assert {**strict, "params": None} == {**eager, "params": None}  # a strict export leaves out unused parameters
    assert sums(fxflops.count(export(model, args).run_decompositions())) == eager


def test_macs_of_a_program_are_those_of_the_flop_counter() -> None:
    model, args = torchvision.models.resnet18().eval(), (torch.randn(1, 3, 64, 64),)
    program = export(model, args)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        program.module()(*args)
    assert 2 * fxflops.count(program).total_macs == counter.get_total_flops()


def test_the_backward_pass_of_a_program() -> None:
    model, args = MODELS["plain"]()
    program = export(model, args)
    eager = fxflops.count(model, args, backward=True, optimizer=torch.optim.AdamW(model.parameters()))
    ours = fxflops.count(program, backward=True, optimizer=torch.optim.AdamW(program.module().parameters()))
    assert ours.total_training_flops == eager.total_training_flops
    assert ours.total_optimizer_flops == eager.total_optimizer_flops


def test_a_program_is_analyzed_and_left_as_it_was() -> None:
    model, args = MODELS["buffers are written"]()
    program = export(model, args)
    before = {name: tensor.clone() for name, tensor in program.state_dict.items()}
    report = fxflops.analyze(program, repeats=1)
    assert sums(report) == sums(fxflops.count(model, args))
    assert report.latency is not None
    assert all(torch.equal(before[name], tensor) for name, tensor in program.state_dict.items())


def test_tied_weights_are_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    path = through_a_file(export(model, (X,)), tmp_path)
    assert fxflops.count(path).params[0] == 64


def test_a_missing_operator_is_at_its_authors_line(tmp_path: Path) -> None:
    @torch.library.custom_op("programs_test::scan", mutates_args=())
    def scan(x: Tensor) -> Tensor:
        return x * 2

    @scan.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    class Scan(Block):
        def forward(self, x: Tensor) -> Tensor:
            return scan(self.fc(x))  # type: ignore[no-any-return]

    model = nn.Sequential(Scan())
    program = export(model, (X,))
    for given in (program, through_a_file(program, tmp_path)):
        (ours,), (eager,) = fxflops.count(given, X).missing, fxflops.count(model, X).missing
        assert (ours.op, ours.path, ours.site) == (eager.op, eager.path, eager.site)
        assert __file__ in ours.site


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.conv(x) * scale  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def dynamic() -> Any:
    batch, height = Dim("batch", max=64), Dim("height", min=16, max=256)
    args = torch.randn(2, 3, 32, 32), torch.ones(2, 1, 1, 1)
    return export(Image().eval(), args, dynamic_shapes=({0: batch, 2: height}, {0: batch}))


def test_sizes_to_choose_are_asked_for(dynamic: Any) -> None:
    with pytest.raises(fxflops.InputError) as raised:
        fxflops.count(dynamic)
    said = str(raised.value)
    assert "x float32[" in said
    assert ", 3, " in said
    assert "is from 16 to 256" in said
    command = said.partition("e.g. ")[2]
    assert eval(
        command, {"fxflops": fxflops, "torch": torch, "program": dynamic}
    ).total_macs  # the suggested command works


@pytest.mark.parametrize("sizes", [(3, 16), (64, 100)])
def test_sizes_that_are_chosen(dynamic: Any, sizes: tuple[int, int]) -> None:
    batch, height = sizes
    args = torch.empty(batch, 3, height, 32), torch.empty(batch, 1, 1, 1)
    assert fxflops.count(dynamic, args).total_macs == batch * 4 * (height - 2) * 30 * 27
    assert sums(fxflops.count(dynamic, args)) == sums(fxflops.count(Image(), args))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((2, 3, 8, 32), (2, 1, 1, 1)), "is from 16 to 256"),
        (((65, 3, 32, 32), (65, 1, 1, 1)), "to 64"),
        (((2, 3, 32, 33), (2, 1, 1, 1)), "torch.export.export fixed size 3 as 32"),
        (((2, 3, 32), (2, 1, 1, 1)), "the input must have 4 dimensions"),
        (((2, 3, 32, 32), (3, 1, 1, 1)), "size 0 must be 2, to match other inputs"),
    ],
)
def test_inputs_that_do_not_fit(dynamic: Any, shapes: Any, said: str) -> None:
    with pytest.raises(fxflops.InputError, match="the program takes") as raised:
        fxflops.count(dynamic, tuple(map(torch.empty, shapes)))
    assert said in str(raised.value)


def test_constants_and_nesting_are_checked() -> None:
    model, args = MODELS["constants among the inputs"]()
    program = export(model, args)
    with pytest.raises(fxflops.InputError, match=r"must be 3, as in the export, not 4"):
        fxflops.count(program, (X, True, 4))
    assert fxflops.count(program, X).total_macs == 256  # constants of the program need not be passed
    model, args = MODELS["nested inputs"]()
    with pytest.raises(fxflops.InputError, match=r"inputs must be nested as in the export: \(\[.*'k'.*, not "):
        fxflops.count(export(model, args), ([X, X],))


# TorchScript


def scripts(model: nn.Module, args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    script = torch.jit.script(model)
    yield "scripted", script
    yield "traced", torch.jit.trace(model, args, check_trace=False)
    written = io.BytesIO()
    torch.jit.save(script, written)
    written.seek(0)
    yield "loaded", torch.jit.load(written)


class Attending(nn.Module):
    """Uses functions that TorchScript composes of others, a module that is called twice, and a tensor made from numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.act = nn.Linear(8, 24), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = [part.view(1, 4, 2, 4).transpose(1, 2) for part in self.act(self.qkv(x)).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 8)
        return self.act(self.out(y)) + torch.tensor([1.0, 2.0, 3.0, 4.0]).sum()  # type: ignore[no-any-return]


SCRIPTED: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "attention": lambda: (Attending().eval(), (X,)),
    "resnet18": lambda: (torchvision.models.resnet18().eval(), (torch.randn(1, 3, 64, 64),)),
    "vit": lambda: (torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32).eval(), (torch.randn(1, 3, 32, 32),)),
    "overloads of forward": lambda: (
        torchvision.models.DenseNet(8, (2,), 16, num_classes=3).eval(),
        (torch.randn(1, 3, 32, 32),),
    ),
    "quantized": lambda: (
        torchvision.models.quantization.shufflenet_v2_x0_5(quantize=True, weights=None),
        (torch.randn(1, 3, 64, 64),),
    ),
}


@pytest.mark.parametrize("name", SCRIPTED)
def test_torchscript_counts_as_its_model(name: str) -> None:
    model, args = SCRIPTED[name]()
    eager = sums(fxflops.count(model, args))
    for way, script in scripts(model, args):
        if way == "traced" and name == "attention":
            continue  # a trace computes with sizes, and stores numbers as tensors
        assert sums(fxflops.count(script, args)) == eager, way


def test_a_script_is_left_as_it_was() -> None:
    script = torch.jit.script(Attending().eval())
    before, code = str(script.graph), script.code
    weights = [*script.parameters()]
    optimizer = torch.optim.SGD(script.parameters(), 0.1)
    first = fxflops.count(script, X, backward=True, optimizer=optimizer)
    assert first.total_optimizer_flops
    assert (str(script.graph), script.code) == (before, code)
    assert all(a is b for a, b in zip(weights, script.parameters(), strict=True))
    assert sums(fxflops.count(script, X)) == sums(fxflops.count(Attending(), X))


def test_names_of_a_script() -> None:
    report = fxflops.count(torch.jit.script(torchvision.models.resnet18().eval()), torch.randn(1, 3, 64, 64))
    text = str(report)
    assert text.startswith("ResNet ")
    assert "BasicBlock (x2)" in text
    with pytest.raises(fxflops.InputError, match=r"do not fit Attending.forward\(x\)"):
        fxflops.count(torch.jit.script(Attending()), (X, X))
