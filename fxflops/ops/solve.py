"""Ops that use matrix factorizations: solvers, inverses, determinants, ranks and matrix functions."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._extend import Cost, Spec, contraction, first, formula, named, times, when
from .linalg import batch_of, eigh, eigvalsh, geqrf, lu, of_linalg, ormqr, svd, svdvals
from .reduce import matrix_norm


@formula(*of_linalg("solve_triangular"))
def solve_triangular(A: Spec, B: Spec, *, left: bool = True, unitriangular: bool = False, out: Any) -> Cost:
    """A[*, n, n], B[*, n, r] -> X[*, n, r]: n(n - 1)/2 multiplies and as many adds, n divides per right-hand side."""
    return _substituted(A[-1], _right_hand_sides(A, out), not unitriangular)


@formula(*named("triangular_solve"), op="solve_triangular")
def triangular_solve(
    B: Spec, A: Spec, upper: bool = True, transpose: bool = False, unitriangular: bool = False, *, out: Any
) -> Cost:
    """B[*, n, r], A[*, n, n] -> X[*, n, r]: counted like solve_triangular."""
    return solve_triangular(A, B, unitriangular=unitriangular, out=out)


@formula(*named("cholesky_solve"), "aten::_cholesky_solve_helper")
def cholesky_solve(B: Spec, L: Spec, *, out: Any) -> Cost:
    """B[*, n, r], L[*, n, n] -> X[*, n, r]: two triangular solves."""
    return times(2, _substituted(L[-1], _right_hand_sides(L, out), True))


@formula(*of_linalg("lu_solve"))
def lu_solve(LU: Spec, *, out: Any) -> Cost:
    """LU[*, n, n], B[*, n, r] -> X[*, n, r]: two triangular solves, one of them without divides."""
    sides = _right_hand_sides(LU, out)
    return _substituted(LU[-1], sides, True).plus(_substituted(LU[-1], sides, False))


@formula(*(target for target in named("lu_solve") if target is not torch.linalg.lu_solve), op="lu_solve")
def lu_solve_native(B: Spec, LU_data: Spec, *, out: Any) -> Cost:
    """B[*, n, r], LU[*, n, n] -> X[*, n, r]: counted like torch.linalg.lu_solve."""
    return lu_solve(LU_data, out=out)


@formula(*of_linalg("ldl_solve"))
def ldl_solve(LD: Spec, *, out: Any) -> Cost:
    """LD[*, n, n], B[*, n, r] -> X[*, n, r]: two triangular solves without divides, and n divides per right-hand side."""
    sides = _right_hand_sides(LD, out)
    return times(2, _substituted(LD[-1], sides, False)).plus(Cost(others=LD[-1] * sides))


@formula(*of_linalg("solve", "solve_ex"), "aten::_linalg_solve_ex")
def solve(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n], B[*, n, r] -> X[*, n, r]: the cost of lu, plus the cost of lu_solve."""
    return lu(A, out=out).plus(lu_solve(A, out=out))


@formula(*of_linalg("tensorsolve"), op="solve")
def tensorsolve(A: Spec, B: Spec, *, out: Any) -> Cost:
    """A[*, *], B[*] -> X[*]: counted like solve, with n = prod(B) equations."""
    return solve(Spec((B.numel(), B.numel())), out=B)


