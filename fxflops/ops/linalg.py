"""Matrix factorizations. Direct factorizations count like textbook algorithms, row by row; pivoting is not counted.

QR follows LAPACK Working Note 41 (https://www.netlib.org/lapack/lawnspdf/lawn41.pdf), which counts divisions as multiplies.
Eigenvalues and singular values need iteration, and count by the nominal formulas of Golub and Van Loan, Matrix Computations
(4th ed.: table 8.6.1, sections 7.5.6 and 8.3.5). For complex matrices, half of the operations are multiplies and half are adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ._extend import Cost, Spec, Specs, Strided, formula, named, spelled, times, unwatched


def of_linalg(*names: str) -> Iterator[Any]:
    """For each name, yield torch.linalg's function and its aten packet, but not the torch function of the same name."""
    for name in names:
        if hasattr(torch.linalg, name):
            yield getattr(torch.linalg, name)
        yield f"aten::linalg_{name}"


def batch_of(A: Spec) -> int:
    """Return the number of matrices in the batch."""
    return math.prod(A[:-2])


@formula(*of_linalg("cholesky", "cholesky_ex"), *named("cholesky"))
def cholesky(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n, n]: (n^3 - n)/6 multiplies and as many adds, n(n - 1)/2 divides and n roots per matrix."""
    n = A[-1]
    products = (n**3 - n) // 6
    return times(batch_of(A), Cost(muls=products, adds=products, others=n * (n - 1) // 2 + n))


@formula(*of_linalg("lu", "lu_factor", "lu_factor_ex"), *named("lu", "_lu_with_info"))
def lu(A: Spec, *, out: Any) -> Cost:
    """A[*, m, n] -> L[*, m, k], U[*, k, n]: for each pivot j < k, (m-j-1)(n-j-1) multiplies, as many adds, and m-j-1 divides."""
    m, n = A[-2:]
    products = sum((m - j - 1) * (n - j - 1) for j in range(min(m, n)))
    divides = sum(m - j - 1 for j in range(min(m, n)))
    return times(batch_of(A), Cost(muls=products, adds=products, others=divides))


@formula(*of_linalg("ldl_factor", "ldl_factor_ex"))
def ldl(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> LD[*, n, n]: n^3/6 multiplies and as many adds, n(n - 1)/2 divides per matrix, to leading order."""
    n = A[-1]
    pairs, triples = math.comb(n, 2), math.comb(n, 3)
    return times(batch_of(A), Cost(muls=2 * pairs + triples, adds=pairs + triples, others=pairs))


@formula(*named("geqrf"), op="qr")
def geqrf(A: Spec, *, out: Any) -> Cost:
    """A[*, m, n] -> R[*, m, n], tau[*, k]: 2 n^2 (m - n/3) per matrix to leading order (m >= n), by Householder reflections."""
    m, n = A[-2:]
    if m >= n:
        muls = n * (6 * m * n + 3 * n - 2 * n**2 + 6 * m + 23) // 6
        adds = n * (6 * m * n + 3 * n - 2 * n**2 + 5) // 6
    else:
        muls = m * (6 * m * n - 3 * m - 2 * m**2 + 12 * n + 23) // 6
        adds = m * (6 * m * n - 3 * m - 2 * m**2 + 6 * n + 5) // 6
    return times(batch_of(A), Cost(muls=muls, adds=adds))


@formula(*of_linalg("householder_product"), *named("orgqr"))
def householder_product(A: Spec, tau: Spec, *, out: Any) -> Cost:
    """A[*, m, n], tau[*, k] -> Q[*, m, n]: 4mnk - 2 (m + n) k^2 + 4/3 k^3 per matrix to leading order."""
    return times(batch_of(A), _reflected(A[-2], A[-1], tau[-1]))


@formula(*named("ormqr"))
def ormqr(A: Spec, tau: Spec, other: Spec, left: bool = True, *, out: Any) -> Cost:
    """A[*, m, k], tau[*, k], C[*, m, n] -> Q C[*, m, n]: 4mnk - 2n k^2 per matrix to leading order; for C Q, m and n are swapped."""
    k, m, n = tau[-1], *(other[-2:] if left else other[:-3:-1])
    products = 2 * m * n * k - n * k**2
    return times(batch_of(other), Cost(muls=products + 2 * n * k, adds=products + n * k))


