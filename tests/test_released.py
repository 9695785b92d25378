"""A run keeps nothing alive: model, inputs and results are freed when the user drops them, even while the report is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops import TorchFLOPsByFX, analyze, closed_form, count, profile, serving, summary

from .standin import StandIn

Held = list["weakref.ref[Any]"]
MADE: Held = []
"""The storages that the models below made in their forwards."""


def made(value: Any) -> Any:
    """Record the value's storages and return it."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    MADE.extend(weakref.ref(t.untyped_storage()) for t in tensors)
    return value


class Leaves(nn.Module):
    """torch's leaf modules and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        x = made(F.relu(self.norm(self.conv(x)), inplace=True))
        return made(self.head(self.drop(x.mean((2, 3)))))

    @staticmethod
    def inputs() -> Any:
        return torch.randn(2, 3, 8, 8)


class Recurrent(nn.Module):
    """A torch module with packed weights and a tuple as its result."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return made(self.rnn(x)[0])

    @staticmethod
    def inputs() -> Any:
        return torch.randn(2, 5, 4)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


class Own(nn.Module):
    """Things symbolic tracing cannot follow: a function that closes over a weight, a user's leaf class, and values that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = lambda x: x @ self.weight
        self.act = type("Act", (nn.ReLU,), {})()  # a class that is freed with the model

    def forward(self, x: Any) -> Any:
        x = made(self.act(Doubled.apply(self.scale(x))))
        if float(x.detach().sum()) < -1e9:
            return x
        x = x[: made(torch.tensor(2))]  # the record of this call must not keep the bound alive
        return made(torch.utils.checkpoint.checkpoint(self.scale, x, use_reentrant=False))

    @staticmethod
    def inputs() -> Any:
        return torch.randn(3, 4)


class Reading(Leaves):
    """Reads a value, so a count gives up its run on meta and runs on real tensors."""

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out if out.detach().sum().item() > -1e9 else -out


class Closing(Leaves):
    """Uses a tensor that is not the model's, so a count discards its first run on meta and repeats it with a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        scale = torch.ones(5)
        self.scaled = lambda x: x * scale

    def forward(self, x: Any) -> Any:
        return made(self.scaled(super().forward(x)))


class Raising(Leaves):
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        raise ValueError(f"not today: {out.shape}")


def profiled(model: nn.Module, x: torch.Tensor, **settings: Any) -> Any:
    with profile(model, **settings) as p:
        model(x)
    return p.report


def trained(model: nn.Module, x: torch.Tensor, **settings: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(model, optimizer=optimizer, **settings) as p:
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


def by_fx(model: nn.Module, x: torch.Tensor) -> Any:
    counter = TorchFLOPsByFX(model)
    counter.propagate(x)
    return counter.report, counter.result_table


def with_formula(model: nn.Module, x: torch.Tensor) -> None:
    """Count with a formula for a function whose default argument is the model. The report holds both, so it is dropped."""

    def half(value: Any, model: nn.Module = model) -> Any:
        if torch.overrides.has_torch_function_unary(value):
            return torch.overrides.handle_torch_function(half, (value,), value)
        return value / 2

    def formula(value: Any, *, out: Any) -> int:
        return out.numel()  # type: ignore[no-any-return]

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return half(self.model(x))

    assert "half" in str(count(Halved(), x, formulas={half: formula}).by_operator())


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "count": count,
    "count backward": lambda m, x: count(m, x, backward=True),
    "count optimizer": lambda m, x: count(m, x, backward=True, optimizer=torch.optim.AdamW),
    "count exact": lambda m, x: count(m, x, attention="exact"),
    "count formula": with_formula,
    "analyze": lambda m, x: analyze(m, x, repeats=2),
    "analyze untimed": lambda m, x: analyze(m, x, repeats=0),
    "analyze record": lambda m, x: analyze(m, x, repeats=1, trace="record"),
    "analyze backward": lambda m, x: analyze(m, x, repeats=1, backward=True),
    "analyze kernels": lambda m, x: analyze(m, x, repeats=1, kernels=True),
    "summary": lambda m, x: summary(m, input_data=x),
    "profile": profiled,
    "profile training": trained,
    "profile modules": lambda m, x: profiled(m, x, detail="modules"),
    "profile steps": lambda m, x: trained(m, x, detail="steps"),
    "TorchFLOPsByFX": by_fx,
    "closed_form": lambda m, x: closed_form(m, x, dynamic_shapes={"x": {0: "batch"}}),
    "graph of TorchFLOPsByFX": lambda m, x: TorchFLOPsByFX(m).graph_model and None,
}


