"""Gradients of normalizations by the equations of their papers, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.ops.textbook import agrees, computes, rsqrt, tally_of
from tests.oracle import cost_by_name

aten = torch.ops.aten
N, C, H = 3, 4, 6
G, X = torch.randn(N, C, H, dtype=torch.double), torch.randn(N, C, H, dtype=torch.double)
W = torch.rand(C, dtype=torch.double)
MASKS = [mask for mask in itertools.product([True, False], repeat=3) if any(mask)]


def normalized(g, x, axis, mean, deviation, weight, mask, weights=(), centered=True):
    """Of rows along ``axis``; the weight's gradient is summed over the axes ``weights``."""
    to_input, to_weight, to_bias = mask
    if to_input or to_weight:
        x = (x - mean if centered else x) * deviation
    out = None
    if to_input:
        scaled = g * weight if weight is not None else g
        out = scaled - average(scaled, axis) if centered else scaled
        out = (out - x * average(scaled * x, axis)) * deviation
    return out, (g * x).sum(axis=weights) if to_weight else None, g.sum(axis=weights) if to_bias else None


def average(x, axis):
    total = np.sum(x, axis=axis, keepdims=True)
    return total / (x.size // total.size)


def layer_norm(g, x, shape, mean, deviation, weight, bias, mask):
    rows = tuple(range(x.ndim - len(shape)))
    axis = tuple(range(x.ndim - len(shape), x.ndim))
    return normalized(g, x, axis, mean, deviation, weight, mask, rows)


def group_norm(g, x, mean, deviation, weight, n, c, places, groups, mask):
    g, x = (array.reshape(n, groups, c // groups, places) for array in (g, x))
    mean, deviation = mean.reshape(n, groups, 1, 1), deviation.reshape(n, groups, 1, 1)
    weight = weight.reshape(groups, c // groups, 1) if weight is not None else None
    out, *parameters = normalized(g, x, (2, 3), mean, deviation, weight, mask, (0, 3))
    return out if out is None else out.reshape(n, c, places), *[p if p is None else p.reshape(c) for p in parameters]


def batch_norm(g, x, weight, running_mean, running_var, mean, deviation, train, eps, mask):
    """The weight is the same in a whole row, so its sums serve the means."""
    to_input, to_weight, to_bias = mask
    if not train and (to_input or to_weight):
        mean, deviation = running_mean, rsqrt(running_var + eps)
    if (train and to_input) or to_weight:
        x = (x - mean[:, None]) * deviation[:, None]
        with_x = (g * x).sum(axis=(0, 2))
    if (train and to_input) or to_bias:
        alone = g.sum(axis=(0, 2))
    out = None
    if to_input:
        if train:
            g = g - (alone / (N * H))[:, None] - x * (with_x / (N * H))[:, None]
        out = g * (deviation * weight if weight is not None else deviation)[:, None]
    return out, with_x if to_weight else None, alone if to_bias else None


@pytest.mark.parametrize("shape", [(H,), (C, H)])
@pytest.mark.parametrize("mask", MASKS)
def test_layer_norm(shape: tuple[int, ...], mask: tuple[bool, ...]) -> None:
    weight, bias = torch.rand(shape, dtype=torch.double), torch.rand(shape, dtype=torch.double)
    _, mean, deviation = aten.native_layer_norm(X, shape, weight, bias, 1e-5)
    agrees(aten.native_layer_norm_backward.default, layer_norm, G, X, shape, mean, deviation, weight, bias, mask)


def test_layer_norm_without_weight() -> None:
    _, mean, deviation = aten.native_layer_norm(X, (H,), None, None, 1e-5)
    given = G, X, (H,), mean, deviation, None, None, (True, False, False)
    agrees(aten.native_layer_norm_backward.default, layer_norm, *given)


@pytest.mark.parametrize("mask", MASKS)
def test_group_norm(mask: tuple[bool, ...]) -> None:
    sizes = N, C, H, 2
    _, mean, deviation = aten.native_group_norm(X, W, W, *sizes, 1e-5)
    agrees(aten.native_group_norm_backward.default, group_norm, G, X, mean, deviation, W, *sizes, mask)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_batch_norm(train: bool, mask: tuple[bool, ...]) -> None:
    running = torch.randn(C, dtype=torch.double), torch.rand(C, dtype=torch.double) + 1
    _, *saved = aten.native_batch_norm(X, W, W, *running, train, 0.0, 1e-5)
    agrees(aten.native_batch_norm_backward.default, batch_norm, G, X, W, *running, *saved, train, 1e-5, mask)
    if not mask[1]:
        agrees(aten.native_batch_norm_backward.default, batch_norm, G, X, None, *running, *saved, train, 1e-5, mask)


def test_batch_norm_of_other_libraries() -> None:
    mean = torch.zeros(C, dtype=torch.double)
    expected = tally_of(batch_norm, G, X, W, mean, mean, mean, mean, True, 1e-5, (True, True, True))
    x, c = Spec((N, C, H)), Spec((C,))
    for name in ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"):
        assert expected == cost_by_name(f"aten::{name}", x, x, c, c, c, c, c, 1e-5, out=(x, c, c))
    settings = True, 1e-5, (True, True, True)
    assert expected == cost_by_name("aten::batch_norm_backward", x, x, c, c, c, c, c, *settings, x, out=(x, c, c))


def test_batch_norm_over_processes() -> None:
    """In two steps: the sums of one's own, then the elements by everybody's."""

    def reduced(g, x, mean, deviation):
        with_x = (g * (x - mean[:, None])).sum(axis=(0, 2))
        return g.sum(axis=(0, 2)), with_x, with_x * deviation

    def elements(g, x, mean, deviation, weight, alone, with_x):
        slope = deviation * deviation * (with_x / (N * H))
        centered = g - (alone / (N * H))[:, None] - (x - mean[:, None]) * slope[:, None]
        return centered * (deviation * weight)[:, None]

    running = torch.zeros(C, dtype=torch.double), torch.ones(C, dtype=torch.double)
    _, mean, deviation = aten.native_batch_norm(X, W, W, *running, True, 0.0, 1e-5)
    settings = *running, mean, deviation, True, 1e-5, (True, True, True)
    out, to_weight, to_bias = aten.native_batch_norm_backward(G, X, W, *settings)
    sums = to_bias, to_weight / deviation
    computes(reduced, (*sums, to_weight), G, X, mean, deviation)
    computes(elements, out, G, X, mean, deviation, W, *sums)
    x, c = Spec((N, C, H)), Spec((C,))
    tally = tally_of(reduced, G, X, mean, deviation)
    name = "aten::batch_norm_backward_reduce"
    assert tally == cost_by_name(name, x, x, c, c, c, True, True, True, out=(c, c, c, c))
    tally = tally_of(elements, G, X, mean, deviation, W, *sums)
    assert tally == cost_by_name("aten::batch_norm_backward_elemt", x, x, c, c, c, c, c, c, out=x)


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_rms_norm(mask: tuple[bool, ...]) -> None:
    weight = torch.rand(H, dtype=torch.double, requires_grad=True)
    x = X.clone().requires_grad_()
    deviation = (x.detach() ** 2).mean(-1, keepdim=True) ** -0.5

    def rms_norm(g, x, deviation, weight):
        return normalized(g, x, 2, None, deviation, weight, (*mask, False), (0, 1), centered=False)[:2]

    torch.nn.functional.rms_norm(x, (H,), weight, eps=0.0).backward(G)
    expected = [tensor.grad if asked else None for tensor, asked in zip((x, weight), mask, strict=True)]
    found = [part for part in expected if part is not None]
    computes(lambda *args: [part for part in rms_norm(*args) if part is not None], found, G, X, deviation, weight)
    tally = tally_of(rms_norm, G, X, deviation, weight.detach())
    shape, k = Spec((N, C, H)), Spec((H,))
    args: Any = shape, shape, (H,), Spec((N, C, 1)), k, mask
    assert tally == cost_by_name("aten::_fused_rms_norm_backward", *args, out=(shape, k))


def test_weight_norm() -> None:
    def weight_norm(g, v, scale, norms, dim):
        s = (g * v).sum(axis=(1, 2), keepdims=True)
        return (scale / norms) * (g - v * (s / (norms * norms))), s / norms

    scale = torch.rand(N, 1, 1, dtype=torch.double)
    _, norms = aten._weight_norm_interface(X, scale, 0)
    agrees(aten._weight_norm_interface_backward.default, weight_norm, G, X, scale, norms, 0)


def test_a_gradient_not_asked_for_costs_nothing() -> None:
    x, c = Spec((N, C, H)), Spec((C,))
    nothing = False, False, False
    args = x, x, c, c, c, c, c, True, 1e-5, nothing
    assert cost_by_name("aten::native_batch_norm_backward", *args, out=(None, None, None)) == Cost()
