"""Activations against their definitions, on arrays of counting numbers. Their derivatives, written out, also give torch's values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from tests.ops.draws import FLOATS, Draw, Made, dims, draws, rule_of, tensor, unary
from tests.ops.textbook import above, agrees, below, between, erf, pick, sigmoid, softplus
from tests.oracle import cost_of, numbers, tallying

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


G, INPUT = torch.randn(3, 4, dtype=torch.double), 4 * torch.randn(3, 4, dtype=torch.double)
Y = torch.rand(3, 4, dtype=torch.double)
ROOT, DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)


def hardswish(g, x):
    return pick(above(x, -3), lambda: pick(below(x, 3), lambda: g * (x / 3 + 0.5), g), 0)


def leaky_relu(g, x, slope, is_result):
    return pick(below(x, 0), lambda: g * slope, g)


def rrelu(g, x, noise, lower, upper, training, is_result):
    return g * noise if training else leaky_relu(g, x, (lower + upper) / 2, False)


def prelu(g, x, weight):
    negative = below(x, 0)
    return pick(negative, lambda: g * weight, g), pick(negative, lambda: g * x, 0)


def gelu(g, x, approximate="none"):
    if approximate == "none":
        whole = 0.5 * (1 + erf(x * ROOT))
        return g * (whole + x * (DENSITY * np.exp(-0.5 * (x * x))))
    a, b = 0.044715, math.sqrt(2 / math.pi)
    square = x * x
    t = np.tanh(b * (x + a * (square * x)))
    return g * (0.5 * (1 + t) + (0.5 * x) * (1 - t * t) * (b * (1 + 3 * a * square)))


def silu(g, x):
    s = sigmoid(x)
    return g * s * (1 + x * (1 - s))


def mish(g, x):
    t = np.tanh(softplus(x, 0))
    return g * (t + x * sigmoid(x) * (1 - t * t))


def log_sigmoid(g, x, buffer):
    return g * (1 - sigmoid(x))


def glu(g, x, dim):
    a, b = np.split(x, 2, axis=dim)
    s = sigmoid(b)
    gated = g * s
    return np.concatenate([gated, gated * a * (1 - s)], axis=dim)


@pytest.mark.parametrize(
    ("name", "textbook", "args"),
    [
        ("threshold_backward", lambda g, x, bound: pick(above(x, bound), g, 0), (INPUT, 0.5)),
        ("hardtanh_backward", lambda g, x, low, high: between(x, low, high, g, 0), (INPUT, -1.0, 1.0)),
        ("hardshrink_backward", lambda g, x, bound: between(x, -bound, bound, 0, g), (INPUT, 0.5)),
        ("softshrink_backward", lambda g, x, bound: between(x, -bound, bound, 0, g), (INPUT, 0.5)),
        ("hardsigmoid_backward", lambda g, x: between(x, -3, 3, lambda: g * (1 / 6), 0), (INPUT,)),
        ("hardswish_backward", hardswish, (INPUT,)),
        ("leaky_relu_backward", leaky_relu, (INPUT, 0.1, False)),
        ("rrelu_with_noise_backward", rrelu, (INPUT, Y, 0.1, 0.3, True, False)),
        ("rrelu_with_noise_backward", rrelu, (INPUT, Y, 0.1, 0.3, False, False)),
        ("_prelu_kernel_backward", prelu, (INPUT, Y)),
        ("gelu_backward", gelu, (INPUT,)),
        ("silu_backward", silu, (INPUT,)),
        ("mish_backward", mish, (INPUT,)),
        ("sigmoid_backward", lambda g, y: g * (1 - y) * y, (Y,)),
        ("tanh_backward", lambda g, y: g * (1 - y * y), (Y,)),
        ("log_sigmoid_backward", log_sigmoid, (INPUT, aten.log_sigmoid_forward(INPUT)[1])),
        ("glu_backward", glu, (torch.randn(3, 8, dtype=torch.double), 1)),
    ],
)
def test_derivatives(name: str, textbook: Any, args: tuple[Any, ...]) -> None:
    agrees(getattr(aten, name).default, textbook, G, *args)


def test_gelu_by_tanh() -> None:
    agrees(aten.gelu_backward.default, gelu, G, INPUT, approximate="tanh")


@pytest.mark.parametrize(("beta", "exponential"), [(1, np.exp), (2.0, lambda x: np.exp(2.0 * x))])
def test_softplus(beta: float, exponential: Any) -> None:
    def textbook(g, x, beta, threshold):
        z = exponential(x)
        return pick(below(x, threshold / beta), lambda: g * z / (z + 1), g)

    agrees(aten.softplus_backward.default, textbook, G, INPUT, beta, 20.0)


@pytest.mark.parametrize(
    ("settings", "slope"),
    [
        ((1.0, 1.0, 1.0), lambda g, x: g * np.exp(x)),
        ((1.3, 1.0, 1.0), lambda g, x: g * 1.3 * np.exp(x)),
        ((2.0, 1.0, 0.5), lambda g, x: g * np.exp(x * 0.5)),  # celu
        ((49.0, 1.0, 1 / 49.0), lambda g, x: g * np.exp(x * (1 / 49.0))),  # celu: the coefficient is 1, up to rounding
        ((1.67, 1.05, 1.0), lambda g, x: g * (1.67 * 1.05) * np.exp(x)),  # selu
    ],
)
def test_elu(settings: tuple[float, ...], slope: Any) -> None:
    def textbook(g, alpha, scale, input_scale, is_result, x):
        return pick(below(x, 0), lambda: slope(g, x), lambda: g * scale)

    agrees(aten.elu_backward.default, textbook, G, *settings, False, INPUT)


@pytest.mark.parametrize(
    ("settings", "slope"),
    [
        ((1.0, 1.0, 1.0), lambda g, y: g * (y + 1.0)),
        ((2.0, 1.0, 0.5), lambda g, y: g * 0.5 * (y + 2.0)),
    ],
)
def test_elu_from_its_result(settings: tuple[float, ...], slope: Any) -> None:
    def textbook(g, alpha, scale, input_scale, is_result, y):
        return pick(below(y, 0), lambda: slope(g, y), lambda: g * scale)

    agrees(aten.elu_backward.default, textbook, G, *settings, True, INPUT)


@draws("sloped", "bounded")
def positional(draw: Draw, target: Any) -> Made:
    """Pass the settings that precede ``inplace`` by position."""
    (x,), _ = unary(draw, target)
    before = (0.5, 0.75) if rule_of(target).__name__ == "bounded" else (0.5,)
    return (x, *before, draw(st.booleans())), {}


@draws("glu")
def gated(draw: Draw, target: Any) -> Made:
    sizes = dims(draw)
    dim = draw(st.integers(-len(sizes), len(sizes) - 1))
    sizes[dim] *= draw(st.sampled_from([1, 2, 2, 2]))
    x = tensor(draw, sizes, draw(st.sampled_from(FLOATS)))
    return ((nn.GLU(dim), x), {}) if target is nn.GLU else ((x, dim), {})