@formula(*of_linalg("qr"))
def qr(A: Spec, mode: str = "reduced", *, out: Any) -> Cost:
    """A[*, m, n] -> Q[*, m, k], R[*, k, n]: the cost of geqrf for R, plus the cost of householder_product for Q; mode "r" needs only R."""
    m, n = A[-2:]
    k = min(m, n)
    formed = Cost() if mode == "r" else _reflected(m, m if mode == "complete" else k, k)
    return geqrf(A, out=out).plus(times(batch_of(A), formed))


@formula(*(target for target in named("qr") if target is not torch.linalg.qr), op="qr")
def qr_some(A: Spec, some: bool = True, *, out: Any) -> Cost:
    """A[*, m, n] -> Q[*, m, k], R[*, k, n]: counted like torch.linalg.qr."""
    return qr(A, "reduced" if some else "complete", out=out)


@formula(*of_linalg("svd"))
def svd(A: Spec, full_matrices: bool = True, *, out: Any) -> Cost:
    """A[*, m, n] -> U[*, m, k], S[*, k], Vh[*, k, n]: 14 m n^2 + 8 n^3 per matrix with m >= n; with full_matrices 4 m^2 n + 8 m n^2 + 9 n^3."""
    n, m = sorted(A[-2:])
    return _iterated(A, 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if full_matrices else 14 * m * n**2 + 8 * n**3)


@formula("aten::_linalg_svd", op="svd")
def svd_native(A: Spec, full_matrices: bool = False, compute_uv: bool = True, *, out: Any) -> Cost:
    """A[*, m, n] -> U[*, m, k], S[*, k], Vh[*, k, n]: counted like torch.linalg.svd, or like svdvals without compute_uv."""
    return svd(A, full_matrices, out=out) if compute_uv else svdvals(A, out=out)


@formula(*(target for target in named("svd") if target is not torch.linalg.svd), op="svd")
def svd_some(A: Spec, some: bool = True, compute_uv: bool = True, *, out: Any) -> Cost:
    """A[*, m, n] -> U[*, m, k], S[*, k], V[*, n, k]: counted like torch.linalg.svd, or like svdvals without compute_uv."""
    return svd_native(A, not some, compute_uv, out=out)


