"""Reports of matrix products in all spellings: einsum, fused with an add, batched, complex, integer, sparse, nested, FFT."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.test_reports import Case, check, every_way, f, of, quietly

b, m, k, n, l = 2, 3, 5, 7, 11  # noqa: E741
ADDED = {"beta": 0.5, "alpha": 3.0}


def einsum(*given: Any, macs: int, flops: int | None = None) -> Case:
    """A case of torch.einsum, from an equation and operand shapes."""
    equation, *shapes = given
    model = of(lambda _, *operands: torch.einsum(equation, *operands))
    return Case(
        f"einsum[{equation.replace(' ', '')}]", model, tuple(f(*shape) for shape in shapes), macs=macs, flops=flops
    )


def complexes(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def written_out(_: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A complex product as four real products."""
    real, imaginary = x.real @ y.real - x.imag @ y.imag, x.real @ y.imag + x.imag @ y.real
    return torch.complex(real, imaginary)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, dtype=torch.int8)


def sparse(rows: int, columns: int) -> torch.Tensor:
    """A sparse matrix with four elements. torch up to 2.11 warns that invariants are unchecked even if they are checked."""
    places, values = [[0, 0, 1, 2], [0, 3, 2, 4]], [1.0, 2.0, 3.0, 4.0]
    made = quietly(partial(torch.sparse_coo_tensor, places, values, (rows, columns), check_invariants=True))
    return made.coalesce()  # type: ignore[no-any-return]


def compressed(rows: int, columns: int) -> torch.Tensor:
    """The same matrix, compressed by rows."""
    return quietly(sparse(rows, columns).to_sparse_csr)


def into(function: Any) -> nn.Module:
    """The product written into an ``out`` tensor."""
    return of(lambda _, x, y: function(x, y, out=torch.empty(*x.shape[:-1], y.shape[-1], device=x.device)))


def fourier_filter(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(model.filter), s=(8, 16))


def jagged(model: Any, *parts: torch.Tensor) -> torch.Tensor:
    return model.linear(torch.nested.nested_tensor(list(parts), layout=torch.jagged)).values()


X, Y, V, W = f(m, k), f(k, n), f(k), f(m)
BX, BY = f(b, m, k), f(b, k, n)

EINSUMS = [
    # ptflops#105, unetr_plus_plus#56, torch-scan#45, DeepSpeed PR#6755: what the letters say, from left to right.
    einsum("mk,kn->mn", (m, k), (k, n), macs=m * n * k, flops=m * n * (2 * k - 1)),
    einsum("mk, kn", (m, k), (k, n), macs=m * n * k),
    einsum("m,n->mn", (m,), (n,), macs=m * n, flops=m * n),
    einsum("k,k->", (k,), (k,), macs=k, flops=2 * k - 1),
    einsum("mk,mk->mk", (m, k), (m, k), macs=m * k, flops=m * k),
    einsum("bmk,bkn->bmn", (b, m, k), (b, k, n), macs=b * m * n * k),
    einsum("bmk,kn->bmn", (b, m, k), (k, n), macs=b * m * n * k),
    einsum("...mk,kn->...mn", (2, 3, m, k), (k, n), macs=(2 * 3) * m * n * k),
    einsum("...mk,...kn->...mn", (b, 1, m, k), (l, k, n), macs=b * l * m * n * k),
    einsum("bhnd,bhsd->bhns", (b, 3, n, k), (b, 3, l, k), macs=b * 3 * n * l * k),
    # A diagonal is a view, and so is a transposition; a sum is adds only.
    einsum("kk->k", (k, k), macs=0, flops=0),
    einsum("kk->", (k, k), macs=0, flops=k - 1),
    einsum("mk->km", (m, k), macs=0, flops=0),
    einsum("mk->m", (m, k), macs=0, flops=m * (k - 1)),
    einsum("kk,k->k", (k, k), (k,), macs=k, flops=k),
    # Two products, one after the other.
    einsum("mk,kn,nl->ml", (m, k), (k, n), (n, l), macs=m * k * n + m * n * l),
    einsum("bk,okn,bn->bo", (b, k), (m, k, n), (b, n), macs=b * m * n * k + b * m * n),
    # j is not part of the product: it is summed first, with m*k*(l-1) adds.
    einsum("mkj,kn->mn", (m, k, l), (k, n), macs=m * n * k, flops=m * k * (l - 1) + m * n * (2 * k - 1)),
    Case("einsum-by-lists", of(lambda _, x, y: torch.einsum(x, [0, 1], y, [1, 2], [0, 2])), (X, Y), macs=m * n * k),
]