@formula(*of_linalg("inv", "inv_ex"), *named("inverse"))
def inv(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> out[*, n, n]: n^3 - n multiplies, n(n - 1)^2 adds and n divides per matrix, by Gauss-Jordan elimination."""
    n = A[-1]
    return times(batch_of(A), Cost(muls=n**3 - n, adds=n * (n - 1) ** 2, others=n))


@formula(*of_linalg("tensorinv"), op="inv")
def tensorinv(A: Spec, *, out: Any) -> Cost:
    """A[*, *] -> out[*, *]: counted like inv, with n^2 = prod(A)."""
    n = math.isqrt(A.numel())
    return inv(Spec((n, n)), out=out)


@formula(*named("cholesky_inverse"))
def cholesky_inverse(L: Spec, *, out: Any) -> Cost:
    """L[*, n, n] -> out[*, n, n]: 2/3 n^3 per matrix to leading order, as in LAPACK Working Note 41."""
    n = L[-1]
    muls, adds = n * (n + 1) * (n + 2) // 3, n * (2 * n - 1) * (n - 1) // 6
    return times(batch_of(L), Cost(muls=muls, adds=adds))


@formula(*of_linalg("det"), *named("det"), "aten::_linalg_det")
def det(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> out[*]: the cost of lu, plus n - 1 multiplies per matrix."""
    return lu(A, out=out).plus(Cost(muls=batch_of(A) * max(A[-1] - 1, 0)))


@formula(*of_linalg("slogdet"), *named("slogdet"), "aten::_linalg_slogdet")
def slogdet(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> sign[*], logabsdet[*]: the cost of lu, plus n absolute values, n logarithms, n - 1 adds, n signs and n - 1 multiplies."""
    n, b = A[-1], batch_of(A)
    return lu(A, out=out).plus(Cost(muls=b * max(n - 1, 0), adds=b * max(n - 1, 0), others=3 * b * n))


@formula(*named("logdet"), op="slogdet")
def logdet(A: Spec, *, out: Spec) -> Cost:
    """A[*, n, n] -> out[*]: the cost of slogdet, plus 1 compare of the sign and 1 selection per matrix (complex: 1 logarithm and 1 add)."""
    joined = Cost(adds=out.numel(), others=out.numel()) if A.dtype.is_complex else Cost(others=2 * out.numel())
    return slogdet(A, out=out).plus(joined)


@formula(*of_linalg("lstsq"))
def lstsq(A: Spec, B: Spec, *, out: Any) -> Cost:
    """A[*, m, n], B[*, m, r] -> X[*, n, r]: the cost of geqrf, of ormqr on B, and of a triangular solve, with any driver."""
    m, n = sorted(A[-2:], reverse=True)
    batch, sides = batch_of(A), B[-1] if B.ndim == A.ndim else 1
    factored = Spec((batch, m, n))
    applied = ormqr(factored, Spec((batch, n)), Spec((batch, m, sides)), out=out)
    return geqrf(factored, out=out).plus(applied).plus(_substituted(n, batch * sides, True))


@formula(*of_linalg("pinv"), *named("pinverse"))
def pinv(A: Spec, rcond: Any = None, hermitian: bool = False, *, out: Any) -> Cost:
    """A[*, m, n] -> out[*, n, m]: the cost of svd (eigh if hermitian), k compares and divides, and the product of V / S and U'."""
    n, k, b = A[-1], min(A[-2:]), batch_of(A)
    factored = eigh(A, out=out) if hermitian else svd(A, False, out=out)
    scaled = times(b, Cost(muls=k * n, others=2 * k))
    return factored.plus(scaled).plus(contraction(k, A.numel()))


@formula(*of_linalg("matrix_rank"))
def matrix_rank(A: Spec, tol: Any = None, hermitian: bool = False, *, out: Any) -> Cost:
    """A[*, m, n] -> out[*]: the cost of svdvals (eigvalsh if hermitian), plus k compares and k - 1 adds per matrix."""
    k, b = min(A[-2:]), batch_of(A)
    values = eigvalsh(A, out=out) if hermitian else svdvals(A, out=out)
    return values.plus(times(b, Cost(adds=max(k - 1, 0), others=k)))


@formula(*of_linalg("cond"))
def cond(A: Spec, p: Any = None, *, out: Spec) -> Cost:
    """A[*, m, n] -> out[*]: the cost of svdvals, plus 1 divide; for p other than 2 and -2, the cost of inv, two norms and 1 multiply."""
    if p in (None, 2, -2):
        return svdvals(A, out=out).plus(Cost(others=batch_of(A)))
    norm = nuclear_norm(A, out=out) if p == "nuc" else matrix_norm(A, p, out=out)
    return inv(A, out=A).plus(times(2, norm)).plus(Cost(muls=batch_of(A)))


@formula(*named("nuclear_norm"))
def nuclear_norm(A: Spec, dim: Any = None, *, out: Spec) -> Cost:
    """A[*, m, n] -> out[*]: the cost of svdvals, plus k - 1 adds per matrix."""
    m, n = (A[d] for d in dim) if isinstance(dim, tuple) else A[-2:]
    matrices = Spec((A.numel() // (m * n) if m and n else 0, m, n))
    return svdvals(matrices, out=out).plus(Cost(adds=matrices[0] * max(min(m, n) - 1, 0)))


@formula(*of_linalg("matrix_power"), *named("matrix_power"))
def matrix_power(A: Spec, n: int, *, out: Any) -> Cost:
    """A[*, m, m] -> out[*, m, m]: floor(log2 n) squarings, plus 1 product per 1 bit of n after the first; plus the cost of inv if n < 0."""
    power = abs(n)
    products = power.bit_length() + power.bit_count() - 2 if power else 0
    return when(n < 0, inv(A, out=A)).plus(times(products, contraction(A[-1], A.numel())))


@formula(*of_linalg("matrix_exp"), *named("matrix_exp"))
def matrix_exp(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> out[*, n, n]: 5 products per matrix: the Taylor polynomial of degree 18, https://doi.org/10.3390/math7121174

    A matrix of small norm takes fewer products, and a matrix of large norm one more product per halving. Summing terms is not counted.
    """
    return times(5, contraction(A[-1], A.numel()))


@formula(*of_linalg("polar"))
def linalg_polar(A: Spec, *, out: Any) -> Cost:
    """A[*, m, n] -> U[*, m, n], H[*, n, n]: the cost of svd, and of the products U V' and (V S) V'."""
    m, n = A[-2:]
    b, k = batch_of(A), min(m, n)
    return svd(A, False, out=out).plus(contraction(k, b * (m + n) * n)).plus(Cost(muls=b * k * n))


@formula(*of_linalg("matrix_sqrth"))
def matrix_sqrth(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> out[*, n, n]: the cost of eigh, n roots, and the product (V S) V'."""
    n, b = A[-1], batch_of(A)
    return eigh(A, out=out).plus(contraction(n, A.numel())).plus(Cost(muls=b * n * n, others=b * n))


@formula(*of_linalg("vander"), *named("vander"))
def vander(x: Spec, *, out: Spec) -> Cost:
    """x[*, n] -> out[*, n, N]: N - 2 multiplies per row."""
    return Cost(muls=out.numel() // out[-1] * max(out[-1] - 2, 0) if out.numel() else 0)


def _right_hand_sides(A: Spec, out: Any) -> int:
    """Return the number of right-hand sides of all matrices."""
    return first(out).numel() // A[-1] if A[-1] else 0


def _substituted(n: int, sides: int, divides: bool) -> Cost:
    return times(sides, Cost(muls=math.comb(n, 2), adds=math.comb(n, 2), others=n if divides else 0))
