"""Matrix products against numpy's on arrays of counting numbers. Their gradients also give torch's values."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, tensor
from tests.ops.textbook import Sums, computes, tally_of
from tests.oracle import cost_by_name, cost_of, numbers, tallying

N, D, K = 5, 3, 4

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((2, 1, 4, 5), (6, 5, 3)), ((2, 4, 5), (5,))],
)
def test_matmul_broadcasts(left, right, torch_macs):
    x, y = torch.zeros(left), torch.zeros(right)
    with tallying() as tally:
        np.matmul(numbers(*left), numbers(*right))
    for spelling in (torch.matmul, torch.linalg.matmul, operator.matmul, "matmul", "__matmul__", aten.matmul.default):
        assert tally == cost_of(spelling, x, y)
    assert tally == cost_of("__rmatmul__", y, x)


@pytest.mark.parametrize(
    ("spellings", "left", "right"),
    [
        ((torch.mm, "mm", aten.mm.default), (4, 5), (5, 3)),
        ((torch.bmm, "bmm", aten.bmm.default), (2, 4, 5), (2, 5, 3)),
        ((torch.mv, "mv", aten.mv.default), (4, 5), (5,)),
        ((torch.dot, "dot", torch.vdot, aten.dot.default, torch.inner, torch.linalg.vecdot), (5,), (5,)),
    ],
)
def test_products_of_fixed_rank(spellings, left, right):
    with tallying() as tally:
        np.matmul(numbers(*left), numbers(*right))
    for spelling in spellings:
        assert tally == cost_of(spelling, torch.zeros(left), torch.zeros(right))


def test_a_sparse_matrix_is_met_by_what_it_holds():
    """6 stored elements, each multiplied by 3 columns or by one vector, and added into 4 x 3 or 4 sums."""
    sparse = Spec((4, 5), torch.float32, torch.sparse_coo, {"nnz": 6})
    assert cost_by_name("aten::mm", sparse, Spec((5, 3)), out=Spec((4, 3))) == Cost(18, 18, 18 - 12)
    assert cost_by_name("aten::mm", Spec((3, 4)), sparse, out=Spec((3, 5))) == Cost(18, 18, 18 - 15)
    assert cost_by_name("aten::mv", sparse, Spec((5,)), out=Spec((4,))) == Cost(6, 6, 6 - 4)
    assert cost_by_name("aten::matmul", Spec((4,)), sparse, out=Spec((5,))) == Cost(6, 6, 6 - 5)


def test_macs_are_those_of_torch(torch_macs):
    x, y = torch.zeros(6, 4, 5), torch.zeros(6, 5, 3)
    assert cost_of(torch.bmm, x, y).macs == torch_macs(torch.bmm, x, y) == 6 * 4 * 3 * 5
    assert cost_of(torch.mm, x[0], y[0]).macs == torch_macs(torch.mm, x[0], y[0])
    added = (torch.zeros(4, 3), x[0], y[0])
    assert cost_of(torch.addmm, *added).macs == torch_macs(torch.addmm, *added)
    added = (torch.zeros(4, 3), x, y)
    assert cost_of(torch.baddbmm, *added).macs == torch_macs(torch.baddbmm, *added)
    assert torch_macs(torch.addbmm, *added) == 0, "a gap of FlopCounterMode"
    tensordot = (torch.zeros(2, 3, 4), torch.zeros(4, 3, 5), ([1, 2], [1, 0]))
    assert cost_of(torch.tensordot, *tensordot).macs == torch_macs(torch.tensordot, *tensordot)


def test_inner_of_matrices_and_with_a_scalar():
    with tallying() as tally:
        numbers(4, 5) @ numbers(3, 5).T
    assert tally == cost_of(torch.inner, torch.zeros(4, 5), torch.zeros(3, 5))
    with tallying() as tally:
        numbers(4, 5) * numbers(1)
    assert tally == cost_of(torch.inner, torch.zeros(4, 5), torch.zeros(()))


def test_vecdot_along_a_dim():
    with tallying() as tally:
        (numbers(2, 5, 3) * numbers(2, 5, 3)).sum(axis=1)
    assert tally == cost_of(torch.linalg.vecdot, torch.zeros(2, 5, 3), torch.zeros(2, 5, 3), dim=1)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 1), (1, 3), (0, 1), (0.5, 0.5)])
def test_added_products(beta, alpha):
    def plus(added, product):
        product = product if alpha == 1 else alpha * product
        added = added if beta in (0, 1) else beta * added
        return product if beta == 0 else added + product

    factors = {"beta": beta, "alpha": alpha}
    a, b, batch1, batch2 = torch.zeros(4, 5), torch.zeros(5, 3), torch.zeros(2, 4, 5), torch.zeros(2, 5, 3)
    row, matrix, column = torch.zeros(3), torch.zeros(4, 3), torch.zeros(4)
    with tallying() as tally:
        plus(numbers(3), numbers(4, 5) @ numbers(5, 3))
    assert tally == cost_of(torch.addmm, row, a, b, **factors) == cost_of(aten.addmm.default, row, a, b, **factors)
    with tallying() as tally:
        plus(numbers(4, 3), numbers(4, 5) @ numbers(5, 3))
    assert tally == cost_of("addmm", matrix, a, b, **factors) == cost_of("addmm_", matrix, a, b, **factors)
    with tallying() as tally:
        plus(numbers(4), numbers(4, 5) @ numbers(5))
    assert tally == cost_of(torch.addmv, column, a, torch.zeros(5), **factors)
    with tallying() as tally:
        plus(numbers(4, 3), numbers(2, 4, 5) @ numbers(2, 5, 3))
    assert tally == cost_of(torch.baddbmm, matrix, batch1, batch2, **factors)
    with tallying() as tally:
        plus(numbers(4, 3), (numbers(2, 4, 5) @ numbers(2, 5, 3)).sum(axis=0))
    assert tally == cost_of(torch.addbmm, matrix, batch1, batch2, **factors)
    with tallying() as tally:
        plus(numbers(4, 3), np.outer(numbers(4), numbers(3)))
    assert tally == cost_of(torch.addr, matrix, column, row, **factors)


def test_addmm_with_its_activation():
    with tallying() as tally:
        np.tanh(numbers(3) + numbers(4, 5) @ numbers(5, 3))
    given = torch.zeros(3), torch.zeros(4, 5), torch.zeros(5, 3)
    assert tally == cost_of(aten._addmm_activation.default, *given)


def test_outer_products():
    with tallying() as tally:
        np.outer(numbers(4), numbers(3))
    for spelling in (torch.outer, "outer", torch.ger, aten.outer.default):
        assert tally == cost_of(spelling, torch.zeros(4), torch.zeros(3))
    with tallying() as tally:
        np.kron(numbers(2, 3), numbers(4, 5))
    assert tally == cost_of(torch.kron, torch.zeros(2, 3), torch.zeros(4, 5))


def test_tensordot_over_one_two_and_no_dims():
    with tallying() as tally:
        np.tensordot(numbers(2, 3, 4), numbers(3, 4, 5), 2)
    assert tally == cost_of(torch.tensordot, torch.zeros(2, 3, 4), torch.zeros(3, 4, 5), dims=2)
    with tallying() as tally:
        np.tensordot(numbers(2, 3), numbers(4, 3), ([1], [1]))
    assert tally == cost_of(torch.tensordot, torch.zeros(2, 3), torch.zeros(4, 3), ([1], [1]))
    assert tally == cost_of(aten.tensordot.default, torch.zeros(2, 3), torch.zeros(4, 3), [1], [1])
    with tallying() as tally:
        np.outer(numbers(2, 3, 4).sum(axis=1).sum(axis=1), numbers(5))
    assert tally == cost_of(torch.tensordot, torch.zeros(2, 3, 4), torch.zeros(1, 1, 5), ([1, 2], [0, 1]))
    with tallying() as tally:
        np.multiply.outer(numbers(2, 3), numbers(4))
    assert tally == cost_of(torch.tensordot, torch.zeros(2, 3), torch.zeros(4), dims=0)


def test_chains_multiply_in_the_cheapest_order():
    given = [torch.zeros(2, 30), torch.zeros(30, 4), torch.zeros(4, 50), torch.zeros(50, 3)]
    a, b, c, d = (numbers(*tensor.shape) for tensor in given)
    with tallying() as tally:
        (a @ b) @ (c @ d)
    assert tally.muls == 2 * 30 * 4 + 4 * 50 * 3 + 2 * 4 * 3
    assert tally == cost_of(torch.linalg.multi_dot, given) == cost_of(aten.linalg_multi_dot.default, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns once per process that it is deprecated
        assert tally == cost_of(torch.chain_matmul, *given)
    with tallying() as tally:
        numbers(5) @ (numbers(5, 6) @ numbers(6))
    assert tally == cost_of(torch.linalg.multi_dot, [torch.zeros(5), torch.zeros(5, 6), torch.zeros(6)])


def test_gradients_where_one_broadcasts() -> None:
    """The gradient of the broadcast matrix sums over the batch."""

    def matmul(g, a, b):
        out_a, out_b = Sums(*a.shape), Sums(*b.shape)
        for n, i, j, k in np.ndindex(*g.shape, a.shape[-1]):
            out_a.add((n, i, k), g[n, i, j] * b[k, j])
            out_b.add((k, j), g[n, i, j] * a[n, i, k])
        return out_a.result(), out_b.result()

    a, b = torch.randn(2, N, D, requires_grad=True), torch.randn(D, K, requires_grad=True)
    g = torch.randn(2, N, K)
    (a @ b).backward(g)
    computes(matmul, (a.grad, b.grad), g, a, b)
    expected = tally_of(matmul, g, a.detach(), b.detach())
    args = Spec((2, N, K)), Spec((2, N, D)), Spec((D, K))
    assert expected == cost_by_name("aten::matmul_backward", *args, (True, True), out=args[1:])
    half = cost_by_name("aten::matmul_backward", *args, (True, False), out=args[1:])
    assert half.macs * 2 == expected.muls


@draws("matmul", "bmm")
def contracted(draw: Draw, target: Any) -> Made:
    least = {"bmm": 3, "mm": 2}.get(target.__name__)
    *batch, m, k = dims(draw, least or 1, least or 5) if least else dims(draw, 2, 5)
    dtype, n = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 5))
    other = (
        (*batch, k, n)
        if least or draw(st.booleans())
        else draw(st.sampled_from([(k, n), (k,), (1, k, n), (2, k + 1, n)]))
    )
    return (tensor(draw, (*batch, m, k), dtype), tensor(draw, other, dtype)), {}


@draws("addmm")
def contracted_and_added(draw: Draw, target: Any) -> Made:
    *batch, m, k, n = dims(draw, 3, 3) if target.__name__ == "addmm" else dims(draw, 4, 4)
    given = draw(st.sampled_from([(n,), (*batch, m, n), (1, n), (m + 1, n)]))
    dtype = draw(st.sampled_from(DTYPES))
    return tuple(tensor(draw, sizes, dtype) for sizes in (given, (*batch, m, k), (*batch, k, n))), {}


def test_the_second_matrix_by_its_name():
    x, y = torch.ones(2, 3), torch.ones(3, 5)
    assert cost_of(torch.mm, x, mat2=y) == cost_of(torch.mm, x, y)
