"""Normalizations against (x - mean) / std * weight + bias on arrays of counting numbers. Their gradients follow the papers'
equations and also give torch's values.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.records import Spec
from tests.ops.draws import DTYPES, META, Draw, Made, dims, draws, tensor
from tests.ops.textbook import agrees, computes, tally_of
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def textbook(*shape: int, weight: bool = True, bias: bool = True) -> Tally:
    x, mean, std, w, b = (numbers(*shape) for _ in range(5))
    with tallying() as tally:
        x = (x - mean) / std
        if weight:
            x = x * w
        if bias:
            x + b
    return tally


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(6), (2, 5, 6)),
        (nn.LayerNorm((5, 6)), (2, 5, 6)),
        (nn.GroupNorm(2, 4), (2, 4, 3, 3)),
    ],
)
def test_normalizing_with_weight_and_bias(module, shape):
    assert textbook(*shape) == cost_of(module, torch.zeros(shape))
    assert textbook(*shape).flops == 4 * torch.zeros(shape).numel()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(6, elementwise_affine=False), (2, 6)),
        (nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    ],
)
def test_normalizing_only(module, shape):
    assert textbook(*shape, weight=False, bias=False) == cost_of(module, torch.zeros(shape))


def test_layer_norm_in_every_spelling():
    x, weight, bias = torch.zeros(2, 5, 6), torch.zeros(6), torch.zeros(6)
    assert textbook(2, 5, 6, weight=False, bias=False) == cost_of(F.layer_norm, x, (6,))
    assert textbook(2, 5, 6, bias=False) == cost_of(F.layer_norm, x, (6,), weight)
    assert textbook(2, 5, 6, bias=False) == cost_of(nn.LayerNorm(6, bias=False), x)
    assert textbook(2, 5, 6) == cost_of(torch.layer_norm, x, (6,), weight, bias)
    assert textbook(2, 5, 6) == cost_of(aten.native_layer_norm.default, x, (6,), weight, bias, 1e-5)


def test_group_norm_in_every_spelling():
    x, weight, bias = torch.zeros(2, 4, 3, 3), torch.zeros(4), torch.zeros(4)
    native = aten.native_group_norm.default
    assert textbook(2, 4, 3, 3) == cost_of(F.group_norm, x, 2, weight, bias)
    assert textbook(2, 4, 3, 3) == cost_of(native, x, weight, bias, 2, 4, 9, 2, 1e-5)


def test_rms_norm_divides_and_scales():
    x, weight = torch.zeros(2, 5, 6), torch.zeros(6)
    a, rms, w = (numbers(2, 5, 6) for _ in range(3))
    with tallying() as tally:
        a / rms * w
    assert tally == cost_of(nn.RMSNorm(6), x)
    assert tally == cost_of(F.rms_norm, x, (6,), weight)
    assert tally == cost_of(aten.rms_norm.default, x, (6,), weight)
    with tallying() as tally:
        a / rms
    assert tally == cost_of(F.rms_norm, x, (6,))


def test_local_response_norm_of_five_channels():
    shape, size = (2, 8, 3, 3), 5
    x, window, k, alpha = numbers(*shape), numbers(size, *shape), numbers(1), numbers(1)
    squares = numbers(size, *shape)
    with tallying() as tally:
        window[0] * window[0]
        total = squares.sum(axis=0)
        x / (k + alpha * total) ** 0.75
    assert tally == cost_of(nn.LocalResponseNorm(size), torch.zeros(shape))
    assert tally == cost_of(F.local_response_norm, torch.zeros(shape), size)


N, C, H = 3, 4, 6
G, X = torch.randn(N, C, H, dtype=torch.double), torch.randn(N, C, H, dtype=torch.double)
W = torch.rand(C, dtype=torch.double)
MASKS = [mask for mask in itertools.product([True, False], repeat=3) if any(mask)]


def normalized(g, x, axis, mean, deviation, weight, mask, weights=(), centered=True):
    """Gradients of a norm of rows along ``axis``. The weight's gradient is summed over the axes ``weights``."""
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


