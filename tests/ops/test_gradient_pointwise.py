"""Derivatives of activations, written out, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost
from tests.ops.textbook import above, agrees, below, between, erf, pick, sigmoid, softplus
from tests.oracle import cost_of

aten = torch.ops.aten
G, X = torch.randn(3, 4, dtype=torch.double), 4 * torch.randn(3, 4, dtype=torch.double)
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


def softmax(g, y, dim, dtype=None):
    return y * (g - (y * g).sum(axis=dim, keepdims=True))


def log_softmax(g, y, dim, dtype):
    return g - np.exp(y) * g.sum(axis=dim, keepdims=True)


@pytest.mark.parametrize(
    ("name", "textbook", "args"),
    [
        ("threshold_backward", lambda g, x, bound: pick(above(x, bound), g, 0), (X, 0.5)),
        ("hardtanh_backward", lambda g, x, low, high: between(x, low, high, g, 0), (X, -1.0, 1.0)),
        ("hardshrink_backward", lambda g, x, bound: between(x, -bound, bound, 0, g), (X, 0.5)),
        ("softshrink_backward", lambda g, x, bound: between(x, -bound, bound, 0, g), (X, 0.5)),
        ("hardsigmoid_backward", lambda g, x: between(x, -3, 3, lambda: g * (1 / 6), 0), (X,)),
        ("hardswish_backward", hardswish, (X,)),
        ("leaky_relu_backward", leaky_relu, (X, 0.1, False)),
        ("rrelu_with_noise_backward", rrelu, (X, Y, 0.1, 0.3, True, False)),
        ("rrelu_with_noise_backward", rrelu, (X, Y, 0.1, 0.3, False, False)),
        ("_prelu_kernel_backward", prelu, (X, Y)),
        ("gelu_backward", gelu, (X,)),
        ("silu_backward", silu, (X,)),
        ("mish_backward", mish, (X,)),
        ("sigmoid_backward", lambda g, y: g * (1 - y) * y, (Y,)),
        ("tanh_backward", lambda g, y: g * (1 - y * y), (Y,)),
        ("log_sigmoid_backward", log_sigmoid, (X, aten.log_sigmoid_forward(X)[1])),
        ("logit_backward", lambda g, x: g / (x * (1 - x)), (Y,)),
        ("logit_backward", lambda g, x, eps: between(x, eps, 1 - eps, lambda: g / (x * (1 - x)), 0), (Y, 0.2)),
        ("glu_backward", glu, (torch.randn(3, 8, dtype=torch.double), 1)),
        ("native_dropout_backward", lambda g, mask, scale: g * mask * scale, (Y > 0.5, 2.0)),
        ("_softmax_backward_data", softmax, (Y, 1, torch.double)),
        ("_softmax_backward_data", softmax, (Y, 0, torch.double)),
        ("_log_softmax_backward_data", log_softmax, (X, -1, torch.double)),
    ],
)
def test_derivatives(name: str, textbook: Any, args: tuple[Any, ...]) -> None:
    agrees(getattr(aten, name).default, textbook, G, *args)


def test_gelu_by_tanh() -> None:
    agrees(aten.gelu_backward.default, gelu, G, X, approximate="tanh")


def test_a_masked_softmax_counts_every_element() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    agrees(aten._masked_softmax_backward.default, lambda g, y, mask, dim: softmax(g, y, dim), G, Y, mask, 1)


@pytest.mark.parametrize(("beta", "exponential"), [(1, np.exp), (2.0, lambda x: np.exp(2.0 * x))])
def test_softplus(beta: float, exponential: Any) -> None:
    def textbook(g, x, beta, threshold):
        z = exponential(x)
        return pick(below(x, threshold / beta), lambda: g * z / (z + 1), g)

    agrees(aten.softplus_backward.default, textbook, G, X, beta, 20.0)


@pytest.mark.parametrize(
    ("settings", "slope"),
    [
        ((1.0, 1.0, 1.0), lambda g, x: g * np.exp(x)),
        ((1.3, 1.0, 1.0), lambda g, x: g * 1.3 * np.exp(x)),
        ((2.0, 1.0, 0.5), lambda g, x: g * np.exp(x * 0.5)),  # celu
        ((1.67, 1.05, 1.0), lambda g, x: g * (1.67 * 1.05) * np.exp(x)),  # selu
    ],
)
def test_elu(settings: tuple[float, ...], slope: Any) -> None:
    def textbook(g, alpha, scale, input_scale, is_result, x):
        return pick(below(x, 0), lambda: slope(g, x), lambda: g * scale)

    agrees(aten.elu_backward.default, textbook, G, *settings, False, X)


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

    agrees(aten.elu_backward.default, textbook, G, *settings, True, X)


def test_nothing_costs_nothing() -> None:
    assert cost_of(aten._softmax_backward_data.default, G[:0], Y[:0], 0, torch.double) == Cost()
    assert cost_of(aten._softmax_backward_data.default, G[0, 0], Y[0, 0], 0, torch.double) == Cost(muls=2, adds=1)
