"""Softmax and related ops, counted per row. Subtracting a row's maximum first, which kernels do, is not counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import EVEN, Cost, Spec, Specs, Strided, formula, named, reduced, rows_of, spelled


@formula(nn.Softmax, *named("softmax", "_softmax", "_safe_softmax"), "aten::special_softmax")
def softmax(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k exps, k-1 adds and k divides per row."""
    return Cost(adds=out.numel() - rows_along(out, dim), others=2 * out.numel())


@softmax.backward(*named("_softmax_backward_data"))
def softmax_backward(grad_output: Spec, output: Spec, dim: int, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: y * (grad - sum of y * grad): 2k multiplies and 2k-1 adds per row."""
    return Cost(muls=2 * out.numel(), adds=2 * out.numel() - rows_along(out, dim))


@formula(nn.Softmax2d, op="softmax")
def softmax2d(module: nn.Softmax2d, input: Spec, *, out: Spec) -> Cost:
    """input[*, k, h, w] -> out[*, k, h, w]: k exps, k-1 adds and k divides per pixel."""
    return softmax(input, -3, out=out)


@formula(nn.Softmin, *named("softmin"))
def softmin(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k negations, k exps, k-1 adds and k divides per row."""
    return softmax(input, dim, out=out).plus(Cost(others=out.numel()))


@formula(*named("_masked_softmax"), op="softmax")
def masked_softmax(input: Spec, mask: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k], mask[*, k] -> out[*, k]: 1 selection per output, plus the cost of softmax."""
    return softmax(input, -1 if dim is None else dim, out=out).plus(Cost(others=out.numel()))


@masked_softmax.backward(*named("_masked_softmax_backward"), op="softmax_backward")
def masked_softmax_backward(grad_output: Spec, output: Spec, mask: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: counted like softmax_backward, including masked elements."""
    return softmax_backward(grad_output, output, -1 if dim is None else dim, out=out)


@formula(nn.LogSoftmax, *named("log_softmax", "_log_softmax"), "aten::special_log_softmax")
def log_softmax(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k exps, k-1 adds, 1 log and k subtractions per row."""
    rows = rows_along(out, dim)
    return Cost(adds=2 * out.numel() - rows, others=out.numel() + rows)


@log_softmax.backward(*named("_log_softmax_backward_data"))
def log_softmax_backward(grad_output: Spec, output: Spec, dim: int, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: grad - exp(y) * sum of grad: k exps, k multiplies and 2k-1 adds per row."""
    return Cost(muls=out.numel(), adds=2 * out.numel() - rows_along(out, dim), others=out.numel())


def converted(tensors: Sequence[Strided], out: Spec, input: Spec, *args: Any, device: str, **kwargs: Any) -> Specs:
    """Return the input converted to the result's dtype, and the result; () if the input is not copied.

    CUDA reads half precision without a copy.
    """
    is_read = device == "cuda" and input.dtype.itemsize == HALF and out.dtype is torch.float32
    return () if input.dtype is out.dtype or is_read else (out, out)


HALF = 2
"""The bytes of an element in half precision."""


@softmax.shape(nn.Softmax, *spelled("softmax", torch, torch.Tensor), layout=EVEN, alive_at_peak=converted)
@log_softmax.shape(nn.LogSoftmax, *spelled("log_softmax", torch, torch.Tensor), layout=EVEN, alive_at_peak=converted)
def softmax_shape(input: Spec, dim: int | None = None, dtype: torch.dtype | None = None) -> Spec | None:
    """x[*] -> out[*]."""
    dtype = dtype or input.dtype
    if not input.dtype.is_floating_point or not dtype.is_floating_point or type(dim) is not int:
        return None
    return Spec(input, dtype) if -input.ndim <= dim < input.ndim and input.numel() else None


@softmax.shape(F.softmax, layout=EVEN, alive_at_peak=converted)
@log_softmax.shape(F.log_softmax, layout=EVEN, alive_at_peak=converted)
def softmax_function_shape(
    input: Spec, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Spec | None:
    """x[*] -> out[*]."""
    return softmax_shape(input, dim, dtype)


def rows_along(out: Spec, dim: int | None) -> int:
    """Return the number of rows along ``dim``. If ``dim`` is None, it is the dim that F.softmax chooses."""
    if dim is None:
        dim = 0 if out.ndim in (0, 1, 3) else 1
    return rows_of(out.numel(), reduced(out, dim))
