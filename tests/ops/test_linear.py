"""Linear and bilinear layers against numpy's products on arrays of counting numbers. Their gradients also give torch's values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.records import Spec
from tests.ops.draws import DTYPES, META, Draw, Made, dims, draws, tensor
from tests.ops.textbook import computes, tally_of
from tests.oracle import cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten
N, D, K = 5, 3, 4
ROWS, COLUMNS = Spec((N, D)), Spec((N, K))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_in_every_spelling(bias, torch_macs):
    module, x = nn.Linear(5, 3, bias), torch.zeros(2, 4, 5)
    with tallying() as tally:
        out = numbers(2, 4, 5) @ numbers(5, 3)
        if bias:
            out + numbers(3)
    assert tally == cost_of(module, x) == cost_of(F.linear, x, module.weight, module.bias)
    assert tally == cost_of(aten.linear.default, x, weight=module.weight, bias=module.bias)
    assert cost_of(module, x).macs == torch_macs(module, x) == (2 * 4) * 3 * 5


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_multiplies_from_the_left(bias):
    x, weight, y = numbers(6, 3), numbers(2, 3, 4), numbers(6, 4)
    with tallying() as tally:
        for row, other in zip(x, y, strict=True):
            out = [(row @ weight[o]) @ other for o in range(2)]
            if bias:
                out + numbers(2)
    module, given = nn.Bilinear(3, 4, 2, bias), (torch.zeros(6, 3), torch.zeros(6, 4))
    assert tally == cost_of(module, *given) == cost_of(F.bilinear, *given, module.weight, module.bias)


def gradients(x, g, weight, mask):
    out = g @ weight if mask[0] else None
    return out, g.T @ x if mask[1] else None, g.sum(axis=0) if mask[2] else None


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
def test_gradients(mask: tuple[bool, ...]) -> None:
    x, weight, g = torch.randn(N, D), torch.randn(K, D), torch.randn(N, K)
    expected = tally_of(gradients, x, g, weight, mask)
    out = ROWS, Spec((K, D)), Spec((K,))
    assert expected == cost_by_name("aten::linear_backward", ROWS, COLUMNS, out[1], mask, out=out)
    assert expected == cost_by_name("aten::mkldnn_linear_backward", ROWS, COLUMNS, out[1], mask, out=out)
    batches = Spec((1, N, D)), Spec((1, N, K))
    assert expected == cost_by_name("aten::linear_backward", *batches, out[1], mask, out=out)


def test_gradients_are_what_autograd_computes() -> None:
    x, g = torch.randn(N, D, requires_grad=True), torch.randn(N, K)
    module = torch.nn.Linear(D, K)
    module(x).backward(g)
    computes(gradients, (x.grad, module.weight.grad, module.bias.grad), x, g, module.weight, (True, True, True))


def test_some_of_the_gradients() -> None:
    x, weight, g = torch.randn(N, D), torch.randn(K, D), torch.randn(N, K)
    expected = tally_of(gradients, x, g, weight, (True, False, False))
    assert expected == cost_by_name("aten::mkldnn_linear_backward_input", (N, D), COLUMNS, Spec((K, D)), out=ROWS)
    expected = tally_of(gradients, x, g, weight, (False, True, True))
    args = COLUMNS, ROWS, Spec((K, D)), True
    assert expected == cost_by_name("aten::mkldnn_linear_backward_weights", *args, out=(Spec((K, D)), Spec((K,))))


@draws("linear")
def linear_arguments(draw: Draw, target: Any) -> Made:
    *batch, i, o = dims(draw, 2, 5)
    dtype = draw(st.sampled_from(DTYPES))
    x = tensor(draw, (*batch, i + (not draw(st.integers(0, 15)))), dtype)
    if not draw(st.integers(0, 7)):
        x = x.as_strided(x.shape, [7 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)])
    if isinstance(target, type):
        own = torch.float32 if dtype in (torch.int64, torch.bool) else dtype
        return (target(i, o, bias=draw(st.booleans()), device=META, dtype=own), x), {}
    bias = draw(st.sampled_from([(), (torch.empty(o, dtype=dtype, device=META),)]))
    return (x, tensor(draw, (o, i), dtype), *bias), {}
