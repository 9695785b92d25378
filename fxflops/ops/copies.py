"""Shape rules of ops that copy their input or return it unchanged: reshape, contiguous, clone, pad, indexing.

Strides decide whether ``reshape`` copies, and whether ``contiguous`` returns its input. The rules return new tensors or the input
itself. For a view they return None, and torch makes the view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ._extend import (
    LAST,
    WHOLE,
    Placed,
    Result,
    Spec,
    contiguous,
    in_format,
    in_order,
    is_contiguous,
    like,
    shape,
    spelled,
    viewed,
)


@shape(torch.reshape, torch.Tensor.reshape, layout=WHOLE)
def reshape_shape(input: Placed, *shape: Any) -> Result | None:
    """x[*] -> out[*] if the result is a copy, or None if the result is a view."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return _copied(input, [*sizes]) if shape else None


@shape(torch.flatten, torch.Tensor.flatten, layout=WHOLE)
def flatten_shape(input: Placed, start_dim: int = 0, end_dim: int = -1) -> Result | None:
    """x[*, *n, *] -> out[*, prod n, *] if the result is a copy, or None if the result is a view."""
    dims = len(input)
    if not (-dims <= start_dim < dims and -dims <= end_dim < dims):
        return None
    first, last = start_dim % dims, end_dim % dims
    return (
        _copied(input, [*input[:first], math.prod(input[first : last + 1]), *input[last + 1 :]])
        if first < last
        else None
    )


def _copied(input: Placed, sizes: list[int]) -> Result | None:
    """Return a contiguous copy with these sizes, one of which may be -1, or None if the result is a view."""
    if sizes.count(-1) == 1:
        rest = math.prod([size for size in sizes if size != -1])
        sizes[sizes.index(-1)] = input.numel() // rest
    if (
        not input.numel()
        or math.prod(sizes) != input.numel()
        or min(sizes, default=1) < 0
        or viewed(input, sizes) is not None
    ):
        return None
    return Result(Spec(tuple(sizes), input.dtype), contiguous(sizes))


@shape(torch.Tensor.contiguous, layout=WHOLE)
def contiguous_shape(input: Placed, memory_format: Any = torch.contiguous_format) -> Result | None:
    """x[*] -> x[*] if x already has this memory format, else a copy out[*]."""
    if memory_format is torch.contiguous_format:
        order: Sequence[int] = range(len(input))
    elif memory_format is torch.channels_last and len(input) == len(LAST):
        order = LAST
    else:
        return None
    if is_contiguous(input, order):
        return Result(input, None)
    return Result(Spec(input, input.dtype), in_order(input, order))


@shape(torch.clone, torch.Tensor.clone, layout=WHOLE)
def clone_shape(input: Placed, *, memory_format: Any = torch.preserve_format) -> Result | None:
    """x[*] -> out[*]."""
    strides = None
    if memory_format is torch.preserve_format:
        strides = like(input)
    elif memory_format is torch.contiguous_format:
        strides = contiguous(input)
    return None if strides is None else Result(Spec(input, input.dtype), strides)


@shape(F.pad, layout=WHOLE)
def pad_shape(input: Placed, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Result | None:
    """x[*, s] -> out[*, left + s + right]. ``pad`` begins with the last dim. If all widths are 0, the result is a copy."""
    if mode != "constant" or len(pad) % 2 or len(pad) > 2 * input.ndim:
        return None
    sizes = list(input)
    for at in range(len(pad) // 2):
        sizes[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    if min(*input, *sizes) <= 0 or max(pad, default=0) < 0:
        return None
    out = Spec(tuple(sizes), input.dtype)
    added, cut = any(width > 0 for width in pad), any(width < 0 for width in pad)
    if cut and not added:  # a copy of a slice, whose strides differ from the input's
        return None
    strides = in_format(out, [(input, input.strides)]) if added else like(input)
    return None if strides is None else Result(out, strides)


@shape(torch.Tensor.__getitem__, layout=WHOLE)
def rows_shape(input: Placed, indices: Any) -> Result | None:
    """x[n, *], indices[m] -> out[m, *], or None for a number or a slice, whose result is a view, and for a boolean mask."""
    if not isinstance(indices, Placed) or indices.dtype is not torch.int64 or not indices.ndim or not input.ndim:
        return None
    if 0 in input or 0 in indices or not all(each.strides == contiguous(each) for each in (input, indices)):
        return None
    out = Spec((*indices, *input[1:]), input.dtype)
    return Result(out, contiguous(out))


@shape(*spelled("index_select", torch, torch.Tensor), layout=WHOLE)
def index_select_shape(input: Placed, dim: int, index: Placed) -> Result | None:
    """x[*, n, *], index[m] -> out[*, m, *]."""
    if (
        not -input.ndim <= dim < input.ndim
        or index.ndim != 1
        or index.dtype is not torch.int64
        or 0 in input
        or 0 in index
    ):
        return None
    dim %= input.ndim
    out = Spec((*input[:dim], index[0], *input[dim + 1 :]), input.dtype)
    return Result(out, contiguous(out))
