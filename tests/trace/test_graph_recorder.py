"""The recorder: whatever runs becomes a graph with the same counts, which gives the same outputs twice in a row."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops import analyze, count, profile
from fxflops.api import analyzed
from fxflops.model.pytree import tensors_in


def recorded(model: nn.Module, args: Any = (), kwargs: Any = None) -> tuple[fxflops.Report, torch.fx.GraphModule]:
    report, graph = analyzed(
        model, args, kwargs, trace="record", convention="fxflops", formulas=None, repeats=0, mode="as_is"
    )
    assert report.trace == "recorded trace"
    return report, graph


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    extra: dict[str, list[torch.Tensor]]


class Cache:
    """An object that the model changes, like a KV cache."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def update(self, key: torch.Tensor) -> torch.Tensor:
        self.keys.append(key)
        return torch.cat(self.keys)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 30:
            x = x + 1
        return x[x > 1.5] * x.mean().item()


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        first = y[0]
        first.add_(1)
        y[:, 1] = 7
        torch.mul(y, 2, out=y)
        y.T[2] -= 1
        self.seen += y.sum(0)
        return y + self.seen


class Structures(nn.Module):
    def forward(self, batch: Batch, scale: float = 2.0, *rest: torch.Tensor, **named: torch.Tensor) -> Any:
        y = batch.x @ batch.extra["w"][1] * scale + sum(rest)
        return Batch(y, {"out": [y, named["bias"]]}), (None, {"n": 3, "y": y.relu()})


class Caching(nn.Module):
    def forward(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        return cache.update(x).softmax(0), cache


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.plain = torch.randn(3)
        self.many = [torch.randn(3), torch.randn(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.from_numpy(3 * torch.ones(1).numpy())
        return x * self.weight + self.plain + self.many[1] + torch.tensor([1.0, 2.0, 3.0]) + numbers


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.again = self.fc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.fc(x)) + F.linear(x, self.fc.weight)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        jacobian = torch.func.jacrev(lambda row: self.fc(row).square())(x[0])
        return torch.vmap(lambda row: self.fc(row).sum())(x), jacobian


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.fc, x, use_reentrant=False) + checkpoint(self.fc, x, use_reentrant=True)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Double.apply(x)  # type: ignore[no-untyped-call]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x)
        return y, self.fc(x)


class Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, training=True) + torch.randn_like(x)


class Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(torch.ones(2, 2)), n=3).real


