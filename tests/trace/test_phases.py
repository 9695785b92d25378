"""Phases: forward, gradient, backward, recomputation and optimizer step; by hand, and against torch's FlopCounterMode."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import fxflops
from fxflops.torch_internals import CHECKPOINT_FILE, READS_METADATA
from fxflops.trace.phases import is_comparing

ROWS, INPUTS, OUTPUTS = 3, 8, 4
X = torch.randn(ROWS, INPUTS)
WEIGHTS = INPUTS * OUTPUTS + OUTPUTS


def stepped(model: nn.Module, optimizer: Optimizer, *, named: bool, with_closure: bool) -> tuple[fxflops.Report, int]:
    """Profile a training step. Return the report, and how often the closure ran."""
    ran = 0

    def closure() -> Any:
        nonlocal ran
        ran += 1
        optimizer.zero_grad()
        loss = model(X).sum()
        loss.backward()
        return loss

    with fxflops.profile(model, optimizer=optimizer if named else None) as p:
        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks
    return p.report, ran


@pytest.mark.parametrize("named", [True, False], ids=["named", "nobody named it"])
@pytest.mark.parametrize("with_closure", [True, False], ids=["closure", "loop"])
def test_only_the_arithmetic_of_a_step_is_the_optimizers(named: bool, with_closure: bool, device: str) -> None:
    model = nn.Linear(INPUTS, OUTPUTS).to(device)
    report, _ = stepped(model, SGD(model.parameters(), lr=0.1), named=named, with_closure=with_closure)
    assert report.total_macs == ROWS * INPUTS * OUTPUTS
    assert report.total_flops == 2 * ROWS * INPUTS * OUTPUTS + ROWS * OUTPUTS - 1  # plus the sum, i.e. the loss
    assert report.total_backward_macs == ROWS * INPUTS * OUTPUTS  # of the weight: the input needs no gradient
    assert report.total_optimizer_flops == 2 * WEIGHTS  # weight -= lr * gradient


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # torch 2.8 warns about its own LBFGS
@pytest.mark.parametrize("named", [True, False], ids=["named", "nobody named it"])
def test_a_closure_that_is_called_again_and_again(named: bool, device: str) -> None:
    model = nn.Linear(INPUTS, OUTPUTS).to(device)
    report, ran = stepped(model, LBFGS(model.parameters(), max_iter=5), named=named, with_closure=True)
    assert ran > 1
    assert report.total_macs == report.total_backward_macs == ran * ROWS * INPUTS * OUTPUTS
    assert report.total_flops == ran * (2 * ROWS * INPUTS * OUTPUTS + ROWS * OUTPUTS - 1)
    assert report.total_optimizer_flops > 2 * WEIGHTS
    closure = [f"step {i + 1}{part}" for i in range(ran) for part in ("", " backward", " optimizer")]
    assert [*report.by_step()] == [*closure, "(outside)"]


def test_a_step_that_raises_is_over() -> None:
    model = nn.Linear(INPUTS, OUTPUTS)
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        raise ZeroDivisionError

    with fxflops.profile(model) as p:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure)
        model(X)
    assert p.report.total_macs == ROWS * INPUTS * OUTPUTS
    assert p.report.total_optimizer_flops is None
    assert not optimizer._optimizer_step_pre_hooks


def test_the_state_of_an_optimizer_that_nobody_named() -> None:
    model = nn.Linear(INPUTS, OUTPUTS)
    report, _ = stepped(model, AdamW(model.parameters()), named=False, with_closure=False)
    assert report.memory["optimizer"] == 4 * (2 * WEIGHTS + 2)  # two moments, and the steps of weight and bias


def test_another_threads_optimizer_is_left_alone() -> None:
    model, other = nn.Linear(INPUTS, OUTPUTS), nn.Linear(INPUTS, OUTPUTS)
    optimizer = SGD(other.parameters(), lr=0.1)
    hooks = list[int]()
    optimizer.register_step_post_hook(lambda *_: hooks.append(len(optimizer._optimizer_step_pre_hooks)))

    def train() -> None:
        other(X).sum().backward()
        optimizer.step()

    with fxflops.profile(model) as p:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        model(X)
    assert hooks == [0]
    assert p.report.total_optimizer_flops is None


def test_a_step_in_the_backward_pass(device: str) -> None:
    """Each gradient is used as soon as it exists."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).to(device)
    optimizers = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def use(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(use)
    with fxflops.profile(model) as p:
        torch.autograd.backward(model(X), torch.ones(ROWS, 8, device=device))
    assert p.report.total_optimizer_flops == 2 * 2 * 64
    assert p.report.total_backward_macs == 3 * ROWS * 64


HIDDEN, POINTS = 16, 5


class Forces(nn.Module):
    """Returns an energy, and minus its derivative with respect to the positions."""

    def __init__(self, create_graph: bool = True) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
        self.create_graph = create_graph

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = self.net(x).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=self.create_graph)
        return energy, -slope