KEPT = {
    "TorchFLOPsByFX": "a graph that the user may have is in a cycle of torch.fx",
    "graph of TorchFLOPsByFX": "a graph that the user may have is in a cycle of torch.fx",
    "count formula": "its model is in a cycle",
    "profile training": "torch's optimizers are in cycles",
    "profile steps": "torch's optimizers are in cycles",
}


def tracked(model: nn.Module, x: torch.Tensor) -> Held:
    """Weak references to the model's modules, and to the storages of its tensors and the input."""
    tensors = [*model.parameters(), *model.buffers(), x]
    return [*map(weakref.ref, model.modules()), *(weakref.ref(tensor.untyped_storage()) for tensor in tensors)]


def alive(refs: Held) -> list[str]:
    return [type(each).__name__ for ref in refs if (each := ref()) is not None]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cls", [Leaves, Recurrent, Own, Raising])
def test_all_dies_with_the_report_in_hand(cls: Any, call: str) -> None:
    MADE.clear()
    model, x = cls(), cls.inputs()
    refs = tracked(model, x)
    report = None
    with suppress(fxflops.FxflopsError, ValueError):
        report = CALLS[call](model, x)
    del model, x
    gc.collect()
    assert alive(refs) == [] == alive(MADE), report


@cache
def use_first(cls: Any) -> None:
    """Count a model of the class once: torch's first LSTM on meta in a process leaves a cycle that holds one of its results."""
    with suppress(fxflops.FxflopsError, ValueError):
        fxflops.count(cls(), cls.inputs())


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cls", [Leaves, Recurrent, Own, Raising])
def test_what_a_run_made_dies_without_the_garbage_collector(cls: Any, call: str) -> None:
    """The garbage collector does not know about device memory, so memory held by a reference cycle may not be freed in time."""
    use_first(cls)
    MADE.clear()
    model, x = cls(), cls.inputs()
    with suppress(fxflops.FxflopsError, ValueError):
        CALLS[call](model, x)
    assert alive(MADE) == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("cls", [Leaves, Recurrent, Reading, Closing, Raising])
def test_a_model_dies_without_the_garbage_collector(cls: Any, call: str) -> None:
    """Also a model whose run was discarded or raised."""
    if call in KEPT:
        pytest.skip(KEPT[call])
    use_first(cls)
    model, x = cls(), cls.inputs()
    refs = tracked(model, x)
    report = None
    with suppress(fxflops.FxflopsError, ValueError):
        report = CALLS[call](model, x)
    del model, x
    assert alive(refs) == [], report


def test_serving_releases_the_model() -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
    refs = tracked(model, torch.zeros(1))
    result = serving(model, prompt=4, new_tokens=2)
    del model
    gc.collect()
    assert result.prefill_flops > 0
    assert alive(refs) == []


@pytest.mark.parametrize("call", CALLS)
def test_an_accelerator_has_its_memory_back(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standin = StandIn()
    standin.take_over(monkeypatch)
    with standin.memory:
        model, x = standin.to(Leaves()), standin.to(Leaves.inputs())
        report = CALLS[call](model, x)
        del model, x
        gc.collect()
        assert standin.memory.live == 0
    del report


@pytest.mark.cuda
@pytest.mark.parametrize("call", CALLS)
def test_cuda_has_its_memory_back(call: str) -> None:
    if call == "closed_form":
        pytest.skip("it counts on meta alone")
    live = []
    for _ in range(3):  # libraries allocate their workspaces in the first run
        model, x = Leaves().cuda(), Leaves.inputs().cuda()
        report = CALLS[call](model, x)
        del model, x
        gc.collect()
        live.append(torch.cuda.memory_allocated())
        del report
    assert live[1] == live[2]
