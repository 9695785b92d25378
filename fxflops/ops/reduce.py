"""Reductions: k elements become one. Sums, extrema, moments, norms, scans, sorts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..records import Cost, Spec
from ._cost import first, reduced, rows_of
from ._registry import formula
from ._spellings import named
from .linalg import svdvals


@formula(*named("sum", "nansum", "sum_to_size", "_sparse_sum"), op="sum")
def sum(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds per output; of a sparse one, what it holds is added up."""
    return Cost(adds=max(input.facts.get("nnz", input.numel()) - out.numel(), 0))


@formula(*named("mean", "nanmean"), op="mean")
def mean(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds and 1 divide per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=out.numel())


@formula(*named("prod"))
def prod(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 multiplies per output."""
    return Cost(muls=max(input.numel() - out.numel(), 0))


def extremum(input: Spec, other: Any = None, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: k - 1 compares per output; of two tensors, 1 per output."""
    values = first(out)
    return Cost(others=values.numel() if isinstance(other, Spec) else max(input.numel() - values.numel(), 0))


for _name in ("max", "min", "amax", "amin", "argmax", "argmin", "any", "all"):
    formula(*named(_name), op=_name)(extremum)


@formula(*named("aminmax"))
def aminmax(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> smallest[*], largest[*]: 2 (k - 1) compares per output."""
    return Cost(others=2 * max(input.numel() - out[0].numel(), 0))


@formula(*named("count_nonzero"))
def count_nonzero(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k compares and k - 1 adds per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=input.numel())


@formula(*named("var", "var_mean"), op="var")
def var(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: the mean (k - 1 adds, 1 divide), k subtractions, k squares, k - 1 adds, 1 divide per output."""
    n, outputs = input.numel(), first(out).numel()
    return Cost(muls=n, adds=n + 2 * max(n - outputs, 0), others=2 * outputs)


@formula(*named("std", "std_mean"), op="std")
def std(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: the variance and 1 square root per output."""
    return var(input, out=out).plus(Cost(others=first(out).numel()))


@formula(
    *(target for target in named("norm") if target is not torch.linalg.norm),
    *named("linalg_vector_norm", "vector_norm", "frobenius_norm"),
    op="norm",
)
def norm(input: Spec, p: Any = 2, *, ord: Any = None, out: Spec) -> Cost:
    """x[*, k] -> out[*]: p = 2: k squares, k - 1 adds, 1 root per output; 1: k absolutes, k - 1 adds; 0: k compares,
    k - 1 adds; inf: k absolutes, k - 1 compares; else k powers, k - 1 adds, 1 root."""
    p = p if ord is None else ord
    return matrix_norm(input, p, out=out) if p == "nuc" else norm_of(p, input.numel(), out.numel())


@formula(torch.linalg.norm, "aten::linalg_norm", op="norm")
def linalg_norm(A: Spec, ord: Any = None, dim: Any = None, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: as norm; a matrix by the sums of its columns (1) or rows (inf) as matrix_norm."""
    if ord is None or (A.ndim != 2 if dim is None else isinstance(dim, int) or len(dim) == 1):
        return norm_of(ord, A.numel(), out.numel())
    return matrix_norm(A, ord, (0, 1) if dim is None else dim, out=out)


@formula(*named("linalg_matrix_norm", "matrix_norm"), op="norm")
def matrix_norm(A: Spec, ord: Any = "fro", dim: Any = (-2, -1), *, out: Spec) -> Cost:
    """x[*, m, n] -> out[*]: fro: as norm; 1: mn absolutes, (m - 1)n adds, n - 1 compares per output; inf: with m, n swapped.

    2 and "nuc" are the largest of the singular values and their sum: as svdvals, and a compare or an add fewer than they are.
    """
    if ord == "fro":
        return norm_of(2, A.numel(), out.numel())
    if not isinstance(ord, (int, float)) or abs(ord) == 2:
        matrices = Spec((out.numel(), A[dim[0]], A[dim[1]]), A.dtype)
        joined = (min(matrices[1:]) - 1) * out.numel()
        return svdvals(matrices, out=out).plus(Cost(adds=joined) if ord == "nuc" else Cost(others=joined))
    sums = out.numel() * A[dim[1] if abs(ord) == 1 else dim[0]]
    return Cost(adds=max(A.numel() - sums, 0), others=A.numel() + max(sums - out.numel(), 0))


@formula(*named("dist"))
def dist(input: Spec, other: Spec, p: float = 2, *, out: Spec) -> Cost:
    """x[k], y[k] -> out: k subtractions, then as norm."""
    k = math.prod(torch.broadcast_shapes(input, other))
    return norm_of(p, k, 1).plus(Cost(adds=k))


@formula(*named("trace"))
def trace(input: Spec, *, out: Spec) -> Cost:
    """x[n, n] -> out: n - 1 adds."""
    return Cost(adds=max(min(input) - 1, 0))


@formula(*named("logsumexp"))
def logsumexp(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k exponentials, k - 1 adds and 1 logarithm per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=input.numel() + out.numel())


@formula(*named("cumsum"))
def cumsum(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 adds per row."""
    return Cost(adds=_steps(input, dim))


@formula(*named("cumprod"))
def cumprod(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 multiplies per row."""
    return Cost(muls=_steps(input, dim))


@formula(*named("cummax"), op="cummax")
@formula(*named("cummin"), op="cummin")
def cummax(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k], indices[*, k]: k - 1 compares per row."""
    return Cost(others=_steps(input, dim))


@formula(*named("logcumsumexp"))
def logcumsumexp(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k exponentials, k - 1 adds and k logarithms per row."""
    return Cost(adds=_steps(input, dim), others=2 * input.numel())


@formula(*named("diff"))
def diff(input: Spec, n: int = 1, dim: int = -1, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k - n]: (k - 1) + (k - 2) + ... + (k - n) subtractions per row."""
    rows = out.numel() // max(out[dim], 1)
    return Cost(adds=rows * (n * out[dim] + math.comb(n, 2)))


@formula(*named("sort", "argsort"), op="sort")
@formula(*named("mode"), op="mode")
def sort(input: Spec, dim: int = -1, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k]: k ceil(log2 k) compares per row: a comparison sort, a choice of ours."""
    return _sorted(input, reduced(input, dim))


@formula(*named("msort"), op="sort")
def msort(input: Spec, *, out: Spec) -> Cost:
    """x[k, *] -> out[k, *]: as sort, along the first dim."""
    return sort(input, 0, out=out)


@formula(*named("median", "nanmedian"), op="median")
def median(input: Spec, dim: int | None = None, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: as sort; without a dim, of all elements."""
    return sort(Spec((input.numel(),)) if dim is None else input, -1 if dim is None else dim, out=out)


@formula(*named("quantile", "nanquantile"), op="quantile")
def quantile(input: Spec, q: Any, dim: int | None = None, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: as median; the interpolation is 2 adds and 1 multiply per output."""
    return median(input, dim, out=out).plus(Cost(muls=out.numel(), adds=2 * out.numel()))


@formula(*named("unique", "_unique", "_unique2"), op="unique")
def unique(
    input: Spec,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    out: Any,
) -> Cost:
    """x[k] -> out[j]: as sort, of all elements; along a dim of k, each compare is of whole slices."""
    return _sorted(input, input.numel() if dim is None else input[dim])


@formula(*named("unique_dim"), op="unique")
def unique_dim(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[k, *] -> out[j, *]: as unique."""
    return unique(input, dim=dim, out=out)


@formula(*named("unique_consecutive"))
def unique_consecutive(
    input: Spec, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None, *, out: Any
) -> Cost:
    """x[k] -> out[j]: k - 1 compares of neighbours; along a dim of k, of whole slices."""
    return Cost(others=_steps(input, dim))


@formula(*named("topk"), op="topk")
@formula(*named("kthvalue"), op="kthvalue")
def topk(input: Spec, k: int, dim: int = -1, *, out: Any) -> Cost:
    """x[*, n] -> values[*, k], indices[*, k]: n ceil(log2 n) compares per row: by sorting, a choice of ours."""
    return sort(input, dim, out=out)


@formula(nn.CosineSimilarity, *named("cosine_similarity"))
def cosine_similarity(x1: Spec, x2: Spec, dim: int = 1, *, out: Spec) -> Cost:
    """a[*, k], b[*, k] -> out[*]: three dot products of k, 2 roots, 1 multiply, 1 compare with eps, 1 divide per output."""
    k = reduced(torch.broadcast_shapes(x1, x2), dim)
    return Cost(muls=(3 * k + 1) * out.numel(), adds=3 * max(k - 1, 0) * out.numel(), others=4 * out.numel())


@formula(nn.PairwiseDistance, *named("pairwise_distance"))
def pairwise_distance(
    x1: Spec,
    x2: Spec,
    p: float = 2.0,
    eps: float = 1e-6,
    keepdim: bool = False,
    norm: float | None = None,
    *,
    out: Spec,
) -> Cost:
    """a[*, k], b[*, k] -> out[*]: k subtractions and k adds of eps per output, then as norm (nn calls p ``norm``)."""
    n = math.prod(torch.broadcast_shapes(x1, x2))
    return norm_of(p if norm is None else norm, n, out.numel()).plus(Cost(adds=2 * n))


@formula(*named("cross", "linalg_cross"), op="cross")
def cross(*, out: Spec) -> Cost:
    """a[*, 3] x b[*, 3] -> out[*, 3]: 2 multiplies and 1 subtraction per output."""
    return Cost(muls=2 * out.numel(), adds=out.numel())


@formula(*named("bincount"), op="bincount")
def bincount(input: Spec, *, out: Spec) -> Cost:
    """x[n] -> out[k]: 1 add per element."""
    return Cost(adds=input.numel())


@formula(*named("histc"))
def histc(input: Spec, bins: int = 100, min: float = 0, max: float = 0, *, out: Spec) -> Cost:
    """x[n] -> out[k]: 2 adds and 1 divide per element to find its bin and count it; 2(n - 1) compares to find the ends."""
    n = input.numel()
    return Cost(adds=2 * n, others=n + (2 * (n - 1) if min == max and n else 0))


@formula(*named("index_add"))
def index_add(input: Spec, dim: int, index: Spec, source: Spec, alpha: float = 1, *, out: Spec) -> Cost:
    """x[*], index[n], source[n, *] -> out[*]: 1 add per element of source, 1 multiply more where alpha is not 1."""
    return Cost(muls=0 if alpha == 1 else source.numel(), adds=source.numel())


@formula(*named("index_reduce"))
def index_reduce(input: Spec, dim: int, index: Spec, source: Spec, reduce: str, *, out: Spec) -> Cost:
    """x[*], index[n], source[n, *] -> out[*]: 1 add, multiply or compare per element of source; mean: 1 divide per output."""
    return _joined(reduce, source.numel(), out.numel())


@formula(*named("scatter_add"))
def scatter_add(input: Spec, dim: int, index: Spec, *, out: Spec) -> Cost:
    """x[*], index[n], src[n] -> out[*]: 1 add per index."""
    return Cost(adds=index.numel())


@formula(*named("scatter_reduce"))
def scatter_reduce(input: Spec, dim: int, index: Spec, src: Spec, reduce: str, *, out: Spec) -> Cost:
    """x[*], index[n], src[n] -> out[*]: 1 add, multiply or compare per index; mean: 1 divide per output."""
    return _joined(reduce, index.numel(), out.numel())


@formula(*named("scatter"))
def scatter(input: Spec, dim: int, index: Spec, src: Any = None, *, reduce: str = "", out: Spec) -> Cost:
    """x[*], index[n] -> out[*]: 1 add or multiply per index where ``reduce`` says so, nothing where they are put."""
    return _joined(reduce, index.numel(), 0) if reduce else Cost()


@formula(*named("segment_reduce"))
def segment_reduce(data: Spec, reduce: str, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds, multiplies or compares per output; mean: 1 divide more."""
    return _joined(reduce, max(data.numel() - out.numel(), 0), out.numel())


@formula(*named("index_put", "_index_put_impl", "_unsafe_index_put"), op="index_put")
def index_put(input: Spec, indices: Any, values: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*, m], index[n], values[n, m] -> out[*, m]: n m adds where they accumulate, nothing where they are put."""
    if not accumulate:
        return Cost()
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):  # how many it picks is not in its shape
        return Cost(adds=values.numel())
    m = math.prod(size for d, size in enumerate(input) if d >= len(indices) or indices[d] is None)
    return Cost(adds=math.prod(torch.broadcast_shapes(*given)) * m)


@formula(*named("put"))
def put(input: Spec, index: Spec, source: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*], index[n], source[n] -> out[*]: 1 add per index where they accumulate, nothing where they are put."""
    return Cost(adds=index.numel() if accumulate else 0)


def _sorted(input: Spec, k: int) -> Cost:
    """Of rows of ``k``."""
    return Cost(others=input.numel() * math.ceil(math.log2(k)) if k > 1 else 0)


def _joined(reduce: str, n: int, outputs: int) -> Cost:
    """``n`` elements joined one by one to what is there, as torch calls it."""
    if reduce in ("add", "sum", "mean"):
        return Cost(adds=n, others=outputs if reduce == "mean" else 0)
    return Cost(muls=n) if reduce in ("prod", "multiply") else Cost(others=n)


def norm_of(p: Any, n: int, outputs: int) -> Cost:
    """Of ``n`` elements in all, into ``outputs``."""
    more = max(n - outputs, 0)
    if p in (None, 2, "fro"):
        return Cost(muls=n, adds=more, others=outputs)
    if p in (0, 1):
        return Cost(adds=more, others=n)
    if p in (math.inf, -math.inf):
        return Cost(others=n + more)
    return Cost(adds=more, others=n + outputs)


def _steps(input: Spec, dim: int | None) -> int:
    """From each slice along ``dim`` to the next, once per element."""
    return input.numel() - rows_of(input.numel(), reduced(input, dim))
