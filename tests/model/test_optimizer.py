"""count(optimizer=): the step equals the step of the user's own loop, its state is in the peak, and nothing has changed afterwards."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, NAdam, RMSprop

import fxflops

Make = Callable[[Any], torch.optim.Optimizer]

MAKERS: dict[str, Make] = {
    "sgd": functools.partial(SGD, lr=0.1),
    "momentum": functools.partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": Adam,
    "adamw": AdamW,
    "adamw fused": functools.partial(AdamW, fused=True),
    "momentum fused": functools.partial(SGD, lr=0.1, momentum=0.9, fused=True),
    "amsgrad": functools.partial(Adam, amsgrad=True),
    "nadam": NAdam,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "adafactor": Adafactor,  # reads norms, so it is counted on the real tensors
}


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("made", [True, False], ids=["instance", "class"])
def test_the_step_is_that_of_a_loop(maker: Make, made: bool, device: str) -> None:
    """The step of the loop is its second, when the optimizer has its state."""
    x = torch.randn(32, 64, device=device)
    model = mlp().to(device)
    looped = copy.deepcopy(model)
    counted = fxflops.count(model, x, backward=True, optimizer=maker(model.parameters()) if made else maker)
    optimizer = maker(looped.parameters())
    looped(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with fxflops.profile(looped, optimizer=optimizer) as p:
        looped(x).sum().backward()
        optimizer.step()
    assert counted.complete
    assert counted.total_optimizer_flops == p.report.total_optimizer_flops
    if device != "cpu":
        return  # there the peaks come from other kernels and from the allocator
    at_peak = {tensor.category: 0 for tensor in p.report.live_at_peak}
    for tensor in p.report.live_at_peak:
        at_peak[tensor.category] += tensor.bytes
    if counted.memory.phase == p.report.memory.phase == "optimizer" and maker is not Adafactor:
        assert counted.memory["optimizer"] == at_peak["optimizer"]
        assert counted.memory.get("temporaries", 0) == at_peak.get("temporaries", 0)


def test_adams_state_by_hand() -> None:
    """Two moments for each parameter and a step count for each of the four tensors, in addition to parameters and gradients."""
    parameters = 64 * 128 + 128 + 128 * 10 + 10
    report = fxflops.count(mlp(), torch.randn(32, 64), backward=True, optimizer=AdamW)
    assert report.memory.phase == "optimizer"
    assert report.memory["params"] == report.memory["gradients"] == 4 * parameters
    assert report.memory["optimizer"] == 4 * (2 * parameters + 4)
    assert report.memory["temporaries"] == 2 * 4 * 64 * 128  # sqrt(v) and its quotient, for the first weight
    assert "in the optimizer" in str(report)


class Counts(SGD):
    """Counts its steps like Adam of torch up to 2.13: in a tensor that names no device, whose value it reads."""

    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            count = self.state[weight].setdefault("step", torch.tensor(0.0))
            count += 1
            weight.mul_(1 / count.item())


def test_meta_as_the_default_device_is_not_the_optimizers() -> None:
    inside, x = mlp(), torch.randn(32, 64)
    outside = fxflops.count(inside, x, backward=True, optimizer=Counts)
    with torch.device("meta"):
        report = fxflops.count(mlp(), x.to("meta"), backward=True, optimizer=Counts)
    assert report.total_optimizer_flops == outside.total_optimizer_flops
    assert report.memory["optimizer"] == 4 * 4


@pytest.mark.parametrize("made", [True, False], ids=["instance", "class"])
def test_the_state_is_there_where_the_peak_is_in_the_backward_pass(made: bool) -> None:
    model, x = mlp(), torch.randn(4096, 64)
    optimizer = AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with fxflops.profile(model, optimizer=optimizer) as p:
            out = model(x)
            out.sum().backward()
            optimizer.step()
    report = fxflops.count(model, x, backward=True, optimizer=optimizer if made else AdamW)
    states = sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())
    assert report.memory.phase == p.report.memory.phase == "backward"
    assert report.memory["optimizer"] == p.report.memory["optimizer"] == states
    assert {(tensor.path, tensor.op) for tensor in report.live_at_peak if tensor.category == "optimizer"} == {("", "")}
    assert report.max_memory == p.report.max_memory - x.element_size()  # the loop also computes a sum


def test_a_state_made_for_the_count_leaves_the_model_as_it_was() -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    report = fxflops.count(model, torch.randn(4, 64), backward=True, optimizer=Adafactor)
    assert report.trace == "counted on real tensors"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_optimizer_at_work_keeps_its_state() -> None:
    model, x = mlp(), torch.randn(4, 64)
    optimizer = AdamW(model.parameters())
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    model(x).sum().backward()
    optimizer.step()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad for p in model.parameters()]
    first, again = (fxflops.count(model, x, backward=True, optimizer=o) for o in (AdamW, optimizer))
    assert first.total_optimizer_flops == again.total_optimizer_flops
    assert first.memory["optimizer"] == again.memory["optimizer"]
    assert stepped == [1]
    assert all(a is b for a, b in zip(gradients, (p.grad for p in model.parameters()), strict=True))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    kept = optimizer.state_dict()["state"]
    assert kept.keys() == state["state"].keys()
    assert all(torch.equal(kept[i][name], value) for i, s in state["state"].items() for name, value in s.items())


def test_real_weights_are_brought_back() -> None:
    model, x = mlp(), torch.randn(4, 64)
    weights = copy.deepcopy(model.state_dict())
    report = fxflops.count(model, x, backward=True, optimizer=Adafactor)
    assert report.trace == "counted on real tensors"
    assert "Adafactor.step() raised an error" in report.trace_reason
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_frozen_parameters_have_no_state() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    report = fxflops.count(model, torch.randn(4, 64), backward=True, optimizer=AdamW)
    assert {t.name for t in report.live_at_peak if t.category == "gradients"} == {"2.weight", "2.bias"}
    assert report.memory["optimizer"] == 4 * (2 * (128 * 10 + 10) + 2)


@pytest.mark.parametrize(
    ("optimizer", "backward", "message"),
    [
        (AdamW, False, r"optimizer= needs a backward pass: call fxflops.count\(..., backward=True"),
        (
            "adam",
            True,
            r"optimizer must be a torch.optim.Optimizer, or a function that makes an optimizer from parameters, .* not str",
        ),
        (list, True, r"optimizer\(parameters\) returned a list"),
        (lambda p: torch.optim.SGD(p, lr=-1), True, "step\\(\\) raised an error\n  ValueError: Invalid learning rate"),
        (torch.optim.LBFGS, True, r"runs the model again in each step, through a closure"),
    ],
)
def test_what_is_no_optimizer(optimizer: Any, backward: bool, message: str) -> None:
    with pytest.raises(fxflops.FxflopsError, match=message):
        fxflops.count(mlp(), torch.randn(4, 64), backward=backward, optimizer=optimizer)


def test_an_optimizer_of_another_model_is_told() -> None:
    model, other = mlp(), torch.optim.SGD(mlp().parameters(), 0.1)
    with pytest.raises(
        fxflops.InputError, match=r"\(SGD\) has none of the model's parameters: make it from model\.para"
    ):
        fxflops.count(model, torch.ones(2, 64), backward=True, optimizer=other)
    with pytest.warns(UserWarning, match="has none of the model's parameters"):
        fxflops.profile(model, optimizer=[torch.optim.SGD(model.parameters(), 0.1), other])
    fxflops.profile(optimizer=other)  # without a model, there is nothing to compare its parameters with
