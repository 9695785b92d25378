"""Shape rules of what pools, resamples, reduces, joins and moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Spec
from ._rules import ANY, FORMAT, Passing, shape, spelled
from .shapes import Lying, each

Sizes = int | Sequence[int]
RESAMPLED = {"nearest": (3, 4, 5), "linear": (3,), "bilinear": (4,), "bicubic": (4,), "trilinear": (5,)}
"""The dimensions of the tensors that each mode takes."""


def pooled(
    dims: int, input: Spec, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], m = (s + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down, or up where
    the last window begins inside."""
    if input.ndim != dims + 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    sizes = []
    kernel, pads, gaps = each(kernel_size, dims), each(padding, dims), each(dilation, dims)
    steps = kernel if stride is None or stride == () or stride == [] else each(stride, dims)
    for s, k, step, p, d in zip(input[2:], kernel, steps, pads, gaps, strict=True):
        if p > k // 2 or step < 1:
            return None
        size = (s + 2 * p - d * (k - 1) - 1 + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (size - 1) * step >= s + p:
            size -= 1
        sizes.append(size)
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None


def indexed(tensors: Sequence[Lying], out: Spec, *args: Any, **kwargs: Any) -> Passing:
    """Besides each largest element its index is written."""
    return out, Spec(out, torch.int64)


@shape(nn.MaxPool2d, torch.max_pool2d, layout=FORMAT, passing=indexed)
def max_pool2d(
    input: Spec,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m]; with indices the kernel decides."""
    return None if return_indices else pooled(2, input, kernel_size, stride, padding, dilation, ceil_mode)


@shape(nn.AvgPool2d, F.avg_pool2d, layout=FORMAT)
def avg_pool2d(
    input: Spec,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m]; where the divisor is given the kernel decides."""
    return None if divisor_override is not None else pooled(2, input, kernel_size, stride, padding, 1, ceil_mode)


@shape(nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, layout=FORMAT)
def adaptive_avg_pool2d(input: Spec, output_size: Any) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *output_size], None for a size that stays."""
    wanted = (output_size,) * 2 if isinstance(output_size, int) else tuple(output_size)
    if input.ndim != 4 or len(wanted) != 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    sizes = [s if w is None else w for s, w in zip(input[2:], wanted, strict=True)]
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None


@shape(nn.Upsample, F.interpolate, layout=FORMAT)
def interpolate(
    input: Spec,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Spec | None:
    """x[n, c, *s] -> out[n, c, *m], m = size, or s times the scale, rounded down."""
    dims = input.ndim - 2
    if input.ndim not in RESAMPLED.get(mode, ()) or (size is None) is (scale_factor is None) or antialias:
        return None
    if not input.dtype.is_floating_point or not input.numel() or (mode == "nearest" and align_corners is not None):
        return None
    given = size if scale_factor is None else scale_factor
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * dims
    if len(values) != dims or not all(type(value) in (int, float) for value in values):
        return None
    if scale_factor is None:
        sizes = values if all(type(value) is int for value in values) and not recompute_scale_factor else (0,)
    else:
        sizes = tuple(int(s * float(scale)) for s, scale in zip(input[2:], values, strict=True))
    return Spec((*input[:2], *sizes), input.dtype) if min(sizes) > 0 else None


def reduced(input: Spec, dim: Any, keepdim: bool) -> tuple[int, ...] | None:
    """The sizes that a reduction over these dimensions leaves, over all for None; None where there are no such."""
    dims = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if not dims or not all(type(d) is int and -input.ndim <= d < input.ndim for d in dims) or not input.numel():
        return None
    gone = {d % input.ndim for d in dims}
    if len(gone) != len(dims):
        return None
    return tuple(1 if d in gone else size for d, size in enumerate(input) if keepdim or d not in gone)


@shape(*spelled("mean sum", torch, torch.Tensor), layout=ANY)
def mean(input: Spec, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Spec | None:
    """x[*] -> out[*], without the dimensions."""
    dtype, sizes = dtype or input.dtype, reduced(input, dim, keepdim)
    if sizes is None or not input.dtype.is_floating_point or not dtype.is_floating_point:
        return None
    return Spec(sizes, dtype)


@shape(*spelled("amax amin", torch, torch.Tensor), layout=ANY)
def amax(input: Spec, dim: Any = (), keepdim: bool = False) -> Spec | None:
    """x[*] -> out[*], without the dimensions."""
    sizes = reduced(input, dim, keepdim) if dim is not None else None
    return None if sizes is None or not input.dtype.is_floating_point else Spec(sizes, input.dtype)


@shape(torch.Tensor.norm, layout=ANY)
def norm(input: Spec, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Spec | None:
    """x[*] -> out[*], without the dimensions."""
    if type(p) not in (int, float) or dim is None or dtype is not None:
        return None
    return mean(input, dim, keepdim)


@shape(torch.cat, torch.concat, torch.concatenate, layout=FORMAT)
def cat(tensors: tuple[Spec, ...], dim: int = 0) -> Spec | None:
    """x[*, a, *], y[*, b, *] ... -> out[*, a + b ..., *]."""
    first = tensors[0] if tensors else None
    if first is None or not first.ndim or not -first.ndim <= dim < first.ndim:
        return None
    dim %= first.ndim
    for spec in tensors:
        alike = spec.ndim == first.ndim and spec.dtype is first.dtype and spec.numel()
        if not alike or spec[:dim] != first[:dim] or spec[dim + 1 :] != first[dim + 1 :]:
            return None
    return Spec((*first[:dim], sum(spec[dim] for spec in tensors), *first[dim + 1 :]), first.dtype)


@shape(torch.stack)
def stack(tensors: tuple[Spec, ...], dim: int = 0) -> Spec | None:
    """x[*], y[*] ... -> out[*, 2 ..., *]."""
    first = tensors[0] if tensors else None
    if first is None or not -first.ndim - 1 <= dim <= first.ndim or not first.numel():
        return None
    if any(tuple(spec) != tuple(first) or spec.dtype is not first.dtype for spec in tensors):
        return None
    dim %= first.ndim + 1
    return Spec((*first[:dim], len(tensors), *first[dim:]), first.dtype)


@shape(torch.roll, torch.Tensor.roll, layout=ANY)
def roll(input: Spec, shifts: Any, dims: Any = None) -> Spec | None:
    """x[*] -> out[*]."""
    moved, along = ((v,) if isinstance(v, int) else tuple(v or ()) for v in (shifts, dims))
    known = along and len(moved) == len(along) and all(-input.ndim <= dim < input.ndim for dim in along)
    return Spec(input, input.dtype) if known and input.numel() else None


@shape(F.pad, layout=FORMAT)
def pad(input: Spec, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Spec | None:
    """x[*, s] -> out[*, left + s + right], the last dimension first."""
    if mode != "constant" or len(pad) % 2 or len(pad) > 2 * input.ndim or max(pad, default=0) <= 0:
        return None
    sizes = list(input)
    for at in range(len(pad) // 2):
        sizes[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return Spec(tuple(sizes), input.dtype) if min(*input, *sizes) > 0 else None
