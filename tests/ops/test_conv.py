"""Convolutions against a loop over zero-padded arrays of counting numbers. Their gradients also give torch's values."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fxflops.records import Spec
from fxflops.records.tensors import spec_of
from tests.ops.test_conv_transpose import scatter
from tests.ops.textbook import Sums, agrees, is_counting
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten
ALL = (True, True, True)


def convolve(batch, inputs, outputs, size, kernel, *, groups=1, stride=1, padding=0, dilation=1, bias=False) -> Tally:
    """The definition: per output the sum of weight * input over its window, plus the bias."""
    padded = numbers(batch, inputs, *(n + 2 * padding for n in size))
    weight, biases = numbers(outputs, inputs // groups, *kernel), numbers(outputs)
    places = [
        range((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1) for n, k in zip(size, kernel, strict=True)
    ]
    with tallying() as tally:
        for b, o, *at in itertools.product(range(batch), range(outputs), *places):
            group = o // (outputs // groups)
            channels = slice(group * (inputs // groups), (group + 1) * (inputs // groups))
            taps = (slice(p * stride, p * stride + dilation * k, dilation) for p, k in zip(at, kernel, strict=True))
            result = np.sum(padded[(b, channels, *taps)] * weight[o])
            if bias:
                result + biases[o]
    return tally


@pytest.mark.parametrize(
    ("module", "given", "textbook"),
    [
        (nn.Conv1d(4, 6, 3, bias=False), (2, 4, 9), convolve(2, 4, 6, (9,), (3,))),
        (nn.Conv2d(4, 6, (3, 2)), (2, 4, 5, 6), convolve(2, 4, 6, (5, 6), (3, 2), bias=True)),
        (
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
            (2, 4, 7, 7),
            convolve(2, 4, 6, (7, 7), (3, 3), stride=2, padding=1, groups=2, bias=True),
        ),
        (
            nn.Conv2d(4, 8, 3, dilation=2, groups=4, bias=False),
            (1, 4, 7, 8),
            convolve(1, 4, 8, (7, 8), (3, 3), dilation=2, groups=4),
        ),
        (nn.Conv2d(4, 4, 3, padding="same", bias=False), (1, 4, 5, 5), convolve(1, 4, 4, (5, 5), (3, 3), padding=1)),
        (nn.Conv2d(4, 2, 3), (4, 5, 5), convolve(1, 4, 2, (5, 5), (3, 3), bias=True)),
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 3), convolve(1, 2, 3, (3, 4, 3), (2, 2, 2), bias=True)),
        (nn.Conv2d(1, 3, 1, bias=False), (1, 1, 4, 4), convolve(1, 1, 3, (4, 4), (1, 1))),
    ],
)
def test_conv_is_the_loop_over_its_windows(module, given, textbook, torch_macs):
    x = torch.zeros(given)
    cost = cost_of(module, x)
    assert textbook == cost
    assert cost.macs == cost.muls == torch_macs(module, x)


def test_every_spelling_counts_the_same():
    x, weight, bias = torch.zeros(2, 4, 6, 6), torch.zeros(8, 2, 3, 3), torch.zeros(8)
    settings = ([1, 1], [1, 1], [1, 1])
    expected = convolve(2, 4, 8, (6, 6), (3, 3), groups=2, padding=1, bias=True)
    assert expected == cost_of(F.conv2d, x, weight, bias, padding=1, groups=2)
    assert expected == cost_of(torch.conv2d, input=x, weight=weight, bias=bias, padding="same", groups=2)
    assert expected == cost_of(aten.conv2d.default, x, weight, bias, *settings, 2)
    assert expected == cost_of(aten.convolution.default, x, weight, bias, *settings, False, [0, 0], 2)
    assert expected == cost_of(aten.mkldnn_convolution.default, x, weight, bias, *settings, 2)
    ungrouped = torch.zeros(8, 4, 3, 3)
    expected = convolve(2, 4, 8, (6, 6), (3, 3), bias=True)
    assert expected == cost_of(aten.thnn_conv2d.default, x, ungrouped, [3, 3], bias)


def test_convolution_dispatches_on_transposed():
    x, weight = torch.zeros(2, 4, 3, 3), torch.zeros(4, 6, 2, 2)
    expected = scatter(2, 4, 6, (3, 3), (2, 2), stride=2)
    assert expected == cost_of(F.conv_transpose2d, x, weight, stride=2)
    assert expected == cost_of(aten.convolution.default, x, weight, None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    assert expected == cost_of(aten.slow_conv_transpose2d.default, x, weight, [2, 2], None, [2, 2])


def test_conv_tbc_is_a_conv1d_with_time_first():
    x, weight, bias = torch.zeros(9, 2, 4), torch.zeros(3, 4, 6), torch.zeros(6)
    assert convolve(2, 4, 6, (9,), (3,), bias=True) == cost_of(torch.conv_tbc, x, weight, bias)


def test_cudnn_kernels_count_the_same():
    """They take no bias."""
    x, weight, out = Spec((2, 4, 6, 6)), Spec((8, 4, 3, 3)), Spec((2, 8, 4, 4))
    plain = cost_by_name("aten::cudnn_convolution", x, weight, [0, 0], [1, 1], [1, 1], 1, out=out)
    assert convolve(2, 4, 8, (6, 6), (3, 3)) == plain


def gradients(g, x, weight, bias_sizes, stride, padding, dilation, transposed, more, groups, mask):
    """Each product of an input and a weight in the forward adds one product to each gradient.

    The padded border collects gradients like the rest, and is cut off at the end.
    """
    big, small = (g, x) if transposed else (x, g)
    batch, _, *size = big.shape
    rows, columns, *kernel = weight.shape
    inner = (..., *(slice(p, p + n) for p, n in zip(padding, size, strict=True)))
    padded = np.pad(big, [(0, 0), (0, 0), *((p, p) for p in padding)], mode="edge" if is_counting(big) else "constant")
    to_input, to_weight = Sums(*(x.shape if transposed else padded.shape)), Sums(*weight.shape)
    if not transposed:
        to_input.array[...] = 0.0
        to_input.array[inner] = None
    for b, r, c, *at in np.ndindex(batch, rows, columns, *small.shape[2:], *kernel):
        at, tap = at[: len(size)], at[len(size) :]
        place = tuple(p * s + t * d for p, s, t, d in zip(at, stride, tap, dilation, strict=True))
        of_small, of_weight = (b, r, *at), (r, c, *tap)
        of_big = (b, r // (rows // groups) * columns + c, *place)
        if mask[0]:
            source = padded[of_big] if transposed else small[of_small]
            to_input.add(of_small if transposed else of_big, source * weight[of_weight])
        if mask[1]:
            to_weight.add(of_weight, small[of_small] * padded[of_big])
    out = to_input.result() if transposed else to_input.result()[inner]
    bias = g.sum(axis=(0, *range(2, g.ndim))) if mask[2] else None
    return out if mask[0] else None, to_weight.result() if mask[1] else None, bias


CASES: list[Any] = [
    ((2, 4, 6), (6, 4, 3), {}),
    ((2, 4, 7), (6, 2, 3), {"groups": 2, "stride": 2}),
    ((2, 4, 5, 4), (4, 1, 3, 2), {"groups": 4}),
    ((2, 2, 5, 4), (3, 2, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 2, 6, 5), (2, 2, 2, 2), {"dilation": 2}),
    ((1, 2, 3, 3, 2), (2, 2, 2, 2, 1), {}),
    ((2, 4, 5), (4, 3, 3), {"transposed": True}),
    ((2, 4, 3, 3), (4, 2, 2, 2), {"transposed": True, "groups": 2, "stride": 2}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"transposed": True, "stride": 2, "padding": 1}),
]


def given(size: Any, kernel: Any, **options: Any) -> tuple[Any, ...]:
    """The arguments of the backward of a convolution with these options."""
    dims = len(kernel) - 2
    each = [[options.get(name, default)] * dims for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
    settings = *each, options.get("transposed", False), [0] * dims, options.get("groups", 1)
    x, weight = torch.randn(size, dtype=torch.double), torch.randn(kernel, dtype=torch.double)
    g = torch.randn_like(aten.convolution(x, weight, None, *settings))
    return g, x, weight, [g.shape[1]], *settings


@pytest.mark.parametrize(("size", "kernel", "options"), CASES)
def test_all_gradients(size: Any, kernel: Any, options: dict[str, Any]) -> None:
    agrees(aten.convolution_backward.default, gradients, *given(size, kernel, **options), ALL)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("transposed", [True, False])
def test_only_gradients_asked_for(mask: tuple[bool, ...], transposed: bool) -> None:
    args = given((2, 4, 5), (4, 4, 3), transposed=transposed)
    agrees(aten.convolution_backward.default, gradients, *args, mask)


@pytest.mark.parametrize(("size", "kernel", "options"), [case for case in CASES if "groups" not in case[2]])
def test_flop_counter_mode_agrees_on_gradients_without_groups(size: Any, kernel: Any, options: dict[str, Any]) -> None:
    args = given(size, kernel, **options)
    with FlopCounterMode(display=False) as counter:
        aten.convolution_backward(*args, ALL)
    assert cost_of(aten.convolution_backward.default, *args, ALL).macs == counter.get_total_flops() // 2


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("transposed", [True, False])
def test_each_gradient_is_as_large_as_the_forward(groups: int, transposed: bool) -> None:
    """For 8 to 8 channels and a 3x3 kernel, each weight is used at every place (5x5, or 7x7 if transposed) of both samples."""
    weight = 8, 8 // groups, 3, 3
    args = given((2, 8, 7, 7), weight, groups=groups, transposed=transposed)
    places = 7 * 7 if transposed else 5 * 5
    both = cost_of(aten.convolution_backward.default, *args, (True, True, False))
    assert both.macs == 2 * (math.prod(weight) * 2 * places)


def test_gradients_in_every_spelling() -> None:
    args = given((2, 4, 5, 5), (6, 2, 3, 3), groups=2)
    expected = cost_of(aten.convolution_backward.default, *args, ALL)
    g, x, weight, _, *settings = spec_of(args)
    stride, padding, dilation, *_, groups = settings
    name = "aten::convolution_backward_overrideable"
    assert expected == cost_by_name(name, g, x, weight, *settings, ALL, out=(x, weight, Spec((6,))))
    rest = padding, stride, dilation, groups
    name = "aten::mps_convolution_backward"
    assert expected == cost_by_name(name, x, g, weight, *rest, ALL, out=(x, weight, Spec((6,))))
    plain = given((2, 4, 5, 5), (6, 4, 3, 3))
    expected = cost_of(aten.convolution_backward.default, *plain, ALL)
    g, x, weight, *_ = plain
    slow = aten._slow_conv2d_backward.output_mask
    assert expected == cost_of(slow, g, x, weight, [3, 3], [1, 1], [0, 0], ALL)


def test_gradients_of_a_transposed_one_on_mps() -> None:
    args = given((2, 4, 5, 5), (4, 3, 3, 3), transposed=True)
    expected = cost_of(aten.convolution_backward.default, *args, (True, True, False))
    g, x, weight, _, stride, padding, dilation, _, more, groups = spec_of(args)
    rest = padding, more, stride, dilation, groups, (True, True)
    name = "aten::mps_convolution_transpose_backward"
    assert expected == cost_by_name(name, x, g, weight, *rest, out=(x, weight))
