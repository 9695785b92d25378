"""Matrix products: matmul and its batched and added forms, outer products, chains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ._extend import (
    ANY,
    SPARSE,
    Cost,
    Spec,
    Specs,
    Strided,
    added_up,
    broadcast,
    contraction,
    formula,
    is_one,
    named,
    specs_in,
    spelled,
    when,
)


@formula(
    *(target for target in named("matmul") if target is not torch.Tensor.__rmatmul__),
    *named("mm", "bmm", "mv", "dot", "vdot", "_int_mm"),
    *named("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm"),
    "aten::linalg_matmul",
)
def matmul(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, m, k] @ other[*, k, n] -> out[*, m, n]: k multiplies and k-1 adds per output; batch dims broadcast.

    Only the stored elements of a sparse operand count: each is multiplied by every column (or row) of the other operand.
    """
    if input.layout in SPARSE and other.layout in SPARSE:
        raise ValueError("cannot count a product of two sparse matrices: it depends on the positions of their elements")
    if input.layout in SPARSE:
        return sparse(input, other[-1] if other.ndim > 1 else 1, out)
    if other.layout in SPARSE:
        return sparse(other, input[-2] if input.ndim > 1 else 1, out)
    return contraction(input[-1], out.numel())


def batched(tensors: Sequence[Strided], out: Spec, input: Spec, other: Spec) -> Specs | None:
    """Return copies of the operands whose batch dims cannot be viewed as one dim, and the result, or None if batch dims broadcast."""
    (_, strides), (_, lie) = tensors
    if other.ndim == 2:
        return () if is_one(input[:-1], strides) else None
    if input[:-2] != other[:-2]:
        return None
    copied = [
        Spec((prod(spec[:-2]), *spec[-2:]), spec.dtype)
        for spec, lying in ((input, strides), (other, lie))
        if not is_one(spec[:-2], lying)
    ]
    return (*copied, out) if copied else ()


@matmul.shape(*spelled("matmul __matmul__", torch, torch.Tensor), layout=ANY, alive_at_peak=batched)
def matmul_shape(input: Spec, other: Spec) -> Spec | None:
    """input[*, m, k], other[*, k, n] -> out[*, m, n], or None for vectors."""
    if input.ndim < 2 or other.ndim < 2 or input.dtype is not other.dtype or input[-1] != other[-2]:
        return None
    batch = broadcast(input[:-2], other[:-2])
    if batch is None or not input.dtype.is_floating_point:
        return None
    return Spec((*batch, input[-2], other[-1]), input.dtype)


@matmul.shape(*spelled("mm bmm", torch, torch.Tensor), layout=ANY)
def bmm_shape(input: Spec, mat2: Spec) -> Spec | None:
    """input[*, m, k], mat2[*, k, n] -> out[*, m, n], or None if the batch dims differ."""
    return matmul_shape(input, mat2) if input.ndim == mat2.ndim and input[:-2] == mat2[:-2] else None


@matmul.backward(*named("matmul_backward"))
def matmul_backward(grad: Spec, input: Spec, other: Spec, mask: Sequence[bool], *, out: Any) -> Cost:
    """grad[*, m, n], a[*, m, k], b[*, k, n] -> out_a[*, m, k], out_b[*, k, n]: each gradient takes as many multiply-adds as the forward product, minus 1 add per output."""
    to_input, to_other = mask
    products = grad.numel() * input[-1]
    return when(to_input, added_up(products, input.numel())).plus(when(to_other, added_up(products, other.numel())))


