"""Shape rules of layers with weights, and of what mixes positions: contractions, convolutions, norms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Spec
from ._rules import ANY, FIRST, Passing, shape, spelled
from .shapes import Lying, broadcast, each, fits, is_one, lies_in

Sizes = int | Sequence[int]


def folded(tensors: Sequence[Lying], out: Spec, input: Spec, weight: Spec, bias: Spec | None = None) -> Passing | None:
    """Unless the input is a matrix or contiguous the bias is added after; what becomes of rows that are no matrix as they lie
    hangs on whether the weight learns: the kernel decides."""
    sizes, strides = tensors[0]
    if len(sizes) == 2 or (input.numel() and lies_in(sizes, strides, range(len(sizes)))):
        return ()
    if len(sizes) < 2 or not input.numel() or not is_one(sizes[:-1], strides):
        return None
    return () if bias is None else (out, out)


@shape(nn.Linear, F.linear, layout=ANY, passing=folded)
def linear(input: Spec, weight: Spec, bias: Spec | None = None) -> Spec | None:
    """input[*, i], weight[o, i] -> out[*, o]."""
    if input.dtype is not weight.dtype or weight.ndim != 2 or not input.ndim or input[-1] != weight[1]:
        return None
    fit = input.dtype.is_floating_point and fits(bias, weight[0], input)
    return Spec((*input[:-1], weight[0]), input.dtype) if fit else None


@shape(*spelled("mm bmm", torch, torch.Tensor), layout=ANY)
def bmm(input: Spec, mat2: Spec) -> Spec | None:
    """input[*, m, k], mat2[*, k, n] -> out[*, m, n], with as many dimensions each; of others the kernel decides."""
    return matmul(input, mat2) if input.ndim == mat2.ndim and input[:-2] == mat2[:-2] else None


def batched(tensors: Sequence[Lying], out: Spec, input: Spec, other: Spec) -> Passing | None:
    """Operands whose batches do not lie as one dimension does are copied; those that are to be broadcast the kernel decides of."""
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


@shape(*spelled("matmul __matmul__", torch, torch.Tensor), layout=ANY, passing=batched)
def matmul(input: Spec, other: Spec) -> Spec | None:
    """input[*, m, k], other[*, k, n] -> out[*, m, n]; of vectors the kernel decides."""
    if input.ndim < 2 or other.ndim < 2 or input.dtype is not other.dtype or input[-1] != other[-2]:
        return None
    batch = broadcast(input[:-2], other[:-2])
    if batch is None or not input.dtype.is_floating_point:
        return None
    return Spec((*batch, input[-2], other[-1]), input.dtype)


@shape(*spelled("addmm baddbmm", torch, torch.Tensor), layout=ANY)
def addmm(input: Spec, mat1: Spec, mat2: Spec) -> Spec | None:
    """input[*], mat1[*, n, m], mat2[*, m, p] -> out[*, n, p]."""
    out = matmul(mat1, mat2)
    if out is None or mat1.ndim != mat2.ndim or mat1[:-2] != mat2[:-2] or input.dtype is not out.dtype:
        return None
    return out if broadcast(input, out) == tuple(out) else None


@shape(nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d, layout=FIRST)
def conv(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Spec | None:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m], m = (s + 2 padding - dilation (k - 1) - 1) // stride + 1."""
    dims = weight.ndim - 2
    if dims < 1 or input.ndim != dims + 2 or input.dtype is not weight.dtype or padding_mode != "zeros":
        return None
    if input[1] != weight[1] * groups or weight[0] % groups or not fits(bias, weight[0], input):
        return None
    steps, gaps = each(stride, dims), each(dilation, dims)
    if padding == "same":
        sizes = list(input[2:])
        if set(steps) != {1}:
            return None
    else:
        pads = (0,) * dims if isinstance(padding, str) else each(padding, dims)
        sizes = [
            (s + 2 * p - d * (k - 1) - 1) // step + 1
            for s, k, step, p, d in zip(input[2:], weight[2:], steps, pads, gaps, strict=True)
        ]
    return Spec((input[0], weight[0], *sizes), input.dtype) if min((*input, *sizes)) > 0 else None


def conv_transposed(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    stride: Sizes,
    padding: Sizes,
    added: Sizes,
    groups: int,
    dilation: Sizes,
) -> Spec | None:
    dims = weight.ndim - 2
    if input.ndim != dims + 2 or input.dtype is not weight.dtype or input[1] != weight[0] or weight[0] % groups:
        return None
    settings = [each(value, dims) for value in (stride, padding, added, dilation)]
    if not fits(bias, weight[1] * groups, input) or any(a >= max(s, d) for s, _, a, d in zip(*settings, strict=True)):
        return None
    sizes = [
        (s - 1) * step - 2 * p + d * (k - 1) + a + 1
        for s, k, step, p, a, d in zip(input[2:], weight[2:], *settings, strict=True)
    ]
    return Spec((input[0], weight[1] * groups, *sizes), input.dtype) if min((*input, *sizes)) > 0 else None


@shape(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, layout=FIRST)
def conv_transpose(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Spec | None:
    """input[n, g*i, *s], weight[g*i, o, *k] -> out[n, g*o, *m], m = (s - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1."""
    return conv_transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)


@shape(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, layout=FIRST)
def conv_transpose_module(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    output_size: Any = None,
) -> Spec | None:
    """As the function; where an output size is asked for the kernel decides."""
    if output_size is not None:
        return None
    return conv_transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)
