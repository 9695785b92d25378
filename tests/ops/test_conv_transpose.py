"""Transposed convolutions, on arrays of counting numbers, against a loop that adds every product to the output."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fxflops.records import Spec
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def scatter(batch, inputs, outputs, size, kernel, *, groups=1, stride=1, bias=False) -> Tally:
    """The definition: every input times the kernel, added to the output."""
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


def test_cudnn_s_kernel_counts_the_same_without_a_bias() -> None:
    x, weight = Spec((2, 4, 6, 6)), Spec((4, 8, 3, 3))
    settings = [0, 0], [0, 0], [1, 1], [1, 1], 1
    cost = cost_by_name("aten::cudnn_convolution_transpose", x, weight, *settings, out=Spec((2, 8, 8, 8)))
    assert scatter(2, 4, 8, (6, 6), (3, 3)) == cost