CASES = [
    # thop#197, ptflops#77, torch_flops's README: every way to write a product.
    Case("operator", of(lambda _, x, y: x @ y), (X, Y), macs=m * n * k, flops=m * n * (2 * k - 1)),
    Case("reflected", of(lambda _, x, y: torch.Tensor.__rmatmul__(y, x)), (X, Y), macs=m * n * k),
    Case("broadcast", of(lambda _, x, y: x @ y), (f(b, 1, m, k), f(l, k, n)), macs=b * l * m * n * k),
    Case("matrix-vector", of(lambda _, x, y: x @ y), (X, V), macs=m * k, flops=m * (2 * k - 1)),
    Case("vector-matrix", of(lambda _, x, y: x @ y), (V, Y), macs=n * k),
    Case("vector-batch", of(lambda _, x, y: x @ y), (V, BY), macs=b * n * k),
    Case("mv", of(lambda _, x, y: x.mv(y)), (X, V), macs=m * k),
    Case("dot", of(lambda _, x, y: torch.dot(x, y)), (V, V), macs=k, flops=2 * k - 1),
    Case("vecdot", of(lambda _, x, y: torch.linalg.vecdot(x, y)), (X, X), macs=m * k),
    Case("inner", of(lambda _, x, y: torch.inner(x, y)), (X, f(n, k)), macs=m * n * k),
    Case("outer", of(lambda _, x, y: torch.outer(x, y)), (W, V), macs=m * k, flops=m * k),
    Case("kron", of(lambda _, x, y: torch.kron(x, y)), (X, f(n, l)), macs=m * k * n * l, flops=m * k * n * l),
    Case("bmm", of(lambda _, x, y: x.bmm(y)), (BX, BY), macs=b * m * n * k),
    # The input and the product are each scaled: 2 multiplies per output, and 1 add.
    Case(
        "addmm",
        of(lambda _, c, x, y: torch.addmm(c, x, y, **ADDED)),
        (f(m, n), X, Y),
        macs=m * n * k,
        flops=m * n * (2 * k + 2),
    ),
    Case("addmm-plain", of(lambda _, c, x, y: torch.addmm(c, x, y)), (f(n), X, Y), macs=m * n * k, flops=m * n * 2 * k),
    Case("addmv", of(lambda _, c, x, y: c.addmv(x, y)), (W, X, V), macs=m * k, flops=m * 2 * k),
    Case("addr", of(lambda _, c, x, y: c.addr(x, y)), (f(m, k), W, V), macs=m * k, flops=m * k * 2),
    Case(
        "baddbmm",
        of(lambda _, c, x, y: torch.baddbmm(c, x, y, **ADDED)),
        (f(b, m, n), BX, BY),
        macs=b * m * n * k,
        flops=b * m * n * (2 * k + 2),
    ),
    # The batch's products are summed: b*k products per output.
    Case(
        "addbmm",
        of(lambda _, c, x, y: torch.addbmm(c, x, y)),
        (f(m, n), BX, BY),
        macs=m * n * b * k,
        flops=m * n * 2 * b * k,
    ),
    Case(
        "tensordot", of(lambda _, x, y: torch.tensordot(x, y, dims=2)), (f(m, k, n), f(k, n, l)), macs=m * l * (k * n)
    ),
    Case(
        "tensordot-by-dims",
        of(lambda _, x, y: torch.tensordot(x, y, ([0, 2], [2, 0]))),
        (f(k, m, n), f(n, l, k)),
        macs=m * l * (k * n),
    ),
    # A dim of 1 broadcasts: the other operand is summed over it first, with k-1 adds for each of m.
    Case(
        "tensordot-broadcast",
        of(lambda _, x, y: torch.tensordot(x, y, ([1], [0]))),
        (X, f(1, n)),
        macs=m * n,
        flops=m * (k - 1) + m * n,
    ),
    # Each of the l outputs is x w y: n sums over k, one over n.
    Case("bilinear", nn.Bilinear(k, n, l), (f(b, k), f(b, n)), macs=b * l * (n * k + n)),
    Case(
        "bilinear-function",
        of(lambda _, x, y, w: F.bilinear(x, y, w)),
        (f(b, k), f(b, n), f(l, k, n)),
        macs=b * l * (n * k + n),
    ),
    # (11 x 2)(2 x 13)(13 x 3): right product first is 2*13*3 + 11*2*3; left first would be 11*2*13 + 11*13*3.
    Case(
        "multi-dot",
        of(lambda _, *xs: torch.linalg.multi_dot(xs)),
        (f(11, 2), f(2, 13), f(13, 3)),
        macs=2 * 13 * 3 + 11 * 2 * 3,
    ),
    Case(
        "chain-matmul",
        of(lambda _, *xs: torch.chain_matmul(*xs)),
        (f(11, 2), f(2, 13), f(13, 3)),
        macs=2 * 13 * 3 + 11 * 2 * 3,
    ),
    Case("matrix-power", of(lambda _, x: torch.linalg.matrix_power(x, 3)), f(k, k), macs=2 * k * k * k),
    # Distances: k differences, k squares, k-1 sums and a root; no matrix product.
    Case("cdist", of(lambda _, x, y: torch.cdist(x, y)), (X, f(n, k)), macs=0, flops=m * n * (k + k + (k - 1) + 1)),
    # In place, and into a given tensor.
    Case("imatmul", of(lambda _, x, y: operator.imatmul(x.clone(), y)), (f(m, k), f(k, k)), macs=m * k * k),
    Case("addmm-in-place", of(lambda _, c, x, y: c.addmm_(x, y)), (f(m, n), X, Y), macs=m * n * k),
    Case("baddbmm-in-place", of(lambda _, c, x, y: c.baddbmm_(x, y)), (f(b, m, n), BX, BY), macs=b * m * n * k),
    Case("mm-out", into(torch.mm), (X, Y), macs=m * n * k),
    Case("matmul-out", into(torch.matmul), (BX, Y), macs=b * m * n * k),
    Case("bmm-out", into(torch.bmm), (BX, BY), macs=b * m * n * k),
    # tensorflow#27266: a complex product is 4 multiplies and 2 adds; a complex sum is 2 adds.
    Case(
        "complex",
        of(lambda _, x, y: x @ y),
        (complexes(m, k), complexes(k, n)),
        macs=4 * m * n * k,
        flops=m * n * (6 * k + 2 * (k - 1)),
    ),
    Case(
        "complex-linear",
        nn.Linear(k, n, dtype=torch.complex64),
        complexes(m, k),
        macs=4 * m * n * k,
        flops=m * n * (6 * k + 2 * k),
    ),
    Case(
        "complex-written-out",
        of(written_out),
        (complexes(m, k), complexes(k, n)),
        macs=4 * m * n * k,
        flops=m * n * (6 * k + 2 * (k - 1)),
    ),
    # torch converts the real vector to complex before it multiplies.
    Case("complex-outer", of(lambda _, v, w: torch.outer(v, w)), (complexes(m), f(n)), macs=4 * m * n, flops=6 * m * n),
    # thop#202, Q-ViT#8: integers multiply and add too, but their operations are not FLOPs.
    Case(
        "int8",
        of(lambda _, x, y: torch._int_mm(x, y)),
        (bytes_of(m * 8, k * 8), bytes_of(k * 8, n * 8)),
        macs=m * n * k * 8**3,
        flops=0,
    ),
    Case(
        "int64", of(lambda _, x, y: x @ y), (torch.ones(m, k).long(), torch.ones(k, n).long()), macs=m * n * k, flops=0
    ),
    # thop#129, ptflops#71, PyG#1020: a sparse matrix multiplies only the elements that it holds, 4 for every column.
    Case("sparse-mm", of(lambda _, a, x: torch.sparse.mm(a, x)), (sparse(m, k), Y), macs=4 * n, without=("meta",)),
    Case("sparse-operator", of(lambda _, a, x: a @ x), (sparse(m, k), Y), macs=4 * n, without=("meta",)),
    Case("sparse-csr", of(lambda _, a, x: a @ x), (compressed(m, k), Y), macs=4 * n, without=("meta",)),
    Case("sparse-vector", of(lambda _, a, x: torch.mv(a, x)), (sparse(m, k), V), macs=4, without=("meta",)),
    Case(
        "sparse-addmm",
        of(lambda _, c, a, x: torch.sparse.addmm(c, a, x)),
        (f(m, n), sparse(m, k), Y),
        macs=4 * n,
        without=("meta",),
    ),
    # A nested tensor with parts of 3 and 8 rows.
    Case(
        "nested-linear", of(jagged, linear=nn.Linear(k, n)), (f(3, k), f(8, k)), macs=(3 + 8) * k * n, without=("meta",)
    ),
    # GFNet#3, #12, #15: 5 N log2 N for N complex points, half of it for real ones; no matrix product.
    Case("fft", of(lambda _, x: torch.fft.fft(x)), complexes(m, 16), macs=0, flops=m * 5 * 16 * 4),
    Case("fft-of-reals", of(lambda _, x: torch.fft.rfft(x)), f(m, 16), macs=0, flops=m * 5 * 16 * 4 // 2),
    Case("fft2", of(lambda _, x: torch.fft.fft2(x)), complexes(m, 8, 16), macs=0, flops=m * 5 * (8 * 16) * 7),
    # Forward and inverse FFT, and 6 operations for each of the 8 * 9 complex points kept between them.
    Case(
        "fourier-filter",
        of(fourier_filter, filter=f(8, 9, 2)),
        f(m, 8, 16),
        macs=0,
        flops=2 * (m * 5 * (8 * 16) * 7 // 2) + m * (8 * 9) * 6,
    ),
]


@every_way(EINSUMS)
def test_einsum(case: Case, way: str) -> None:
    check(case, way)


@pytest.mark.filterwarnings("ignore:.*chain_matmul", "ignore:Sparse CSR")
@every_way(CASES)
def test_products(case: Case, way: str) -> None:
    check(case, way)
