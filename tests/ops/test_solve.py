"""Solves, inverses, determinants and matrix functions: textbook algorithms on counting numbers, or by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.ops.test_linalg import lu
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

N, R = 4, 3
A = torch.rand(2, N, N) + N * torch.eye(N)
B = torch.rand(2, N, R)
aten = torch.ops.aten


def substituted(a: Any, b: Any, divides: bool = True) -> None:
    for i in range(len(a)):
        for k in range(i):
            b[i] = b[i] - b[k] * a[i, k]
        if divides:
            b[i] = b[i] / a[i, i]


def gauss_jordan(a: Any) -> None:
    n = len(a)
    for k in range(n):
        pivot = 1 / a[k, k]
        for i in range(n):
            if i != k:
                a[i, k] = a[i, k] * pivot
                for j in range(n):
                    if j != k:
                        a[i, j] = a[i, j] - a[i, k] * a[k, j]
        for j in range(n):
            if j != k:
                a[k, j] = a[k, j] * pivot


def run(*steps: Any) -> Tally:
    """The tally of these steps for two systems."""
    with tallying() as tally:
        for _ in range(2):
            for step in steps:
                step()
    return tally


def solved(divides: bool = True) -> Any:
    return lambda: substituted(numbers(N, N), numbers(N, R), divides)


def factored() -> None:
    lu(numbers(N, N))


@pytest.mark.filterwarnings("ignore:torch.triangular_solve")
def test_triangular_solves() -> None:
    assert run(solved()) == cost_of(torch.linalg.solve_triangular, A.triu(), B, upper=True)
    unit = run(solved(divides=False))
    assert unit == cost_of(torch.linalg.solve_triangular, A.triu(), B, upper=True, unitriangular=True)
    assert run(solved()) == cost_of(torch.linalg.solve_triangular, A.triu(), B.mT, upper=True, left=False)
    assert run(solved()) == cost_of(torch.triangular_solve, B, A.triu())
    assert unit == cost_of(aten.triangular_solve.default, B, A.triu(), True, False, True)


@pytest.mark.filterwarnings("ignore:torch.lu_solve")
def test_solves_with_a_factorization() -> None:
    assert run(solved(), solved()) == cost_of(torch.cholesky_solve, B, A.tril())
    assert run(solved(), solved()) == cost_of(aten._cholesky_solve_helper.default, B, A.tril(), False)
    pivoted, pivots = torch.linalg.lu_factor(A)
    expected = run(solved(), solved(divides=False))
    assert expected == cost_of(torch.linalg.lu_solve, pivoted, pivots, B)
    assert expected == cost_of(torch.lu_solve, B, pivoted, pivots)
    diagonal = run(solved(divides=False), solved(divides=False), lambda: numbers(N, R) / numbers(N, 1))
    assert diagonal == cost_of(torch.linalg.ldl_solve, *torch.linalg.ldl_factor(A), B)


def test_solve() -> None:
    expected = run(factored, solved(), solved(divides=False))
    assert expected == cost_of(torch.linalg.solve, A, B)
    assert expected == cost_of(torch.linalg.solve_ex, A, B)
    assert expected == cost_of(aten._linalg_solve_ex.default, A, B)
    vector = cost_of(torch.linalg.solve, A[0], B[0, :, 0])
    assert cost_of(torch.linalg.tensorsolve, A[0].reshape(2, 2, 4), B[0, :, 0].reshape(2, 2)) == vector


def test_inverses() -> None:
    expected = run(lambda: gauss_jordan(numbers(N, N)))
    assert expected == cost_of(torch.linalg.inv, A)
    assert expected == cost_of(torch.linalg.inv_ex, A)
    assert expected == cost_of(torch.inverse, A)
    assert cost_of(torch.linalg.tensorinv, A[0].reshape(2, 2, 4), 2) == cost_of(torch.linalg.inv, A[0])
    assert cost_of(torch.linalg.inv, torch.eye(50)).flops == pytest.approx(2 * 50**3, rel=0.03)


def test_cholesky_inverse() -> None:
    """LAPACK Working Note 41: n^3/3 + n^2 + 2n/3 multiplies, n^3/3 - n^2/2 + n/6 adds."""
    assert cost_of(torch.cholesky_inverse, A[0]) == Cost(muls=64 // 3 + 16 + 3, adds=14)


def test_determinants() -> None:
    expected = run(factored, lambda: np.prod(numbers(N)))
    for function in (torch.linalg.det, torch.det, aten._linalg_det.default):
        assert expected == cost_of(function, A)
    logarithms = run(
        factored,
        lambda: np.prod(numbers(N)),
        lambda: np.sum(np.log(abs(numbers(N)))),
        lambda: np.exp(numbers(N)),  # the signs
    )
    for function in (torch.linalg.slogdet, torch.slogdet, aten._linalg_slogdet.default):
        assert logarithms == cost_of(function, A)
    # For each matrix, compare the sign with -1, and select the logarithm or nan.
    assert cost_of(torch.slogdet, A).plus(Cost(others=2 * len(A))) == cost_of(torch.logdet, A)


def test_lstsq() -> None:
    """R, then the reflections applied to the right-hand sides, then the solve."""
    tall, sides = torch.rand(2, 6, N), torch.rand(2, 6, R)
    parts = [
        cost_of(torch.geqrf, tall),
        cost_of(torch.ormqr, tall, torch.rand(2, N), sides),
        cost_of(torch.linalg.solve_triangular, A, B, upper=True),
    ]
    assert cost_of(torch.linalg.lstsq, tall, sides) == parts[0].plus(parts[1]).plus(parts[2])


@pytest.mark.filterwarnings("ignore:at..nuclear_norm")
def test_by_singular_values() -> None:
    matrices = torch.rand(2, 6, N)
    thin, values = cost_of(torch.linalg.svd, matrices, False), cost_of(torch.linalg.svdvals, matrices)
    with tallying() as tally:
        for _ in range(2):
            s = np.log(numbers(N))  # stands for the compares with the tolerance
            _ = (numbers(N, N) * (1 / s)) @ numbers(N, 6)
    pseudo = cost_of(torch.linalg.pinv, matrices)
    assert tally == pseudo._replace(others=pseudo.others - thin.others)
    assert pseudo.macs == 2 * 6 * N * N
    assert cost_of(torch.pinverse, matrices) == pseudo
    assert cost_of(torch.linalg.pinv, A, hermitian=True).others == 2 * (9 * 64 + 2 * N)
    rank = cost_of(torch.linalg.matrix_rank, matrices)
    assert rank == values.plus(Cost(adds=2 * (N - 1), others=2 * N))
    assert cost_of(torch.linalg.matrix_rank, A, hermitian=True).others == 2 * (4 * 64 // 3 + N)
    assert cost_of(torch.linalg.cond, matrices) == values.plus(Cost(others=2))
    assert cost_of(torch.nuclear_norm, matrices[0]) == cost_of(torch.linalg.svdvals, matrices[0]).plus(Cost(adds=N - 1))
    moved = cost_of(torch.nuclear_norm, matrices.permute(1, 0, 2), (0, 2))
    assert moved == values.plus(Cost(adds=2 * (N - 1)))


@pytest.mark.parametrize("p", ["fro", 1, float("inf")])
def test_condition_by_norms(p: Any) -> None:
    norms = cost_of(torch.linalg.matrix_norm, A, p)
    expected = cost_of(torch.linalg.inv, A).plus(norms).plus(norms).plus(Cost(muls=2))
    assert cost_of(torch.linalg.cond, A, p) == expected


@pytest.mark.parametrize(("n", "products"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (7, 4), (8, 3), (15, 6)])
def test_matrix_power(n: int, products: int) -> None:
    with tallying() as tally:
        for _ in range(2 * products):
            _ = numbers(N, N) @ numbers(N, N)
    for function in (torch.linalg.matrix_power, torch.matrix_power):
        assert tally == cost_of(function, A, n)
    inverse = cost_of(torch.linalg.inv, A)
    if n:
        assert cost_of(torch.linalg.matrix_power, A, -n) == cost_of(torch.linalg.matrix_power, A, n).plus(inverse)


def test_matrix_exp() -> None:
    with tallying() as tally:
        for _ in range(2 * 5):
            _ = numbers(N, N) @ numbers(N, N)
    assert tally == cost_of(torch.linalg.matrix_exp, A)
    assert tally == cost_of(torch.matrix_exp, A)
    assert cost_of(torch.matrix_exp, A).macs == 2 * 5 * N**3


def test_polar_and_root() -> None:
    """U V' and (V S) V' after an svd; V sqrt(L) V' after an eigh."""
    with tallying() as tally:
        _ = numbers(6, N) @ numbers(N, N)
        _ = (numbers(N, N) * numbers(N)) @ numbers(N, N)
    polar = cost_by_name("aten::linalg_polar", Spec((6, N)), out=(Spec((6, N)), Spec((N, N))))
    assert tally == polar._replace(others=polar.others - 14 * 6 * 16 - 8 * 64)
    with tallying() as tally:
        _ = (numbers(N, N) * np.sqrt(numbers(N))) @ numbers(N, N)
    root = cost_by_name("aten::linalg_matrix_sqrth", Spec((N, N)), out=Spec((N, N)))
    assert tally == root._replace(others=root.others - 9 * 64)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_vander(n: int) -> None:
    """x, x * x, x * x * x: each is the previous one times x."""
    with tallying() as tally:
        for _ in range(max(n - 2, 0)):
            _ = numbers(7) * numbers(7)
    assert tally == cost_of(torch.vander, torch.rand(7), n)
    assert tally == cost_of(torch.linalg.vander, torch.rand(7), N=n)
