"""Sorts, and ops that count like a sort. fxflops counts k ceil(log2 k) compares to sort k elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..torch_internals import quantile_selects
from ._extend import Cost, Spec, Specs, Strided, contiguous, formula, named, reduced, spelled, unwatched
from .reduce import steps


@formula(*named("sort", "argsort"), op="sort")
@formula(*named("mode"), op="mode")
def sort(input: Spec, dim: int = -1, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k]: k ceil(log2 k) compares per row, as in a comparison sort."""
    return _sorted(input, reduced(input, dim))


@formula(*named("msort"), op="sort")
def msort(input: Spec, *, out: Spec) -> Cost:
    """x[k, *] -> out[k, *]: counted like sort along the first dim."""
    return sort(input, 0, out=out)


@formula(*named("median", "nanmedian"))
def median(input: Spec, dim: int | None = None, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: counted like sort; without a dim, over all elements."""
    return sort(Spec((input.numel(),)) if dim is None else input, -1 if dim is None else dim, out=out)


@formula(*named("quantile", "nanquantile"))
def quantile(input: Spec, q: Any, dim: int | None = None, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: counted like median, plus 2 adds and 1 multiply per output to interpolate."""
    return median(input, dim, out=out).plus(Cost(muls=out.numel(), adds=2 * out.numel()))


@unwatched(*spelled("quantile nanquantile", torch, torch.Tensor))
def selected(
    tensors: Sequence[Strided],
    input: Spec,
    q: Any,
    dim: int | None = None,
    *_: Any,
    device: str,
    needs_grad: bool,
    **__: Any,
) -> Specs | None:
    """Return the tensors alive at the peak if torch selects quantiles instead of sorting: on a CPU, for few quantiles of long rows.

    Torch first makes a mask of NaNs, then ranks and weights of 56 bytes per quantile and row. Rows that are not contiguous are
    copied. Torch selects up to 50 quantiles, and up to half the square root of the row's length; these limits were measured.
    """
    k = input.numel() if dim is None else input[dim]
    quantiles = q.numel() if isinstance(q, Spec) else 1
    if device == "cuda" or not quantile_selects() or 2 * quantiles > min(math.isqrt(k), 100):
        return None
    sizes, strides = (list(each) for each in tensors[0])
    if dim is not None:
        sizes.append(sizes.pop(dim))
        strides.append(strides.pop(dim))
    copied = () if tuple(strides) == contiguous(sizes) else (Spec(input, input.dtype),)
    rows = input.numel() // max(k, 1)
    masked = Spec(input, torch.bool)
    first = (*copied, masked) if dim is None else (masked,)
    then = *copied, Spec((56 * rows * quantiles,), torch.uint8)
    return max(first, then, key=lambda specs: [sum(spec.nbytes for spec in specs)])


@formula(*named("unique", "_unique", "_unique2"))
def unique(
    input: Spec,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    out: Any,
) -> Cost:
    """x[k] -> out[j]: counted like sort over all elements; along a dim, each compare covers a whole slice."""
    return _sorted(input, input.numel() if dim is None else input[dim])


@formula(*named("unique_dim"), op="unique")
def unique_dim(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[k, *] -> out[j, *]: counted like unique."""
    return unique(input, dim=dim, out=out)


@formula(*named("unique_consecutive"))
def unique_consecutive(
    input: Spec, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None, *, out: Any
) -> Cost:
    """x[k] -> out[j]: k - 1 compares of neighbours; along a dim, each compare covers a whole slice."""
    return Cost(others=steps(input, dim))


@formula(*named("unique_dim_consecutive"), op="unique_consecutive")
def unique_dim_consecutive(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[k, *] -> out[j, *]: counted like unique_consecutive."""
    return unique_consecutive(input, dim=dim, out=out)


@formula(*named("topk"), op="topk")
@formula(*named("kthvalue"), op="kthvalue")
def topk(input: Spec, k: int, dim: int = -1, *, out: Any) -> Cost:
    """x[*, n] -> values[*, k], indices[*, k]: n ceil(log2 n) compares per row, as in a full sort."""
    return sort(input, dim, out=out)


def _sorted(input: Spec, k: int) -> Cost:
    """Return the cost of sorting rows of ``k`` elements."""
    return Cost(others=input.numel() * math.ceil(math.log2(k)) if k > 1 else 0)
