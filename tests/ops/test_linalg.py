"""Matrix factorizations: textbook algorithms on counting numbers, and published figures worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.oracle import Number, Tally, cost_by_name, cost_of, numbers, tallying

N = 5
A = torch.rand(2, N, N)
SYMMETRIC = A @ A.mT + torch.eye(N)
aten = torch.ops.aten


def twice(factorize: Any, *shape: int) -> Tally:
    """The tally of factorizing two matrices."""
    with tallying() as tally:
        for _ in range(2):
            factorize(numbers(*shape))
    return tally


def cholesky(a: Any) -> None:
    for j in range(len(a)):
        for k in range(j):
            for i in range(j, len(a)):
                a[i, j] = a[i, j] - a[i, k] * a[j, k]
        a[j, j] = a[j, j].sqrt()
        for i in range(j + 1, len(a)):
            a[i, j] = a[i, j] / a[j, j]


def lu(a: Any) -> None:
    m, n = a.shape
    for j in range(min(m, n)):
        for i in range(j + 1, m):
            a[i, j] = a[i, j] / a[j, j]
            for k in range(j + 1, n):
                a[i, k] = a[i, k] - a[i, j] * a[j, k]


def ldl(a: Any) -> None:
    for j in range(len(a)):
        scaled = [a[j, k] * a[k, k] for k in range(j)]
        for k in range(j):
            a[j, j] = a[j, j] - a[j, k] * scaled[k]
        for i in range(j + 1, len(a)):
            for k in range(j):
                a[i, j] = a[i, j] - a[i, k] * scaled[k]
            a[i, j] = a[i, j] / a[j, j]


def householder(a: Any) -> None:
    m, n = a.shape
    for j in range(min(m - 1, n)):
        x = a[j:, j]
        norm = np.sum(x * x).sqrt()
        v = x * (norm + x[0])
        for k in range(j + 1, n):
            a[j:, k] = a[j:, k] - v * (np.sum(v * a[j:, k]) * norm)


def test_cholesky() -> None:
    tally = twice(cholesky, N, N)
    assert tally == cost_of(torch.linalg.cholesky, SYMMETRIC)
    assert tally == cost_of(torch.linalg.cholesky_ex, SYMMETRIC)
    assert tally == cost_of(aten.linalg_cholesky_ex.default, SYMMETRIC)
    assert cost_of(torch.linalg.cholesky, torch.eye(100)).flops == 100**3 // 3 + 100**2 // 2 + 100 // 6 + 1


@pytest.mark.filterwarnings("ignore:torch.lu")
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7)], ids=str)
def test_lu(shape: tuple[int, int]) -> None:
    tally = twice(lu, *shape)
    matrices = torch.rand(2, *shape)
    for function in (torch.linalg.lu, torch.linalg.lu_factor, torch.linalg.lu_factor_ex, torch.lu):
        assert tally == cost_of(function, matrices)
    assert tally == cost_of("lu", matrices)


def test_ldl() -> None:
    assert twice(ldl, N, N) == cost_of(torch.linalg.ldl_factor, SYMMETRIC)
    assert twice(ldl, N, N) == cost_of(torch.linalg.ldl_factor_ex, SYMMETRIC)


@pytest.mark.parametrize("shape", [(40, 30), (30, 30), (20, 30)], ids=str)
def test_geqrf_is_householder_in_the_main(shape: tuple[int, int]) -> None:
    with tallying() as tally:
        householder(numbers(*shape))
    cost = cost_of(torch.geqrf, torch.rand(shape))
    assert cost.flops == pytest.approx(tally.flops, rel=0.06)
    m, n = max(shape), min(shape)
    assert cost.flops == pytest.approx(2 * n**2 * (m - n / 3), rel=0.12)


def test_geqrf_by_hand() -> None:
    """LAPACK Working Note 41, page 122: for m x n, m n^2 - n^3/3 + ... multiplies and adds each."""
    assert cost_of(torch.geqrf, torch.rand(3, 2)) == Cost(muls=2 * (2 * 3 + 1 - 4 / 3 + 3 + 23 / 6) // 1, adds=13)
    assert cost_of(torch.geqrf, torch.rand(2, 3)) == Cost(muls=2 * (6 - 1 - 4 / 3 + 6 + 23 / 6) // 1, adds=15)
    assert cost_of(torch.geqrf, torch.rand(4, 3)) == Cost(muls=36 - 9 + 12 + 4.5 + 11.5, adds=36 - 9 + 4.5 + 2.5)
    assert cost_of(torch.geqrf, torch.rand(3, 4)) == Cost(muls=36 - 9 + 24 - 4.5 + 11.5, adds=36 - 9 + 12 - 4.5 + 2.5)


def test_a_product_of_reflections() -> None:
    """The leading terms: 4 m n k - 2 (m + n) k^2 + 4/3 k^3; applied to another matrix, 4 m n k - 2 n k^2."""
    m, n, k = 60, 50, 40
    factored, tau, other = torch.rand(m, n), torch.rand(k), torch.rand(m, n)
    formed = 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3
    for function in (torch.linalg.householder_product, torch.orgqr):
        assert cost_of(function, factored, tau).flops == pytest.approx(formed, rel=0.03)
    reflectors = torch.rand(m, k)
    applied = 4 * m * n * k - 2 * n * k**2
    assert cost_of(torch.ormqr, reflectors, tau, other).flops == pytest.approx(applied, rel=0.03)
    assert cost_of(torch.ormqr, reflectors, tau, other.T.contiguous(), False) == cost_of(
        torch.ormqr, reflectors, tau, other
    )


def test_qr() -> None:
    matrices = torch.rand(2, 6, 4)
    only_r = cost_of(torch.geqrf, matrices)
    assert cost_of(torch.linalg.qr, matrices, "r") == only_r
    formed = cost_of(torch.linalg.householder_product, matrices, torch.rand(2, 4))
    assert cost_of(torch.linalg.qr, matrices) == only_r.plus(formed)
    whole = cost_of(torch.linalg.householder_product, torch.rand(2, 6, 6), torch.rand(2, 4))
    assert cost_of(torch.linalg.qr, matrices, mode="complete") == only_r.plus(whole)
    assert cost_by_name("aten::qr", Spec((2, 6, 4)), out=None) == only_r.plus(formed)
    assert cost_by_name("aten::linalg_qr", Spec((2, 6, 4)), out=None) == only_r.plus(formed)


def test_svd() -> None:
    """For each 6 x 4 matrix 14 m n^2 + 8 n^3; with all of U 4 m^2 n + 8 m n^2 + 9 n^3; singular values alone 4 m n^2 - 4/3 n^3."""
    tall, wide = torch.rand(2, 6, 4), torch.rand(2, 4, 6)
    thin, full, values = 14 * 6 * 16 + 8 * 64, 4 * 36 * 4 + 8 * 6 * 16 + 9 * 64, 4 * 6 * 16 - 85
    for matrices in (tall, wide):
        assert cost_of(torch.linalg.svd, matrices, False).flops == 2 * thin
        assert cost_of(torch.linalg.svd, matrices).flops == 2 * full
        assert cost_of(torch.linalg.svdvals, matrices).flops == 2 * values
        assert cost_of(torch.svd, matrices).flops == cost_of("svd", matrices).flops == 2 * thin
        assert cost_of(torch.svd, matrices, some=False).flops == 2 * full
        assert cost_of(torch.svd, matrices, compute_uv=False).flops == 2 * values
        assert cost_of(aten._linalg_svd.default, matrices).flops == 2 * thin
        assert cost_of(aten._linalg_svd.default, matrices, True).flops == 2 * full
        assert cost_of(aten._linalg_svd.default, matrices, False, False).flops == 2 * values


def test_eigenvalues() -> None:
    """Symmetric matrices take 9 n^3 (eigenvalues alone 4/3 n^3), others 25 n^3 (10 n^3)."""
    assert cost_of(torch.linalg.eigh, SYMMETRIC).flops == 2 * 9 * 125
    assert cost_of(torch.linalg.eigvalsh, SYMMETRIC).flops == 2 * 166
    assert cost_of(aten._linalg_eigh.default, SYMMETRIC).flops == 2 * 9 * 125
    assert cost_of(aten._linalg_eigh.default, SYMMETRIC, "L", False).flops == 2 * 166
    assert cost_of(torch.linalg.eig, A).flops == 2 * 25 * 125
    assert cost_of(torch.linalg.eigvals, A).flops == 2 * 10 * 125
    assert cost_of(aten._linalg_eigvals.default, A).flops == 2 * 10 * 125


def test_complex_iterations_are_half_multiplies() -> None:
    cost = cost_of(torch.linalg.eig, A.to(torch.complex64))
    assert cost.flops == 2 * 25 * 125
    assert abs(cost.muls - cost.adds) <= 2
    assert cost_of(torch.linalg.eig, A).muls == 0


@pytest.mark.parametrize("function", [torch.linalg.cholesky, torch.linalg.lu, torch.linalg.qr, torch.linalg.svd])
def test_empty(function: Any) -> None:
    assert cost_of(function, torch.ones(0, 3, 3)) == cost_of(function, torch.ones(0, 0)) == Cost()
    assert isinstance(numbers(1)[0], Number)


SQUARE = (
    "cholesky cholesky_ex eigh eigvalsh inv inv_ex matrix_exp ldl_factor lu lu_factor qr svd svdvals eig eigvals det slogdet"
    " pinv matrix_rank cond"
).split()


@pytest.mark.parametrize("function", [*(getattr(torch.linalg, name) for name in SQUARE), torch.cholesky_inverse])
def test_batches_of_batches_cost_as_many_times_one(function: Any) -> None:
    one = cost_of(function, SYMMETRIC[0])
    assert cost_of(function, SYMMETRIC[0].repeat(2, 3, 1, 1)) == Cost(*(6 * number for number in one))
    assert one.flops > 0


def test_batches_of_batches_with_right_hand_sides() -> None:
    sides, lower = torch.rand(N, 4), torch.linalg.cholesky(SYMMETRIC[0])
    for function, args in ((torch.linalg.solve, (SYMMETRIC[0], sides)), (torch.cholesky_solve, (sides, lower))):
        one, six = cost_of(function, *args), cost_of(function, *(each.repeat(2, 3, 1, 1) for each in args))
        assert six == Cost(*(6 * number for number in one))