@formula(torch.Tensor.__rmatmul__, op="matmul")
def reflected_matmul(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """other[*, m, k] @ input[*, k, n] -> out[*, m, n]: k multiplies and k-1 adds per output."""
    return matmul(other, input, out=out)


@formula(*named("inner"))
def inner(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[*, k], other[*, k] -> out[*, *]: k multiplies and k-1 adds per output; k is 1 if an operand is a scalar."""
    return contraction(input[-1] if input.ndim and other.ndim else 1, out.numel())


@formula(*named("vecdot"), "aten::linalg_vecdot")
def vecdot(x: Spec, y: Spec, dim: int = -1, *, out: Spec) -> Cost:
    """x[*, k], y[*, k] -> out[*]: k multiplies and k-1 adds per output."""
    return contraction(x[dim], out.numel())


@formula(*named("addmm", "_sparse_addmm"))
def addmm(input: Spec, mat1: Spec, mat2: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """beta * input[m, n] + alpha * mat1[m, k] @ mat2[k, n] -> out[m, n]: k multiplies and k adds per output.

    A factor other than 1 takes 1 multiply per element that it scales. With beta = 0, the input is not added.
    """
    return _added(input, matmul(mat1, mat2, out=out), beta, alpha, out)


@addmm.shape(*spelled("addmm", torch, torch.Tensor), layout=ANY)
def addmm_shape(input: Spec, mat1: Spec, mat2: Spec) -> Spec | None:
    """input[*], mat1[*, n, m], mat2[*, m, p] -> out[*, n, p]."""
    out = matmul_shape(mat1, mat2)
    if out is None or mat1.ndim != mat2.ndim or mat1[:-2] != mat2[:-2] or input.dtype is not out.dtype:
        return None
    return out if broadcast(input, out) == tuple(out) else None


@formula("aten::_addmm_activation", op="addmm")
def addmm_activation(input: Spec, mat1: Spec, mat2: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """input[m, n] + mat1[m, k] @ mat2[k, n] -> out[m, n]: counted like addmm, plus 1 per output for the activation."""
    return addmm(input, mat1, mat2, beta, alpha, out=out).plus(Cost(others=out.numel()))


@formula(*named("addmv"))
def addmv(input: Spec, mat: Spec, vec: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """beta * input[m] + alpha * mat[m, k] @ vec[k] -> out[m]: k multiplies and k adds per output; factors as in addmm."""
    return _added(input, matmul(mat, vec, out=out), beta, alpha, out)


@formula(*named("baddbmm"))
def baddbmm(input: Spec, batch1: Spec, batch2: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """beta * input[b, m, n] + alpha * batch1[b, m, k] @ batch2[b, k, n] -> out[b, m, n]: counted like addmm."""
    return _added(input, matmul(batch1, batch2, out=out), beta, alpha, out)


baddbmm.shape(*spelled("baddbmm", torch, torch.Tensor), layout=ANY)(addmm_shape)


@formula(*named("addbmm"))
def addbmm(input: Spec, batch1: Spec, batch2: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """beta * input[m, n] + alpha * sum_b batch1[b, m, k] @ batch2[b, k, n] -> out[m, n]: counted like addmm, with sums over b*k."""
    return _added(input, contraction(batch1[0] * batch1[2], out.numel()), beta, alpha, out)


@formula(*named("addr"))
def addr(input: Spec, vec1: Spec, vec2: Spec, beta: float = 1, alpha: float = 1, *, out: Spec) -> Cost:
    """beta * input[m, n] + alpha * vec1[m] vec2[n] -> out[m, n]: 1 multiply and 1 add per output; factors as in addmm."""
    return _added(input, contraction(1, out.numel()), beta, alpha, out)


@formula(*named("outer", "ger", "kron"))
def outer(input: Spec, other: Spec, *, out: Spec) -> Cost:
    """input[m], other[n] -> out[m, n]: 1 multiply per output, a contraction of length 1."""
    return contraction(1, out.numel())


@formula(*named("tensordot"))
def tensordot(a: Spec, b: Spec, dims: Any = 2, dims_other: Any = None, *, out: Spec) -> Cost:
    """a[*m, *k], b[*k, *n] -> out[*m, *n]: prod(k) multiplies and prod(k)-1 adds per output.

    If a contracted dim has size 1 in one operand, torch first sums the other operand over this dim.
    """
    if dims_other is not None:
        pairs = zip(dims, dims_other, strict=True)
    elif isinstance(dims, int):
        pairs = zip(range(a.ndim - dims, a.ndim), range(dims), strict=True)
    else:
        pairs = zip(*dims, strict=True)
    k, sums, left = 1, 0, [a.numel(), b.numel()]
    for i, j in pairs:
        if a[i] == b[j]:
            k *= a[i]
            continue
        larger, size = (0, a[i]) if b[j] == 1 else (1, b[j])
        sums += left[larger] - left[larger] // size
        left[larger] //= size
    return contraction(k, out.numel()).plus(Cost(adds=sums))


@formula(*named("multi_dot", "chain_matmul"), "aten::linalg_multi_dot")
def multi_dot(*tensors: Any, out: Spec) -> Cost:
    """a[m, k], b[k, l] .. z[., n] -> out[m, n]: the cost of the matrix products in the cheapest order."""
    matrices = list(specs_in(tensors))
    rows = 1 if matrices[0].ndim == 1 else matrices[0][0]
    columns = 1 if matrices[-1].ndim == 1 else matrices[-1][-1]
    sizes = [rows, *(matrix[-1] for matrix in matrices[:-1]), columns]
    best: dict[tuple[int, int], Cost] = {(i, i + 1): Cost() for i in range(len(matrices))}
    for length in range(2, len(matrices) + 1):
        for i in range(len(matrices) - length + 1):
            j = i + length
            best[i, j] = min(
                best[i, k].plus(best[k, j]).plus(contraction(sizes[k], sizes[i] * sizes[j])) for k in range(i + 1, j)
            )
    return best[0, len(matrices)]


def sparse(matrix: Spec, meets: int, out: Spec) -> Cost:
    """Return the cost of a sparse product: ``meets`` multiplies and adds per stored element, minus 1 add per output."""
    return added_up(matrix.facts["nnz"] * meets, out.numel())


def _added(input: Spec, product: Cost, beta: float, alpha: float, out: Spec) -> Cost:
    """Return the cost of ``beta * input + alpha * product``, broadcast to ``out``."""
    return product.plus(
        Cost(
            muls=(out.numel() if alpha != 1 else 0) + (input.numel() if beta not in (0, 1) else 0),
            adds=out.numel() if beta != 0 else 0,
        )
    )