def profiled(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    with fxflops.profile(model) as p:
        model(x)
    return p.report


def analyzed(model: nn.Module, x: torch.Tensor, **settings: Any) -> fxflops.Report:
    return fxflops.analyze(model, x, repeats=0, progress=False, **settings)


@pytest.mark.parametrize("way", [fxflops.count, analyzed, profiled])
@pytest.mark.parametrize("create_graph", [True, False])
def test_a_gradient_inside_the_forward_is_a_part_of_it(way: Callable[..., Any], create_graph: bool) -> None:
    report = way(Forces(create_graph), torch.randn(POINTS, 3))
    layers = POINTS * (3 * HIDDEN + HIDDEN * 1)
    assert report.total_macs == report[""].total.macs == 2 * layers  # and back through each layer, to its input
    assert report.by_module("gradient")[""].total.macs == layers
    assert report.total_backward_flops is report.total_recompute_flops is None
    energy = 2 * layers + POINTS * HIDDEN + (POINTS - 1)  # plus tanh and the sum
    assert report.total_flops - report.total_gradient_flops == energy + 3 * POINTS  # plus the minus of the slope
    assert sum(row.total.flops for row in report.by_operator().values()) == report.total_flops
    assert "gradient " in str(report)


def test_it_is_the_same_number_however_it_is_counted() -> None:
    x = torch.randn(POINTS, 3)
    reports = [fxflops.count(Forces(), x), analyzed(Forces(), x), profiled(Forces(), x)]
    assert len({report.total_flops for report in reports}) == 1
    assert len({report.total_gradient_flops for report in reports}) == 1


@pytest.mark.parametrize("way", [fxflops.count, analyzed])
def test_the_second_derivative_of_a_training_step_is_backward(way: Callable[..., Any]) -> None:
    model, x = Forces(), torch.randn(POINTS, 3, requires_grad=True)
    report = way(model, x, backward=True)
    first, _, last = model.net
    with FlopCounterMode(display=False) as forward:  # without modules: with them, it allows no gradient in the forward
        energy = F.linear(torch.tanh(F.linear(x, first.weight, first.bias)), last.weight, last.bias).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
    params, ones = [*model.parameters()], [torch.ones(()), torch.ones(POINTS, 3)]
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad([energy, force], [*params, x], ones)
    assert 2 * report.total_macs == forward.get_total_flops()
    assert 2 * report.total_backward_macs == backward.get_total_flops()
    assert report.total_recompute_flops == 0


class Taught(nn.Module):
    """A checkpointed block with a part that needs no gradient."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.student, self.teacher = (nn.Linear(8, 8) for _ in range(3))
        self.reentrant = reentrant

    def block(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = self.teacher(x)
        return torch.tanh(self.student(x) * taught)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y: torch.Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return y


@pytest.mark.parametrize("way", [fxflops.count, analyzed])
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpoint_runs_again_without_gradients_is_recomputation_too(
    way: Callable[..., Any], reentrant: bool, device: str
) -> None:
    report = way(Taught(reentrant).to(device), X, backward=True)
    layer = ROWS * 8 * 8
    assert report.by_module("recompute")[""].total.macs == 2 * layer  # teacher and student
    assert report.total_backward_macs == layer + 2 * layer  # first's weight, student's weight and input


class Stopped(nn.Module):
    """A checkpointed block. Its recomputation stops as soon as the last saved tensor exists."""

    def __init__(self, block: nn.Module, use_reentrant: bool = False) -> None:
        super().__init__()
        self.block = block
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = checkpoint(self.block, x, use_reentrant=self.use_reentrant)
        return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]


class Summed(nn.Module):
    """A layer, and a logsumexp, which saves its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).logsumexp(1)


STOPPED: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "LSTM": (lambda: nn.LSTM(INPUTS, OUTPUTS), ROWS * 4 * (INPUTS + OUTPUTS) * OUTPUTS),
    "LSTM of two layers": (
        lambda: nn.LSTM(INPUTS, OUTPUTS, 2),
        ROWS * 4 * (INPUTS + OUTPUTS) * OUTPUTS + ROWS * 4 * 2 * OUTPUTS * OUTPUTS,
    ),
    "GRU": (lambda: nn.GRU(INPUTS, OUTPUTS), ROWS * 3 * (INPUTS + OUTPUTS) * OUTPUTS),
    "a linear that saves its input": (lambda: nn.Linear(INPUTS, OUTPUTS), 0),
    "what comes before it": (
        lambda: nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.Tanh(), nn.Linear(OUTPUTS, 2)),
        ROWS * INPUTS * OUTPUTS,
    ),
}
"""Blocks, with the MACs that are recomputed, by hand."""


@pytest.mark.parametrize("name", STOPPED)
def test_the_call_that_checkpoint_stops_counts_what_it_has_computed(name: str) -> None:
    make, wanted = STOPPED[name]
    model, x = Stopped(make()), X.unsqueeze(0).requires_grad_()
    for run in (fxflops.count, partial(fxflops.analyze, repeats=0, progress=False)):
        report = run(model, x, backward=True)  # type: ignore[operator]
        assert sum(each.macs for each in report.counted if each.call.phase == "recompute") == wanted


