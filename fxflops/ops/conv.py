"""Convolutions, in any number of dims, with groups, dilation, strides and every kind of padding.

Windows that reach into the padding count in full, like in torch_flops and FlopCounterMode. The gradient of a convolution's input is a
transposed convolution. The gradient of a transposed convolution's input is a convolution. With groups, a weight is multiplied only
with the channels of its own group. (FlopCounterMode counts the weight's gradient ``groups`` times.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import CONVOLVED, Cost, Sizes, Spec, contraction, each, fits, formula, named, summed, when
from .conv_transpose import conv_transpose


@formula(
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *named("conv1d", "conv2d", "conv3d", "_convolution_mode"),
    *named("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution", "_mps_convolution"),
    *named("_nnpack_spatial_convolution", "thnn_conv2d", "slow_conv3d", "slow_conv_dilated2d", "slow_conv_dilated3d"),
    *named("_conv_depthwise2d", "conv_depthwise3d", "_slow_conv2d_forward", "slow_conv3d_forward"),
    "aten::cudnn_convolution",
)
def conv(input: Spec, weight: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: i*prod(k) multiplies and i*prod(k)-1 adds per output, plus 1 add with a bias."""
    return contraction(math.prod(weight[1:]), out.numel(), bias is not None)


@conv.shape(nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d, layout=CONVOLVED)
def conv_shape(
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
    if (
        input.dtype.is_complex or input.dtype is torch.bool
    ):  # torch computes the former with real convolutions, and refuses the latter
        return None
    if input[1] != weight[1] * groups or weight[0] % groups or not fits(bias, weight[0], input):
        return None
    steps, gaps = each(stride, dims), each(dilation, dims)
    if padding == "same":
        sizes = list(input[2:])
        # If one side gets more padding than the other, torch pads a copy first.
        if set(steps) != {1} or any(d * (k - 1) % 2 for k, d in zip(weight[2:], gaps, strict=True)):
            return None
    else:
        pads = (0,) * dims if isinstance(padding, str) else each(padding, dims)
        sizes = [
            (s + 2 * p - d * (k - 1) - 1) // step + 1
            for s, k, step, p, d in zip(input[2:], weight[2:], steps, pads, gaps, strict=True)
        ]
    return Spec((input[0], weight[0], *sizes), input.dtype) if min((*input, *sizes)) > 0 else None


@formula(*named("conv_tbc"), op="conv")
def conv_tbc(input: Spec, weight: Spec, bias: Spec, pad: int = 0, *, out: Spec) -> Cost:
    """input[t, b, i], weight[k, i, o], bias[o] -> out[s, b, o]: k*i multiplies and as many adds per output."""
    k, i, _ = weight
    return contraction(k * i, out.numel(), bias=True)


@formula(*named("convolution", "_convolution", "convolution_overrideable"), op="conv")
def convolution(input: Spec, weight: Spec, bias: Spec | None, *, transposed: bool, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: counted like conv, or like conv_transpose if transposed."""
    return (conv_transpose if transposed else conv)(input, weight, bias=bias, out=out)


@convolution.backward(
    *named("convolution_backward", "convolution_backward_overrideable"),
    *named("_slow_conv2d_backward", "mps_convolution_backward"),
    op="conv_backward",
)
def convolution_backward(
    *,
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    transposed: bool = False,
    output_mask: Sequence[bool] = (True, True, True),
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, g*i, *n], weight[o, i, *k] -> out[b, g*i, *n], out_weight[o, i, *k], out_bias[o]: 3 contractions, one for each gradient.

    Input: i*prod(k) multiply-adds per element of grad, minus 1 add per output (transposed: o*prod(k) per output).
    Weight: b*prod(m) per output (transposed: b*prod(n)), minus 1 add. Bias: b*prod(m) - 1 adds per output.
    """
    to_input, to_weight, to_bias = output_mask
    batch, _, *places = input if transposed else grad_output
    return summed(
        when(to_input, (conv if transposed else conv_transpose)(grad_output, weight, out=input)),
        when(to_weight, contraction(batch * math.prod(places), weight.numel())),
        when(to_bias, Cost(adds=max(grad_output.numel() - grad_output[1], 0))),
    )


@convolution.backward(*named("mps_convolution_transpose_backward"), op="conv_backward")
def mps_convolution_transpose_backward(
    input: Spec, grad_output: Spec, weight: Spec, *, output_mask: Sequence[bool], out: Any
) -> Cost:
    """x[b, i, *n], grad[b, g*o, *m], weight[i, o, *k] -> out[b, i, *n], out_weight[i, o, *k]: counted like convolution_backward."""
    given = {"grad_output": grad_output, "input": input, "weight": weight}
    return convolution_backward(**given, transposed=True, output_mask=(*output_mask, False), out=out)
