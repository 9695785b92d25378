"""Formulas for the functions that DeepSpeed's profiler and its descendants replace, and for modules that call these functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import getdoc
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..ops._extend import Cost, Sizes, Spec, each
from ._convention import NONE, Convention, ModuleRule, nothing
from ._rows import (
    DIMS,
    POOLINGS,
    batch_norm,
    conv,
    einsum,
    elementwise,
    free,
    linear,
    local_response_norm,
    lp_pool,
    normalized,
    per_input,
    product,
    product_and_sum,
)

Row = Callable[..., Cost]


def conv_transpose(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    out: Spec,
) -> Cost:
    """input[n, i, *s], weight[i, o, *k] -> out: 2 (o // g) prod(k) per input; with a bias, 1 per output that a plain convolution would have.

    In an unbatched image, the first dim (the channels) is read as the batch dimension.
    """
    n, _, *sizes = input
    outputs, *kernel = weight[1:]
    macs = input.numel() * (outputs // groups) * math.prod(kernel)
    settings = (each(setting, len(sizes)) for setting in (stride, padding, dilation))
    places = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in zip(sizes, kernel, *settings, strict=False)]
    return Cost(macs, others=2 * macs + (outputs * n * math.prod(places) if bias is not None else 0))


def interpolate(
    input: Spec, size: Sizes | None = None, scale_factor: Any = None, mode: str = "nearest", *, out: Spec
) -> Cost:
    """x[n, c, *] -> out[n, c, *m]: prod(size) per call, or ``size`` itself if it is an int; without ``size``, 1 per input element.

    With mode="area", the pooling that F.interpolate calls adds 1 per input.
    """
    pooled = input.numel() if mode == "area" else 0
    if size is None:
        return Cost(others=input.numel() + pooled)
    return Cost(others=(size if isinstance(size, int) else math.prod(size)) + pooled)


REPLACED: dict[Any, Row] = {
    F.linear: linear,
    **{getattr(F, f"conv{dims}d"): conv for dims in DIMS},
    **{getattr(F, f"conv_transpose{dims}d"): conv_transpose for dims in DIMS},
    **dict.fromkeys((F.relu, F.relu6, F.prelu, F.elu, F.leaky_relu, F.silu, F.gelu, F.softmax), per_input),
    F.batch_norm: batch_norm,
    **dict.fromkeys((F.layer_norm, F.group_norm, F.instance_norm), normalized),
    **{getattr(F, f"{name}{dims}d"): per_input for name in POOLINGS for dims in DIMS},
    **{getattr(F, f"{name}{dims}d_with_indices"): per_input for name in POOLINGS if "max" in name for dims in DIMS},
    F.interpolate: interpolate,
    **{getattr(F, f"lp_pool{dims}d"): lp_pool for dims in DIMS},
    F.local_response_norm: local_response_norm,
    F.embedding: free,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul), product),
    **dict.fromkeys((torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), product),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm), product_and_sum),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.mul, torch.Tensor.mul), elementwise),
    torch.einsum: einsum,
}
"""The formulas for the functions that flops-profiler replaces, and for functions that call replaced functions."""

FORWARDS: dict[Any, Any] = {
    nn.Linear: F.linear,
    **{getattr(nn, f"Conv{dims}d"): getattr(F, f"conv{dims}d") for dims in DIMS},
    **{getattr(nn, f"ConvTranspose{dims}d"): getattr(F, f"conv_transpose{dims}d") for dims in DIMS},
    nn.ReLU: F.relu,
    nn.PReLU: F.prelu,
    nn.ELU: F.elu,
    nn.LeakyReLU: F.leaky_relu,
    nn.SiLU: F.silu,
    nn.GELU: F.gelu,
    **dict.fromkeys((nn.Softmax, nn.Softmax2d), F.softmax),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), F.batch_norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), F.instance_norm),
    nn.LayerNorm: F.layer_norm,
    nn.GroupNorm: F.group_norm,
    nn.LocalResponseNorm: F.local_response_norm,
    **{
        getattr(nn, f"{name.title().replace('_', '')}{dims}d"): getattr(F, f"{name}{dims}d")
        for name in POOLINGS
        for dims in DIMS
    },
    **{getattr(nn, f"LPPool{dims}d"): getattr(F, f"lp_pool{dims}d") for dims in DIMS},
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), F.interpolate),
    nn.Embedding: F.embedding,
}
"""By module class, the function that the module's forward calls."""


def convention_of(
    name: str, summary: str, replaced: Mapping[Any, Row], modules: Mapping[type, ModuleRule] | None = None
) -> Convention:
    """Return the convention of a tool that replaces these functions. A module whose forward calls a replaced function gets the
    formula of that function too."""
    forwards = {cls: replaced[function] for cls, function in FORWARDS.items() if function in replaced}
    return Convention(
        name,
        summary,
        {**replaced, **forwards},
        of=nothing,
        modules=None if modules is None else modules.get,
        operators=NONE,
        integers=True,
        by_name=True,
    )


def macs_of(replaced: Mapping[Any, Row]) -> dict[Any, Row]:
    """Return, for each function, a formula that charges only the MACs of the function's formula."""
    rows = {row: _macs_of(row) for row in replaced.values()}
    return {function: rows[row] for function, row in replaced.items()}


def _macs_of(row: Row) -> Row:
    @wraps(row)
    def macs(*args: Any, **kwargs: Any) -> Cost:
        return Cost(others=row(*args, **kwargs).macs)

    macs.__doc__ = (getdoc(row) or "").partition(": ")[0] + ": 1 per multiply-accumulate."
    return macs