def test_an_operator_that_saves_its_result_has_run_when_checkpoint_stops_it() -> None:
    report = fxflops.count(Stopped(nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.Tanh())), X, backward=True)
    assert report.total_recompute_flops == report.total_flops


def test_a_checkpoint_in_one_that_autograd_enters_again() -> None:
    """The whole linear layer, and the operator that the inner checkpoint stops: each runs again twice, not three times."""
    block = Stopped(Summed())
    model = Stopped(block, use_reentrant=True)
    with FlopCounterMode(display=False) as counter:
        model(X.clone().requires_grad_()).sum().backward()
    model.zero_grad()
    report = fxflops.count(model, X.clone().requires_grad_(), backward=True)
    assert sum(each.macs for each in report.counted) * 2 == counter.get_total_flops()


class Attentive(nn.Module):
    """A projection by a module, then attention and a product by functions, each of several operators."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.weight = nn.Linear(8, 24), nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.gelu(F.linear(y, self.weight)) @ self.weight


aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
KEPT = {
    "projections": {aten.addmm.default},
    "products": {aten.mm.default},
    "attention": {ATTENTION.default},
    "all of them": {aten.addmm.default, aten.mm.default, ATTENTION.default},
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("measure", ["count", "profile", "analyze"])
def test_what_selective_checkpointing_has_saved_is_not_computed_again(kept: str, measure: str) -> None:
    class Selective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Attentive()

        def forward(self, x: torch.Tensor) -> Any:
            contexts = partial(create_selective_checkpoint_contexts, [*KEPT[kept]])
            return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts)

    model, x = Selective(), torch.randn(2, 5, 8, requires_grad=True)
    known = {ATTENTION: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}  # built in since torch 2.15
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        model(x).sum().backward()
    model.zero_grad()
    if measure == "profile":
        with fxflops.profile(model) as p:
            model(x).sum().backward()
        report = p.report
    elif measure == "count":
        report = fxflops.count(model, x, backward=True, mode="as_is")
    else:
        report = fxflops.analyze(model, x, backward=True, repeats=1, progress=False)
    # FlopCounterMode also counts what the kernel of attention's backward recomputes.
    theirs = sum(n for op, n in counter.get_flop_counts()["Global"].items() if not str(op).endswith("_backward"))
    assert 2 * sum(each.macs for each in report.counted if each.call.op != "attention_backward") == theirs


def test_checkpoint_compares_what_its_own_function_reads() -> None:
    def asking(source: str, file: str) -> Callable[[], bool]:
        names: dict[str, Any] = {"is_comparing": is_comparing, "__name__": checkpoint.__module__}
        exec(compile(source, file, "exec"), names)
        return names[READS_METADATA]

    body = "return is_comparing()"
    assert asking(f"def {READS_METADATA}(): {body}", CHECKPOINT_FILE)()
    assert not asking(f"def another(): {body}\ndef {READS_METADATA}(): return another()", CHECKPOINT_FILE)()
    assert not asking(f"def {READS_METADATA}(): {body}", "model.py")()  # a user's function with that name


@pytest.mark.parametrize("settings", [{}, {"device": "cuda"}, {"device": "cuda", "autocast": torch.bfloat16}])
def test_checkpoints_in_each_other_are_counted_for_any_device(settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 8)).to("meta")
    for path in ("0", "0.0"):
        module = model.get_submodule(path)
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    report = fxflops.count(model, torch.ones(4, 8, device="meta"), backward=True, **settings)
    # The first linear runs again within the sequence. Its own recomputation stops at its saved input and computes nothing.
    assert report.total_recompute_flops == 2 * 4 * 8 * 8 + 4 * 8


@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_the_gradient_that_the_backward_pass_begins_with_is_of_it(backward: Callable[..., None]) -> None:
    model = nn.Linear(INPUTS, OUTPUTS)
    with fxflops.profile(model) as p:
        backward(model(X).sum())
    assert [call.phase for call in p.report.calls if call.op == "ones_like"] == ["backward"]
    assert "ones_like" not in p.report.by_operator("forward")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_count_in_a_recomputation_is_of_a_forward(use_reentrant: bool) -> None:
    layer, counts = nn.Linear(INPUTS, OUTPUTS), []
    layer.register_forward_hook(lambda *_: None)  # with a hook it is run, and its operators are recorded one by one

    def block(x: torch.Tensor) -> torch.Tensor:
        counts.append(fxflops.count(layer, x.detach()))
        return layer(x).sin()

    checkpoint(block, X.clone().requires_grad_(), use_reentrant=use_reentrant).sum().backward()
    assert [(each.total_macs, len(each.scopes)) for each in counts] == 2 * [(ROWS * INPUTS * OUTPUTS, 1)]