def layer_norm_gradient(g, x, shape, mean, deviation, weight, bias, mask):
    rows = tuple(range(x.ndim - len(shape)))
    axis = tuple(range(x.ndim - len(shape), x.ndim))
    return normalized(g, x, axis, mean, deviation, weight, mask, rows)


def group_norm_gradient(g, x, mean, deviation, weight, n, c, places, groups, mask):
    g, x = (array.reshape(n, groups, c // groups, places) for array in (g, x))
    mean, deviation = mean.reshape(n, groups, 1, 1), deviation.reshape(n, groups, 1, 1)
    weight = weight.reshape(groups, c // groups, 1) if weight is not None else None
    out, *parameters = normalized(g, x, (2, 3), mean, deviation, weight, mask, (0, 3))
    return out if out is None else out.reshape(n, c, places), *[p if p is None else p.reshape(c) for p in parameters]


@pytest.mark.parametrize("shape", [(H,), (C, H)])
@pytest.mark.parametrize("mask", MASKS)
def test_the_gradient_of_layer_norm(shape: tuple[int, ...], mask: tuple[bool, ...]) -> None:
    weight, bias = torch.rand(shape, dtype=torch.double), torch.rand(shape, dtype=torch.double)
    _, mean, deviation = aten.native_layer_norm(X, shape, weight, bias, 1e-5)
    agrees(
        aten.native_layer_norm_backward.default, layer_norm_gradient, G, X, shape, mean, deviation, weight, bias, mask
    )


def test_the_gradient_of_layer_norm_without_weight() -> None:
    _, mean, deviation = aten.native_layer_norm(X, (H,), None, None, 1e-5)
    given = G, X, (H,), mean, deviation, None, None, (True, False, False)
    agrees(aten.native_layer_norm_backward.default, layer_norm_gradient, *given)


@pytest.mark.parametrize("mask", MASKS)
def test_the_gradient_of_group_norm(mask: tuple[bool, ...]) -> None:
    sizes = N, C, H, 2
    _, mean, deviation = aten.native_group_norm(X, W, W, *sizes, 1e-5)
    agrees(aten.native_group_norm_backward.default, group_norm_gradient, G, X, mean, deviation, W, *sizes, mask)


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_the_gradient_of_rms_norm(mask: tuple[bool, ...]) -> None:
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


def test_the_gradient_of_weight_norm() -> None:
    def weight_norm(g, v, scale, norms, dim):
        s = (g * v).sum(axis=(1, 2), keepdims=True)
        return (scale / norms) * (g - v * (s / (norms * norms))), s / norms

    scale = torch.rand(N, 1, 1, dtype=torch.double)
    _, norms = aten._weight_norm_interface(X, scale, 0)
    agrees(aten._weight_norm_interface_backward.default, weight_norm, G, X, scale, norms, 0)


def test_weight_norm() -> None:
    with tallying() as tally:
        v = numbers(3, 5)
        v * (numbers(3) / np.sqrt((v * v).sum(1)))[:, None]
    assert tally == cost_of(torch._weight_norm, torch.rand(3, 5), torch.rand(3, 1), 0)
    assert tally == cost_of(aten._weight_norm_interface.default, torch.rand(3, 5), torch.rand(3, 1), 0)


@draws("layer_norm", "rms_norm")
def layer_normed(draw: Draw, target: Any) -> Made:
    sizes = dims(draw, 1, 5)
    x = tensor(draw, sizes, draw(st.sampled_from(DTYPES)))
    last = sizes[-draw(st.integers(1, len(sizes))) :]
    if not draw(st.integers(0, 9)):
        last = [size + 1 for size in last]
    if isinstance(target, type):
        return (target(last, elementwise_affine=draw(st.booleans()), device=META), x), {}
    return (x, last, *draw(st.sampled_from([(), (torch.empty(last, device=META),)]))), {}
