"""Ops that write elements to indexed positions, or combine them with the elements there by sum, product or extremum."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._extend import Cost, Spec, formula, named
from ._traits import UNREAD


@formula(*named("index_add"))
def index_add(input: Spec, dim: int, index: Spec, source: Spec, alpha: float = 1, *, out: Spec) -> Cost:
    """x[*], index[n], source[n, *] -> out[*]: 1 add per element of source, plus 1 multiply if alpha is not 1."""
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


@formula(*named("scatter"), traits=[UNREAD])
def scatter(input: Spec, dim: int, index: Spec, src: Any = None, *, reduce: str = "", out: Spec) -> Cost:
    """x[*], index[n] -> out[*]: 1 add or multiply per index with ``reduce``, else nothing."""
    return _joined(reduce, index.numel(), 0) if reduce else Cost()


@formula(*named("segment_reduce"))
def segment_reduce(data: Spec, reduce: str, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds, multiplies or compares per output; mean: 1 more divide."""
    return _joined(reduce, max(data.numel() - out.numel(), 0), out.numel())


@segment_reduce.backward(*named("_segment_reduce_backward"))
def segment_reduce_backward(grad: Spec, output: Spec, data: Spec, reduce: str, *, out: Any) -> Cost:
    """grad[s, *], y[s, *], x[n, *] -> out[n, *]: nothing for a sum, 1 divide per element of grad for a mean.

    Maximum and minimum take 1 compare of each x with its y, and divide grad among ties. The gradient of a product is grad * y / x.
    """
    if reduce == "prod":
        return Cost(muls=grad.numel(), others=data.numel())
    compared = data.numel() if reduce in ("max", "min") else 0
    return Cost(others=compared + (0 if reduce == "sum" else grad.numel()))


@formula(*named("index_put", "_index_put_impl", "_unsafe_index_put"), traits=[UNREAD])
def index_put(input: Spec, indices: Any, values: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*, m], index[n], values[n, m] -> out[*, m]: n*m adds with ``accumulate``, else nothing."""
    if not accumulate:
        return Cost()
    given = [index for index in indices if index is not None]
    if not given:  # a trace does not show indices: assume one element per value
        return Cost(adds=values.numel())
    # A mask's shape does not show how many elements it selects.
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return Cost(adds=values.numel())
    m = math.prod(size for d, size in enumerate(input) if d >= len(indices) or indices[d] is None)
    return Cost(adds=math.prod(torch.broadcast_shapes(*given)) * m)


@formula(*named("put"))
def put(input: Spec, index: Spec, source: Spec, accumulate: bool = False, *, out: Spec) -> Cost:
    """x[*], index[n], source[n] -> out[*]: 1 add per index with ``accumulate``, else nothing."""
    return Cost(adds=index.numel() if accumulate else 0)


def _joined(reduce: str, n: int, outputs: int) -> Cost:
    """Return the cost of combining ``n`` elements with existing elements by ``reduce``, torch's name of the operation."""
    if reduce in ("add", "sum", "mean"):
        return Cost(adds=n, others=outputs if reduce == "mean" else 0)
    return Cost(muls=n) if reduce in ("prod", "multiply") else Cost(others=n)
