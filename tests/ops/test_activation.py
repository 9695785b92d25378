"""Activations against their definitions on arrays of counting numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.oracle import Tally, cost_of, numbers, tallying

aten = torch.ops.aten
X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    "spelling",
    [
        *(nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU()),
        *(nn.SELU(), nn.CELU(), nn.Sigmoid(), nn.LogSigmoid(), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh()),
        *(nn.Tanh(), nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(), nn.Softplus(), nn.Softsign()),
        nn.Threshold(0.1, 0.0),
        *(F.relu, torch.relu, torch.relu_, "relu", "relu_", aten.relu.default, aten.relu_.default),
        *(F.relu6, F.gelu, aten.gelu.default, F.silu, aten.silu_.default, F.mish, F.elu, F.elu_, F.selu, F.celu),
        *(F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_", torch.special.expit, aten.sigmoid.default),
        *(F.logsigmoid, aten.log_sigmoid_forward.default, F.hardsigmoid, F.hardswish, aten.hardswish_.default),
        *(F.hardtanh, F.tanh, torch.tanh, "tanh", "tanh_", aten.tanh.default, F.tanhshrink, F.hardshrink),
        *(F.softshrink, F.softplus, aten.softplus.default, F.softsign),
    ],
)
def test_one_per_element(spelling):
    assert cost_of(spelling, X.clone()).flops == 2 * 3 * 4


def test_threshold_as_function():
    assert cost_of(F.threshold, X, 0.1, 0.0).flops == 2 * 3 * 4


@pytest.mark.parametrize(
    "spelling",
    [nn.LeakyReLU(), nn.PReLU(), nn.RReLU(), F.leaky_relu, F.leaky_relu_, aten.leaky_relu.default, F.rrelu],
)
def test_a_slope_for_negative_values(spelling):
    x, slope = numbers(2, 3, 4), numbers(1)
    with tallying() as tally:
        for value in x.ravel():
            value.maximum(0) + slope[0] * value.minimum(0)
    assert tally == cost_of(spelling, X.clone())


def test_prelu_as_function():
    assert cost_of(F.prelu, X, torch.ones(1)) == cost_of(torch.prelu, X, torch.ones(3)) == cost_of(nn.PReLU(3), X)


def test_glu_gates_one_half_by_the_other():
    x = numbers(2, 3, 4)
    with tallying() as tally:
        a, b = np.split(x, 2, axis=-1)
        a * np.tanh(b)
    assert tally == cost_of(nn.GLU(), X) == cost_of(F.glu, X, -1) == cost_of(aten.glu.default, X)


def softmax(axis: int) -> Tally:
    with tallying() as tally:
        exps = np.exp(numbers(2, 3, 4))
        exps / exps.sum(axis=axis, keepdims=True)
    return tally


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_by_row(dim):
    expected = softmax(dim)
    assert expected == cost_of(nn.Softmax(dim), X) == cost_of(F.softmax, X, dim=dim)
    assert expected == cost_of(torch.softmax, X, dim) == cost_of("softmax", X, dim)
    assert expected == cost_of(torch.special.softmax, X, dim)
    assert expected == cost_of(aten.softmax.int, X, dim) == cost_of(aten._softmax.default, X, dim, False)


def test_softmax_without_a_dim_is_over_the_first_of_three():
    with pytest.warns(UserWarning, match="Implicit dimension"):
        assert softmax(0) == cost_of(F.softmax, X)


def test_softmax2d_is_over_the_channels():
    assert softmax(0) == cost_of(nn.Softmax2d(), X)


def test_softmax_of_torch_flops():
    """3 per element less 1 per row."""
    assert cost_of("softmax", torch.zeros(12, 197, 197), -1).flops == 12 * 197 * (3 * 197 - 1)


def test_softmax_of_nothing_and_of_a_scalar():
    assert cost_of(F.softmax, torch.zeros(3, 0), dim=-1).flops == 0
    assert cost_of(F.softmax, torch.zeros(()), dim=0).flops == 1 + 0 + 1


def test_softmin_negates_first():
    with tallying() as tally:
        exps = np.exp(-numbers(2, 3, 4))
        exps / exps.sum(axis=1, keepdims=True)
    assert tally == cost_of(nn.Softmin(1), X) == cost_of(F.softmin, X, dim=1)


def test_log_softmax_subtracts_the_log_of_the_sum():
    with tallying() as tally:
        x = numbers(2, 3, 4)
        x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    assert tally == cost_of(nn.LogSoftmax(1), X) == cost_of(F.log_softmax, X, dim=1)
    assert tally == cost_of(torch.log_softmax, X, 1) == cost_of("log_softmax", X, 1)
    assert tally == cost_of(aten._log_softmax.default, X, 1, False)
