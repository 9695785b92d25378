"""The backward pass: which module each gradient belongs to, its operations and its time; by hand, and against FlopCounterMode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.trace.autograd_owners import AutogradOwners

X = torch.randn(4, 8)


class Net(nn.Module):
    """8 -> 16 -> 8 between 8 -> 8 and 8 -> 2. The middle may be checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.last = nn.Linear(8, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.reentrant is None:
            return self.last(self.middle(x))
        return self.last(checkpoint(self.middle, x, use_reentrant=self.reentrant))


Way = Callable[[nn.Module, torch.Tensor], fxflops.Report]


def counted(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    return fxflops.count(model, x, backward=True)


def analyzed(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    return fxflops.analyze(model, x, backward=True, repeats=1, progress=False)


def recorded(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    return fxflops.analyze(model, x, backward=True, trace="record", repeats=0, progress=False)


def profiled(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    with fxflops.profile(model) as p:
        out = model(x)
        torch.autograd.backward(out, torch.ones_like(out))
    model.zero_grad()
    return p.report


WAYS: dict[str, Way] = {"count": counted, "analyze": analyzed, "record": recorded, "profile": profiled}


def macs(report: fxflops.Report, phase: str = "backward") -> dict[str, int]:
    return {path: row.total.macs for path, row in report.by_module(phase).items() if row.total.macs}


@pytest.mark.parametrize("way", WAYS)
def test_each_module_has_its_part(way: str) -> None:
    report = WAYS[way](Net(), X)
    # A Linear(i, o) on 4 rows: 4io for its weight and 4io for its input. The first layer's input needs no gradient.
    assert macs(report) == {
        "": 256 + 2 * 1024 + 128, "first": 4 * 8 * 8, "middle": 2048, "middle.0": 2 * 4 * 8 * 16,
        "middle.2": 2 * 4 * 16 * 8, "last": 2 * 4 * 8 * 2,
    }  # fmt: skip
    assert report.total_macs == 4 * (64 + 128 + 128 + 16)
    assert report.total_backward_macs == 2432
    assert report.total_recompute_flops == 0
    assert report.complete
    assert report.total_training_flops == report.total_flops + report.total_backward_flops


@pytest.mark.parametrize("way", WAYS)
def test_frozen_layers_cost_what_they_cost(way: str) -> None:
    frozen = Net()
    frozen.first.requires_grad_(False)
    frozen.middle.requires_grad_(False)
    assert macs(WAYS[way](frozen, X)) == {"": 4 * 16, "last": 4 * 16}  # its input needs no gradient
    tuned = Net()
    tuned.middle.requires_grad_(False)
    tuned.last.requires_grad_(False)
    # The gradient passes through the frozen layers to the first, but their weights have none.
    assert macs(WAYS[way](tuned, X)) == {
        "": 64 + 2 * 512 + 256, "last": 4 * 16, "middle": 1024, "middle.0": 512, "middle.2": 512, "first": 4 * 64,
    }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_recomputation(way: str, reentrant: bool) -> None:
    plain, report = WAYS[way](Net(), X), WAYS[way](Net(reentrant), X)
    assert (report.total_flops, report.total_backward_flops) == (plain.total_flops, plain.total_backward_flops)
    assert macs(report) == macs(plain)
    # Non-reentrant checkpointing stops once every saved tensor is recomputed. The last Linear's output is not saved.
    again = {"middle.0": 512, "middle.2": 512} if reentrant else {"middle.0": 512}
    assert {path: n for path, n in macs(report, "recompute").items() if path.count(".")} == again
    assert report.total_training_flops == plain.total_training_flops


class Block(nn.Module):
    """Checkpoints one of its methods, in which its layers are called."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(8, 16), nn.Linear(16, 8), reentrant

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_of_a_checkpointed_method(way: str, reentrant: bool) -> None:
    report = WAYS[way](nn.Sequential(nn.Linear(8, 8), Block(reentrant), nn.Linear(8, 2)), X)
    assert macs(report, "backward") == {
        "": 4 * (64 + 512 + 32), "0": 4 * 64, "1": 4 * 512, "1.first": 1024, "1.second": 1024, "2": 4 * 32,
    }  # fmt: skip
    again = {call.path for call in report.calls if call.phase == "recompute" and call.op == "linear"}
    assert again == ({"1.first", "1.second"} if reentrant else {"1.first"})


def test_the_gradient_of_a_recomputed_layer_with_a_list_belongs_to_its_node() -> None:
    model = Net(reentrant=True)
    model.middle = nn.Linear(8, 8)
    model.middle.notes = [["a list"]]
    back = [call for call in analyzed(model, X).calls if call.phase == "backward" and call.path == "middle"]
    assert back
    assert all(call.node and call.seconds is not None for call in back)


def test_no_gradient_is_an_error() -> None:
    with pytest.raises(fxflops.FxflopsError, match="no output depends on a parameter"):
        fxflops.count(Net().requires_grad_(False), X, backward=True)


def test_gradients_of_the_users_stay() -> None:
    model = Net()
    model(X).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    held = {name: p.grad for name, p in model.named_parameters()}
    for way in ("count", "analyze"):
        WAYS[way](model, X)
        assert all(p.grad is held[name] for name, p in model.named_parameters())
        assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters() if p.grad is not None)


def test_times_and_memory_of_each_node() -> None:
    report = analyzed(Net(), X)
    linear = next(node for node in report.nodes if node.target == "middle.2")
    assert linear.backward_timing is not None
    assert linear.backward_bytes_peak is not None
    assert report.backward_timing is not None
    seconds = sum(node.backward_timing.median for node in report.nodes if node.backward_timing is not None)
    assert report.by_module("backward")[""].total.seconds == pytest.approx(seconds)


def test_the_optimizers_step_is_apart() -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fxflops.profile(model, optimizer=optimizer) as p:
        F.mse_loss(model(X), X).backward()
        optimizer.step()
    assert p.report.total_optimizer_flops == 2 * 64  # weight - lr * gradient
    assert p.report.total_flops == 4 * 8 * 15 + 3 * 32  # a difference, a square, the mean's adds and its division
    assert set(p.report.by_step()) == {"step 1", "step 1 backward", "step 1 optimizer", "(outside)"}
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(fxflops.FxflopsError, match=r"optimizer must be a torch\.optim\.Optimizer"):
        fxflops.profile(model, optimizer="adam")  # type: ignore[arg-type]


def test_a_training_loop_goes_on_to_the_same_weights() -> None:
    def train(profiled_step: int | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(8):
            x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
            with fxflops.profile(model, optimizer=optimizer) if step == profiled_step else torch.enable_grad():
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return copy.deepcopy(model.state_dict())

    for name, tensor in train(None).items():
        assert torch.equal(tensor, train(5)[name]), name


class Squashed(torch.autograd.Function):
    """x tanh(x), with a custom gradient instead of its operations' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.tanh()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.sigmoid() + x)


def test_a_functions_own_backward_is_of_the_module_that_applied_it_and_takes_no_other_times() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Squashed.apply(self.first(x)))

    report = fxflops.analyze(Own(), torch.randn(3, 8), backward=True, repeats=1)
    back = [call for call in report.calls if call.phase == "backward"]
    assert [call.op for call in back if call.path == ""] == ["sigmoid", "add", "mul"]
    assert all(call.seconds for call in back if call.path)
    assert {call.seconds for call in back if call.op in ("sigmoid", "add")} == {None}
    counted = fxflops.count(Own(), torch.randn(3, 8), backward=True).by_module("backward")
    assert counted[""].own.flops == report.by_module("backward")[""].own.flops == 3 * 16 * 3


def test_outside_of_a_backward_pass_a_call_is_where_it_is_made() -> None:
    assert AutogradOwners().note_owner_and_path("here", []) == "here"


def test_a_function_that_makes_no_calls_is_of_the_first_call_after() -> None:
    tape = AutogradOwners()
    out = Squashed.apply(X.clone().requires_grad_()) * 2
    tape.own(0, out)
    function = out.grad_fn.next_functions[0][0]
    assert [[*node.metadata.values()] for node in (out.grad_fn, function)] == [[0], [0]]


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


class Cube(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Cubed.apply(x)  # type: ignore[no-any-return]


def between_layers(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 8))


@pytest.mark.parametrize("way", ["count", "profile"])
def test_the_gradient_of_a_leaf_with_an_autograd_function_is_of_the_leaf(way: str) -> None:
    """A formula for the class makes it a leaf, which is recorded after its Function has run."""
    model, formulas = between_layers(Cube()), {Cube: lambda module, x, out: 2 * x.numel()}
    if way == "count":
        report = fxflops.count(model, X, backward=True, formulas=formulas)
    else:
        with fxflops.profile(model, formulas=formulas) as profile:
            torch.autograd.backward(out := model(X), torch.ones_like(out))
        report = profile.report
    assert [call.path for call in report.calls if call.op == "Cube"] == ["1"]
    assert {call.path for call in report.calls if call.phase == "backward" and call.op in ("mul", "pow")} == {"1"}


@pytest.mark.parametrize(("middle", "device"), [(nn.Mish(), "cpu"), (nn.RMSNorm(8), "cuda")])
def test_the_gradient_of_a_whole_operator_is_of_its_module(middle: nn.Module, device: str) -> None:
    report = fxflops.count(between_layers(middle), X, backward=True, device=device)
    name = "mish_backward" if device == "cpu" else "rms_norm_backward"
    assert [call.path for call in report.calls if call.op == name] == ["1"]
