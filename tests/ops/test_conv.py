"""Convolutions against a loop over zero-padded arrays of counting numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops.records import Spec
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


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


def scatter(batch, inputs, outputs, size, kernel, *, groups=1, stride=1, bias=False) -> Tally:
    """The transposed definition: every input times the kernel, added into the output."""
    full = [(n - 1) * stride + k for n, k in zip(size, kernel, strict=True)]
    out = np.full((batch, outputs, *full), None, dtype=object)
    x, weight, biases = numbers(batch, inputs, *size), numbers(inputs, outputs // groups, *kernel), numbers(outputs)
    with tallying() as tally:
        for b, i, *at in itertools.product(range(batch), range(inputs), *map(range, size)):
            first = i // (inputs // groups) * (outputs // groups)
            for o, *tap in itertools.product(range(outputs // groups), *map(range, kernel)):
                product = x[(b, i, *at)] * weight[(i, o, *tap)]
                place = (b, first + o, *(p * stride + t for p, t in zip(at, tap, strict=True)))
                out[place] = product if out[place] is None else out[place] + product
        if bias:
            out + biases.reshape(1, outputs, *[1] * len(size))
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


@pytest.mark.parametrize(
    ("module", "given", "textbook"),
    [
        (nn.ConvTranspose1d(4, 6, 3, bias=False), (2, 4, 5), scatter(2, 4, 6, (5,), (3,))),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 3, 4), scatter(2, 4, 6, (3, 4), (2, 2), stride=2, bias=True)),
        (
            nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
            (1, 4, 3, 3),
            scatter(1, 4, 6, (3, 3), (3, 3), stride=2, groups=2, bias=True),
        ),
        (nn.ConvTranspose3d(2, 3, 2), (2, 3, 3, 3), scatter(1, 2, 3, (3, 3, 3), (2, 2, 2), bias=True)),
    ],
)
def test_conv_transpose_adds_every_product_into_the_output(module, given, textbook):
    assert textbook == cost_of(module, torch.zeros(given))


def test_conv_transpose_macs_are_those_of_torch(torch_macs):
    module, x = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), torch.zeros(2, 4, 5, 5)
    assert cost_of(module, x).macs == torch_macs(module, x) == (2 * 4 * 5 * 5) * 6 * (3 * 3)


def test_adds_of_a_transposed_convolution_are_never_negative():
    cost = cost_of(nn.ConvTranspose1d(1, 1, 1, stride=3, bias=False), torch.zeros(1, 1, 4))
    assert (cost.muls, cost.adds) == (4, 0)


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
    """Without a bias where they take none; with the relu that is fused into them."""
    x, weight, out, bias = Spec((2, 4, 6, 6)), Spec((8, 4, 3, 3)), Spec((2, 8, 4, 4)), Spec((8,))
    plain = cost_by_name("aten::cudnn_convolution", x, weight, [0, 0], [1, 1], [1, 1], 1, out=out)
    assert convolve(2, 4, 8, (6, 6), (3, 3)) == plain
    fused = cost_by_name("aten::cudnn_convolution_relu", x, weight, bias, [1, 1], [0, 0], [1, 1], 1, out=out)
    with_bias = convolve(2, 4, 8, (6, 6), (3, 3), bias=True)
    assert (fused.muls, fused.adds, fused.others) == (with_bias.muls, with_bias.adds, 2 * 8 * 4 * 4)
    transposed = "aten::cudnn_convolution_transpose"
    cost = cost_by_name(transposed, x, Spec((4, 8, 3, 3)), [0, 0], [0, 0], [1, 1], [1, 1], 1, out=Spec((2, 8, 8, 8)))
    assert scatter(2, 4, 8, (6, 6), (3, 3)) == cost
