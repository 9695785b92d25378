"""einsum against loops over every index, and against PyTorch's counter where both agree on what a contraction is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fxflops import count
from tests.oracle import cost_of, numbers, tallying

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 2, "j": 3, "k": 4, "l": 5}


def tensors(equation: str) -> list[torch.Tensor]:
    return [torch.zeros([SIZES[letter] for letter in term]) for term in equation.partition("->")[0].split(",")]


@pytest.mark.parametrize(
    ("equation", "product"),
    [
        ("ij,jk->ik", lambda x, y: x @ y),
        ("ij,jk", lambda x, y: x @ y),
        ("ij,kj->ik", lambda x, y: x @ y.T),
        ("aij,ajk->aik", lambda x, y: x @ y),
        ("ij,j->i", lambda x, y: x @ y),
        ("j,j->", lambda x, y: x @ y),
        ("i,j->ij", lambda x, y: x[:, None] * y[None, :]),
        ("ij,ij->ij", lambda x, y: x * y),
        ("ij,ij->", lambda x, y: x.ravel() @ y.ravel()),
        ("ij,ij->i", lambda x, y: (x * y).sum(axis=1)),
        ("ij,kl->ik", lambda x, y: np.outer(x.sum(axis=1), y.sum(axis=1))),
        ("ij,jk->k", lambda x, y: x.sum(axis=0) @ y),
        ("ij,jk,kl->il", lambda x, y, z: x @ y @ z),
        ("ij,kl,jk->il", lambda x, y, z: (x[:, :, None, None] * y).transpose(0, 3, 1, 2).reshape(10, 12) @ z.ravel()),
        ("ij->ji", lambda x: x.T),
        ("ij->i", lambda x: x.sum(axis=1)),
        ("ij->", lambda x: x.sum()),
        ("ii->i", np.diagonal),
        ("ii->", lambda x: np.diagonal(x).sum()),
        ("ii,ij->j", lambda x, y: np.diagonal(x) @ y),
    ],
)
def test_einsum_is_the_products_from_left_to_right(equation, product):
    given = tensors(equation)
    arrays = [numbers(*tensor.shape) for tensor in given]
    with tallying() as tally:
        product(*arrays)
    assert tally == cost_of(torch.einsum, equation, *given)
    assert tally == cost_of(torch.einsum, equation, given)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "abij,abjk->abik", "aij,ajk->ik", "ij,jk,kl->il", "aijk,jkl->ail"])
def test_macs_are_those_of_torch(equation, torch_macs):
    given = tensors(equation)
    assert cost_of(torch.einsum, equation, *given).macs == torch_macs(torch.einsum, equation, *given)


def test_outer_and_elementwise_products_are_contractions_over_nothing():
    """FlopCounterMode counts 0 for both."""
    assert cost_of(torch.einsum, "i,j->ij", torch.zeros(3), torch.zeros(4)) == (3 * 4, 3 * 4, 0, 0)
    assert cost_of(torch.einsum, "ij,ij->ij", torch.zeros(3, 4), torch.zeros(3, 4)) == (3 * 4, 3 * 4, 0, 0)


def test_an_ellipsis_broadcasts():
    x, y = torch.zeros(6, 1, 2, 3), torch.zeros(5, 3, 4)
    with tallying() as tally:
        numbers(6, 5, 2, 3) @ numbers(5, 3, 4)
    assert tally == cost_of(torch.einsum, "...ij,...jk->...ik", x, y)
    assert tally == cost_of(torch.einsum, "...ij,...jk", x, y)
    assert tally == cost_of(torch.einsum, "... i j, ... j k -> i ... k", x, y)


def test_an_ellipsis_left_out_of_the_result_is_contracted():
    with tallying() as tally:
        numbers(2, 6 * 3) @ numbers(6 * 3, 4)
    assert tally == cost_of(torch.einsum, "...ij,...jk->ik", torch.zeros(6, 2, 3), torch.zeros(6, 3, 4))


def test_a_dim_of_one_is_broadcast_after_summing_the_other():
    with tallying() as tally:
        numbers(2, 1) @ numbers(3, 4).sum(axis=0, keepdims=True)
    assert tally == cost_of(torch.einsum, "ij,jk->ik", torch.zeros(2, 1), torch.zeros(3, 4))


class Lists(nn.Module):
    """Calls einsum with lists of indices, which torch turns into an equation."""

    def __init__(self, left, right, *result):
        super().__init__()
        self.left, self.right, self.result = left, right, result

    def forward(self, x, y):
        return torch.einsum(x, self.left, y, self.right, *self.result)


def test_operands_with_lists_of_indices():
    x, y = torch.zeros(6, 2, 3), torch.zeros(6, 3, 4)
    with tallying() as tally:
        numbers(6, 2, 3) @ numbers(6, 3, 4)
    for model in (Lists([0, 1, 2], [0, 2, 3], [0, 1, 3]), Lists([..., 1, 2], [..., 2, 3])):
        assert count(model, (x, y)).total_flops == tally.flops
    assert tally == cost_of(torch.ops.aten.einsum.default, "bij,bjk->bik", [x, y])


def test_nothing_to_sum():
    assert cost_of(torch.einsum, "ij,jk->ik", torch.zeros(2, 0), torch.zeros(0, 4)).flops == 0
