"""A model of fake tensors, or a model in a FakeTensorMode, must count like the model itself outside of the mode."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fxflops import count, profile


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


FORWARD = 2 * 8 * 16 + 2 * 16 * 4
BACKWARD = FORWARD + 2 * 16 * 4


def test_count_and_profile_in_a_fake_tensor_mode() -> None:
    with FakeTensorMode():
        model, x = net(), torch.randn(2, 8)
        report = count(model, x, backward=True, convention="torch", optimizer=torch.optim.SGD)
        with profile(model, convention="torch") as p:
            model(x).sum().backward()
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
    outside = count(net(), torch.randn(2, 8), backward=True, convention="torch", optimizer=torch.optim.SGD)
    assert report.trace == "counted on fake tensors"
    for each in (report, p.report, outside):
        assert each.complete
        assert each.total_macs == FORWARD
        assert each.total_backward_macs == BACKWARD
        assert each.total_training_flops == counter.get_total_flops() == 2 * (FORWARD + BACKWARD)
    for phase in ("forward", "backward"):
        found, known = (
            {path: row.own.flops for path, row in each.by_module(phase).items()} for each in (report, outside)
        )
        assert found == known
    assert report.total_params == outside.total_params
    assert report.max_memory == outside.max_memory


@pytest.mark.parametrize("within", [True, False], ids=["in a mode", "outside"])
def test_a_real_model_is_left_as_it_was(within: bool) -> None:
    """Its buffers keep their values, and stay real."""
    model, fakes = net(), FakeTensorMode(allow_non_fake_inputs=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = fakes.from_tensor(torch.randn(2, 8))
    with fakes if within else nullcontext():
        report = count(model, x, mode="train")
    assert report.total_macs == FORWARD
    after = model.state_dict()
    assert all(type(after[name]) is torch.Tensor and torch.equal(after[name], value) for name, value in before.items())


def test_a_fake_model_outside_of_its_mode() -> None:
    with FakeTensorMode():
        model, x = net(), torch.randn(2, 8)
    report = count(model, x)
    assert report.complete
    assert report.total_macs == FORWARD
    assert report.total_flops == count(net(), torch.randn(2, 8)).total_flops


def test_a_mode_of_fake_tensors_within_a_profile() -> None:
    model = nn.Linear(8, 4)
    with profile(model) as p, FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.ones(3, 8))
    assert p.report.total_macs == 3 * 8 * 4