class Ragged(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layout = layout
        self.fc = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor([x, x[:1]], layout=self.layout)
        return self.fc(nested).relu().to_padded_tensor(0.0)


class Power(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**2


class Sparse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(torch.eye(3).to_sparse(), x.T) + torch.eye(3).to_sparse_csr() @ x.T


X = torch.arange(6.0).reshape(2, 3) / 3
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    "control flow on values": (Branches(), (X,), {}),
    "in-place, views, out=": (InPlace(), (X,), {}),
    "structures": (Structures(), (Batch(X, {"w": [X, X.T]}), 3.0, X[:, :2]), {"bias": X}),
    "a cache": (Caching(), (X, Cache()), {}),
    "constants": (Constants(), (X,), {}),
    "shared": (Shared(), (X,), {}),
    "functorch": (Mapped(), (X,), {}),
    "checkpoint": (Checkpointed(), (X,), {}),
    "autograd.Function": (Custom(), (X,), {}),
    "packed": (Packed(), (torch.randn(2, 4, 3), torch.tensor([2, 4])), {}),
    "autocast": (Autocast(), (X,), {}),
    "random": (Random(), (X,), {}),
    "complex": (Complex(), (X,), {}),
    "jagged": (Ragged(torch.jagged), (X,), {}),
    "nested": (Ragged(torch.strided), (X,), {}),
    "sparse": (Sparse(), (X,), {}),
    "a function that code cannot name": (Power(), (X,), {}),
    "attention": (nn.MultiheadAttention(6, 2), (torch.randn(3, 6),) * 3, {}),
    "encoder": (nn.TransformerEncoderLayer(6, 2, 5, batch_first=True).eval(), (torch.randn(1, 3, 6),), {}),
    "transformer": (nn.Transformer(6, 2, 1, 1, 5, batch_first=True), (torch.randn(1, 3, 6), torch.randn(1, 2, 6)), {}),
    "compiled": (nn.Sequential(torch.compile(nn.Linear(3, 3)), nn.ReLU()), (X,), {}),  # type: ignore[arg-type]
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Guards may run slower")  # on Python 3.13.0
@pytest.mark.parametrize("name", CASES)
def test_the_graph_gives_the_models_outputs_twice_in_a_row(name: str) -> None:
    model, args, kwargs = CASES[name]
    model.requires_grad_(False)
    report, graph = recorded(model, args, kwargs)
    if name != "constants":  # this model goes through numpy
        assert report.complete, report.missing
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def outputs(run: Any) -> list[torch.Tensor]:
        model.load_state_dict(state)
        torch.manual_seed(0)
        given = (args[0], Cache()) if name == "a cache" else args
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return [t.to_padded_tensor(0.0) if t.is_nested else t for t in tensors_in(run(*given, **kwargs))]

    expected = outputs(model)
    for _ in range(2):
        for one, other in zip(outputs(graph), expected, strict=True):
            # The encoder itself takes a fused path, which rounds differently.
            assert torch.allclose(one, other, atol=1e-6) if name == "encoder" else torch.equal(one, other)
    assert type(graph(*args, **kwargs)) is type(model(*args, **kwargs))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_count_says_the_same(name: str) -> None:
    model, args, kwargs = CASES[name]
    report, counted = recorded(model, args, kwargs)[0], fxflops.count(model, args, kwargs, mode="as_is")
    assert counted.total_flops == report.total_flops
    assert counted.total_macs == report.total_macs
    assert counted.complete == report.complete
    assert {path: row.total.flops for path, row in counted.by_module().items()} == {
        path: row.total.flops for path, row in report.by_module().items()
    }


def test_nodes_tell_their_modules_and_lines() -> None:
    _, graph = recorded(nn.Sequential(Shared(), Shared()), X)
    stacks = [list(node.meta.get("nn_module_stack", {})) for node in graph.graph.nodes]
    assert ["0", "0.fc"] in stacks
    assert ["0", "0.fc@1"] in stacks
    assert ["1"] in stacks
    assert {node.op for node in graph.graph.nodes} == {
        "placeholder", "call_module", "call_function", "get_attr", "output",
    }  # fmt: skip
    linear = next(node for node in graph.graph.nodes if node.target is F.linear)
    assert "test_graph_recorder.py" in (linear.stack_trace or "")


def test_symbolic_and_recorded_counts_are_the_same_by_module() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    x = torch.randn(1, 3, 6, 6)
    symbolic, record = (fxflops.analyze(model, x, trace=how, repeats=0) for how in ("symbolic", "record"))
    assert {path: row.total for path, row in symbolic.by_module().items()} == {
        path: row.total for path, row in record.by_module().items()
    }


def test_the_users_model_is_not_written_into() -> None:
    model = Shared()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    _, graph = recorded(model, X)
    assert graph.fc is model.fc
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_a_symbolic_graph_that_does_other_than_the_model_is_not_taken() -> None:
    report = fxflops.analyze(Autocast(), X, repeats=0)
    assert report.trace == "recorded trace"
    assert "differs from the model" in report.trace_reason
    with pytest.raises(fxflops.TraceError, match="record"):
        fxflops.analyze(Autocast(), X, repeats=0, trace="symbolic")


class Views(nn.Module):
    """Reads two views of a table that no recorded call made."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = list(torch.arange(6.0).view(2, 3).unbind())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rows[0] + self.rows[1]


class NewOfSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new(x.size()).zero_()
        out[:, :] = 2
        return out + x


class Strides(nn.Module):
    """Calls a layer with one stride, then with another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.conv.stride = (2,)
        x = self.conv(x)
        self.conv.stride = (1,)
        return self.conv(x)


def test_a_layer_whose_settings_change_in_between() -> None:
    model, x = Strides(), torch.randn(1, 4, 8)
    for report in (fxflops.analyze(model, x, repeats=1, progress=False), fxflops.count(model, x)):
        assert report.total_macs == (4 + 4) * 4 * 4
    assert model.conv.stride == (1,)


@pytest.mark.parametrize("model", [Views(), NewOfSize()])
def test_the_graph_is_of_the_tensors_that_were_there(model: nn.Module) -> None:
    _, graph = recorded(model, torch.randn(4, 3))
    x = torch.randn(4, 3)
    assert torch.equal(graph(x), model(x))


@pytest.mark.parametrize("body", [lambda y: y.topk(2), lambda y: y.max(-1), lambda y: torch.svd(y)])
def test_torchs_own_tuples_are_returned(body: Any) -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return body(self.fc(x))

    model, x = Returning(), torch.ones(3, 4)
    report, graph = recorded(model, x)
    assert report.total_macs == 3 * 4 * 4
    assert report.total_flops == count(model, x).total_flops
    with torch.no_grad():
        for mine, own in zip(graph(x), model(x), strict=True):
            assert torch.equal(mine, own)


def test_a_function_that_returns_what_it_was_given() -> None:
    """Full backward hooks (e.g. opacus's) put such a function around a module, and gradients pass through it."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(3, 4, requires_grad=True)
    for layer in model:
        layer.register_full_backward_hook(lambda module, given, out: None)
    for trace in ("auto", "record"):
        report = analyze(model, x, backward=True, trace=trace, repeats=1, progress=False)
        assert report.total_macs == 3 * 4 * 4 + 3 * 4 * 2
        assert report.total_backward_macs == 2 * (3 * 4 * 4 + 3 * 4 * 2)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_copy_of_a_module_made_in_a_forward(hooked: bool) -> None:
    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            if hooked:
                self.fc.register_forward_hook(lambda module, args, out: out + 1)

        def forward(self, x: torch.Tensor) -> Any:
            self.copied = copy.deepcopy(self.fc)
            return self.copied(x)

    model, x = Copying(), torch.ones(3, 4)
    with profile(model) as p:
        model(x)
    model.copied(x)
    for report in (
        p.report,
        count(model, x),
        analyze(model, x, repeats=1, progress=False),
        analyze(model, x, trace="record", repeats=1, progress=False),
    ):
        assert report.total_macs == 3 * 4 * 4
        assert report.complete
