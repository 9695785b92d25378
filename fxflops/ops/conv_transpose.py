"""Transposed convolutions, in any number of dims, with groups, dilation and strides."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import CONVOLVED, Cost, Sizes, Spec, added_up, each, fits, formula, named


@formula(
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *named("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *named("miopen_convolution_transpose", "_mps_convolution_transpose"),
    *named("slow_conv_transpose2d", "slow_conv_transpose3d"),
    "aten::cudnn_convolution_transpose",
)
def conv_transpose(input: Spec, weight: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[*, i, *n], weight[i, o, *k] -> out[*, g*o, *m]: o*prod(k) multiply-adds per input, minus 1 add per output without a bias.

    The first product of an output needs no add. Products in the border are counted even though ``padding``
    crops the border, as in torch.utils.flop_counter.
    """
    biases = Cost(adds=out.numel() if bias is not None else 0)
    return added_up(input.numel() * math.prod(weight[1:]), out.numel()).plus(biases)


@conv_transpose.shape(
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    layout=CONVOLVED,
)
def conv_transpose_shape(
    input: Spec,
    weight: Spec,
    bias: Spec | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    output_size: Any = None,
) -> Spec | None:
    """input[n, g*i, *s], weight[g*i, o, *k] -> out[n, g*o, *m], m = (s - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1.

    Return None if ``output_size`` is passed.
    """
    dims = weight.ndim - 2
    if output_size is not None or input.ndim != dims + 2 or input.dtype is not weight.dtype:
        return None
    if input.dtype.is_complex or input.dtype is torch.bool:
        return None
    if input[1] != weight[0] or weight[0] % groups or not fits(bias, weight[1] * groups, input):
        return None
    settings = [each(value, dims) for value in (stride, padding, output_padding, dilation)]
    if any(a >= max(s, d) for s, _, a, d in zip(*settings, strict=True)):
        return None
    sizes = [
        (s - 1) * step - 2 * p + d * (k - 1) + a + 1
        for s, k, step, p, a, d in zip(input[2:], weight[2:], *settings, strict=True)
    ]
    return Spec((input[0], weight[1] * groups, *sizes), input.dtype) if min((*input, *sizes)) > 0 else None
