"""Reductions: k elements become one. Sums, extrema, moments, norms, scans, sorts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..records import Cost, Spec
from ._cost import reduced
from ._registry import formula
from ._spellings import named

Dim = Any


def first(out: Any) -> Spec:
    """The values of a result that may be (values, indices)."""
    return out if isinstance(out, Spec) else out[0]


@formula(*named("sum", "nansum"), op="sum")
def sum(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0))


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


@formula(*named("norm", "linalg_norm", "linalg_vector_norm", "vector_norm", "frobenius_norm"), op="norm")
def norm(input: Spec, p: Any = 2, *, ord: Any = None, out: Spec) -> Cost:
    """x[*, k] -> out[*]: p = 2: k squares, k - 1 adds, 1 root per output; 1: k absolutes, k - 1 adds; inf: k absolutes,
    k - 1 compares; else k powers, k - 1 adds, 1 root."""
    n, outputs = input.numel(), out.numel()
    more = max(n - outputs, 0)
    p = p if ord is None else ord
    if p in (None, 2, "fro"):
        return Cost(muls=n, adds=more, others=outputs)
    if p == 1:
        return Cost(adds=more, others=n)
    if p in (math.inf, -math.inf):
        return Cost(others=n + more)
    return Cost(adds=more, others=n + outputs)


@formula(*named("logsumexp"))
def logsumexp(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k exponentials, k - 1 adds and 1 logarithm per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=input.numel() + out.numel())


@formula(*named("cumsum", "logcumsumexp"), op="cumsum")
def cumsum(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 adds per row."""
    return Cost(adds=_rows(input, dim) * max(reduced(input, dim) - 1, 0))


@formula(*named("cumprod"))
def cumprod(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 multiplies per row."""
    return Cost(muls=_rows(input, dim) * max(reduced(input, dim) - 1, 0))


@formula(*named("cummax", "cummin"), op="cummax")
def cummax(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k], indices[*, k]: k - 1 compares per row."""
    return Cost(others=_rows(input, dim) * max(reduced(input, dim) - 1, 0))


@formula(*named("diff"))
def diff(*, out: Spec) -> Cost:
    """x[*, k] -> out[*, k - n]: 1 subtraction per output (n = 1)."""
    return Cost(adds=out.numel())


@formula(*named("sort", "argsort", "mode"), op="sort")
def sort(input: Spec, dim: int = -1, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k]: k ceil(log2 k) compares per row: a comparison sort, a choice of ours."""
    k = reduced(input, dim)
    return Cost(others=input.numel() * math.ceil(math.log2(k)) if k > 1 else 0)


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


@formula(
    *named("unique", "unique_dim"),
    torch.functional.unique,
    torch.Tensor.unique,
    "unique_consecutive",
    torch.unique_consecutive,
    op="unique",
)
def unique(input: Spec, *, out: Any) -> Cost:
    """x[k] -> out[j]: as sort, of all elements."""
    return sort(Spec((input.numel(),)), out=out)


@formula(*named("topk", "kthvalue"), op="topk")
def topk(input: Spec, k: int, dim: int = -1, *, out: Any) -> Cost:
    """x[*, n] -> values[*, k], indices[*, k]: n ceil(log2 n) compares per row: by sorting, a choice of ours."""
    return sort(input, dim, out=out)


@formula(*named("index_add", "scatter_add", "scatter_reduce", "index_reduce", "segment_reduce"), op="scatter_add")
def scatter_add(input: Spec, dim: int, index: Spec, source: Any = None, *, out: Spec) -> Cost:
    """x[*], index[n], source[n, *] -> out[*]: 1 add per element of source."""
    return Cost(adds=source.numel() if isinstance(source, Spec) else index.numel())


@formula(nn.CosineSimilarity, *named("cosine_similarity"))
def cosine_similarity(x1: Spec, x2: Spec, *, out: Spec) -> Cost:
    """a[*, k], b[*, k] -> out[*]: three dot products of k, 2 roots, 1 multiply and 1 divide per output."""
    k = math.prod(x1) // max(out.numel(), 1)
    return Cost(muls=(3 * k + 1) * out.numel(), adds=3 * max(k - 1, 0) * out.numel(), others=3 * out.numel())


@formula(nn.PairwiseDistance, *named("pairwise_distance"))
def pairwise_distance(x1: Spec, x2: Spec, *, out: Spec) -> Cost:
    """a[*, k], b[*, k] -> out[*]: k subtractions, k adds of eps, k squares, k - 1 adds and 1 root per output."""
    n = x1.numel()
    return Cost(muls=n, adds=3 * n - out.numel(), others=out.numel())


@formula(*named("cross", "linalg_cross"), op="cross")
def cross(*, out: Spec) -> Cost:
    """a[*, 3] x b[*, 3] -> out[*, 3]: 2 multiplies and 1 subtraction per output."""
    return Cost(muls=2 * out.numel(), adds=out.numel())


@formula(*named("bincount", "histc"), op="bincount")
def bincount(input: Spec, *, out: Spec) -> Cost:
    """x[n] -> out[k]: 1 add per element."""
    return Cost(adds=input.numel())


@formula(*named("index_put", "_index_put_impl"), op="index_put")
def index_put(input: Spec, indices: Any, values: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*], values[n] -> out[*]: 1 add per value where they accumulate, nothing where they are put."""
    return Cost(adds=values.numel() if accumulate else 0)


@formula(*named("put"))
def put(input: Spec, index: Spec, source: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*], source[n] -> out[*]: 1 add per element where they accumulate, nothing where they are put."""
    return Cost(adds=source.numel() if accumulate else 0)


@formula(*named("scatter"))
def scatter(input: Spec, dim: int, index: Spec, src: Any = None, *, reduce: str = "", out: Spec) -> Cost:
    """x[*], index[n] -> out[*]: 1 operation per index where ``reduce`` says so, nothing where they are put."""
    return Cost(others=index.numel() if reduce else 0)


def _rows(input: Spec, dim: int) -> int:
    return input.numel() // max(reduced(input, dim), 1)