@formula(*of_linalg("svdvals"), op="svd")
def svdvals(A: Spec, *, out: Any) -> Cost:
    """A[*, m, n] -> S[*, k]: 4 m n^2 - 4/3 n^3 per matrix, with m >= n."""
    n, m = sorted(A[-2:])
    return _iterated(A, 4 * m * n**2 - 4 * n**3 // 3)


@formula(*of_linalg("eigh"))
def eigh(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n], V[*, n, n]: 9 n^3 per symmetric matrix."""
    return _iterated(A, 9 * A[-1] ** 3)


@formula(*of_linalg("eigvalsh"), op="eigh")
def eigvalsh(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n]: 4/3 n^3 per symmetric matrix."""
    return _iterated(A, 4 * A[-1] ** 3 // 3)


@formula("aten::_linalg_eigh", op="eigh")
def eigh_native(A: Spec, UPLO: str = "L", compute_v: bool = True, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n], V[*, n, n]: counted like eigh, or like eigvalsh without compute_v."""
    return eigh(A, out=out) if compute_v else eigvalsh(A, out=out)


@formula(*of_linalg("eig"))
def eig(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n], V[*, n, n]: 25 n^3 per matrix."""
    return _iterated(A, 25 * A[-1] ** 3)


@formula(*of_linalg("eigvals"), "aten::_linalg_eigvals", op="eig")
def eigvals(A: Spec, *, out: Any) -> Cost:
    """A[*, n, n] -> L[*, n]: 10 n^3 per matrix."""
    return _iterated(A, 10 * A[-1] ** 3)


@unwatched(*spelled("svdvals eigvals eigvalsh", torch.linalg))
def values_alone(tensors: Sequence[Strided], A: Spec, *_: Any, needs_grad: bool, **__: Any) -> Specs | None:
    """Return (), because only the values are computed, or None if autograd also needs the vectors."""
    return None if needs_grad else ()


@unwatched(torch.linalg.matrix_norm)
def matrix_norm_by_values(
    tensors: Sequence[Strided], A: Spec, ord: Any = "fro", dim: Any = (-2, -1), *_: Any, needs_grad: bool, **__: Any
) -> Specs | None:
    """Return the singular values if the norm is one of these values or their sum.

    Return None for any other norm, and if autograd records the call.
    """
    if needs_grad or ord not in (2, -2, "nuc"):
        return None
    m, n = (A[each] for each in dim)
    return (Spec((A.numel() // max(m * n, 1), min(m, n)), _real(A.dtype)),)


@unwatched(torch.linalg.norm)
def norm_by_values(
    tensors: Sequence[Strided], A: Spec, ord: Any = None, dim: Any = None, *_: Any, needs_grad: bool, **__: Any
) -> Specs | None:
    """Return the same tensors as :func:`matrix_norm_by_values`, or None for vector norms."""
    dims = range(A.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return matrix_norm_by_values(tensors, A, ord, dims, needs_grad=needs_grad) if len(dims) == 2 else None


@unwatched(*spelled("norm", torch, torch.Tensor))
def nuclear_norm_by_values(
    tensors: Sequence[Strided], A: Spec, p: Any = "fro", dim: Any = None, *_: Any, needs_grad: bool, **__: Any
) -> Specs | None:
    """Return the same tensors as :func:`matrix_norm_by_values` for the nuclear norm, or None for other norms."""
    return norm_by_values(tensors, A, p, dim, needs_grad=needs_grad) if p == "nuc" else None


@unwatched(torch.nuclear_norm)
def all_values_added_up(
    tensors: Sequence[Strided], A: Spec, dim: Any = None, *_: Any, needs_grad: bool, **__: Any
) -> Specs | None:
    """Return the same tensors as :func:`matrix_norm_by_values` for the nuclear norm."""
    return nuclear_norm_by_values(tensors, A, "nuc", dim, needs_grad=needs_grad)


@unwatched(torch.linalg.cond)
def condition_by_values(
    tensors: Sequence[Strided], A: Spec, p: Any = None, *, device: str, needs_grad: bool
) -> Specs | None:
    """Return the singular values if the condition number is computed from them.

    For the norms 2 and -2, it is the ratio of two values. For "nuc", it is the sum of the values times the sum of their reciprocals.
    """
    temporaries = matrix_norm_by_values(tensors, A, 2 if p is None else p, needs_grad=needs_grad)
    if temporaries is None or p != "nuc":
        return temporaries
    (values,) = temporaries
    total = Spec(A[:-2], values.dtype)
    return values, total, values, total


@unwatched(torch.linalg.matrix_rank)
def rank_by_values(
    tensors: Sequence[Strided],
    A: Spec,
    tol: Any = None,
    hermitian: bool = False,
    *_: Any,
    needs_grad: bool,
    **__: Any,
) -> Specs | None:
    """Return the singular values, the threshold in double precision, and the mask of the values above the threshold.

    For a hermitian matrix, the tensors are the absolute eigenvalues, the largest eigenvalue, the threshold and the mask.
    """
    if needs_grad:
        return None
    values = Spec((*A[:-2], min(A[-2:])), _real(A.dtype))
    largest = (Spec((*A[:-2], 1), values.dtype),) if hermitian else ()
    bound = Spec((*A[:-2], 1), torch.float64)
    made_absolute = (values, values) if hermitian else ()
    scaled, compared = (values, *largest, bound, bound), (values, *largest, bound, Spec(values, torch.bool))
    return max(made_absolute, scaled, compared, key=lambda specs: sum(spec.nbytes for spec in specs))


def _real(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the singular values."""
    return dtype.to_real() if dtype.is_complex else dtype


def _reflected(m: int, n: int, k: int) -> Cost:
    """Return the cost of computing the first n columns of a product of k reflections."""
    muls = k * (6 * m * n + 6 * n - 5 + k * (2 * k - 3 * (m + n) - 3)) // 3
    adds = k * (6 * m * n + 3 * n - 3 * m + 1 + k * (2 * k - 3 * (m + n))) // 3
    return Cost(muls=muls, adds=adds)


def _iterated(A: Spec, operations: int) -> Cost:
    """Return a cost of ``operations`` per matrix. For complex matrices, half are multiplies and half are adds.

    The operations for a real matrix are not split, because a real matrix may have complex eigenvalues.
    """
    if not A.dtype.is_complex:
        return Cost(others=batch_of(A) * operations)
    return times(batch_of(A), Cost(muls=operations - operations // 2, adds=operations // 2))
