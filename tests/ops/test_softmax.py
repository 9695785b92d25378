"""Softmax and its relatives against their definitions on arrays of counting numbers. The gradients also give torch's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.records import Cost
from tests.ops.draws import Draw, Made, draws, unary
from tests.ops.textbook import agrees
from tests.oracle import Tally, cost_of, numbers, tallying

aten = torch.ops.aten
X = torch.zeros(2, 3, 4)


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
    """3 per element, less 1 per row."""
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


def test_masked_softmax() -> None:
    with tallying() as tally:
        x = np.exp(numbers(2, 2, 5, 5))  # stands for the selection by the mask
        e = np.exp(x)
        e / e.sum(-1, keepdims=True)
    x, mask = torch.rand(2, 2, 5, 5), torch.zeros(2, 2, 5, 5, dtype=torch.bool)
    assert tally == cost_of(aten._masked_softmax.default, x, mask, -1, 2)


G, LOGITS = torch.randn(3, 4, dtype=torch.double), 4 * torch.randn(3, 4, dtype=torch.double)
Y = torch.rand(3, 4, dtype=torch.double)


def softmax_gradient(g, y, dim, dtype=None):
    return y * (g - (y * g).sum(axis=dim, keepdims=True))


def log_softmax_gradient(g, y, dim, dtype):
    return g - np.exp(y) * g.sum(axis=dim, keepdims=True)


@pytest.mark.parametrize(
    ("name", "textbook", "args"),
    [
        ("_softmax_backward_data", softmax_gradient, (Y, 1, torch.double)),
        ("_softmax_backward_data", softmax_gradient, (Y, 0, torch.double)),
        ("_log_softmax_backward_data", log_softmax_gradient, (LOGITS, -1, torch.double)),
    ],
)
def test_gradients(name: str, textbook: Any, args: tuple[Any, ...]) -> None:
    agrees(getattr(aten, name).default, textbook, G, *args)


def test_a_masked_softmax_counts_every_element() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    agrees(aten._masked_softmax_backward.default, lambda g, y, mask, dim: softmax_gradient(g, y, dim), G, Y, mask, 1)


def test_the_gradient_of_nothing_and_of_a_scalar() -> None:
    assert cost_of(aten._softmax_backward_data.default, G[:0], Y[:0], 0, torch.double) == Cost()
    assert cost_of(aten._softmax_backward_data.default, G[0, 0], Y[0, 0], 0, torch.double) == Cost(muls=2, adds=1)


@draws("softmax", "softmax_function")
def softmaxed(draw: Draw, target: Any) -> Made:
    (x,), _ = unary(draw, target)
    return (x, draw(st.integers(-4, 3))), draw(st.sampled_from([{}, {"dtype": torch.float32}]))
