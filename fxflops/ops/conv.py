"""Convolutions and their transposes, in any number of dims, with groups, dilation, strides and every kind of padding.

Windows are counted whole, also where they reach into the padding, as torch_flops and FlopCounterMode count them.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..records import Cost, Spec
from ._cost import added_up, contraction
from ._registry import formula
from ._spellings import named


@formula(
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *named("conv1d", "conv2d", "conv3d", "_convolution_mode"),
    *named("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution", "_mps_convolution"),
    *named("_nnpack_spatial_convolution"),
)
def conv(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: i*prod(k) multiply-adds less 1 add, plus bias."""
    return contraction(math.prod(weight[1:]), out.numel(), bias is not None)


@formula("aten::cudnn_convolution", op="conv")
def conv_without_bias(input: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: i*prod(k) multiply-adds less 1 add."""
    return conv(input, weight, out=out)


@formula(
    *named("thnn_conv2d", "slow_conv3d", "slow_conv_dilated2d", "slow_conv_dilated3d", "_conv_depthwise2d"),
    *named("conv_depthwise3d", "_slow_conv2d_forward", "slow_conv3d_forward"),
    op="conv",
)
def conv_sized(input: Spec, weight: Spec, kernel_size: Any, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: i*prod(k) multiply-adds less 1 add, plus bias."""
    return conv(input, weight, bias, out=out)


@formula("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu", op="conv")
def conv_relu(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: the convolution's, and the relu of each output."""
    return conv(input, weight, bias, out=out).plus(Cost(others=out.numel()))


@formula(*named("conv_tbc"), op="conv")
def conv_tbc(input: Spec, weight: Spec, bias: Spec, pad: int = 0, *, out: Spec) -> Cost:
    """input[t, b, i], weight[k, i, o], bias[o] -> out[s, b, o]: k*i multiplies and as many adds per output."""
    k, i, _ = weight
    return contraction(k * i, out.numel(), bias=True)


@formula(
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *named("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *named("miopen_convolution_transpose"),
)
def conv_transpose(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i, *n], weight[i, o, *k] -> out[*, g*o, *m]: o*prod(k) multiply-adds per input, less 1 per output, plus bias.

    The first product of an output needs no add. Products that fall into the cropped border (``padding``) are counted,
    as torch.utils.flop_counter does.
    """
    biases = Cost(adds=out.numel() if bias is not None else 0)
    return added_up(input.numel() * math.prod(weight[1:]), out.numel()).plus(biases)


@formula("aten::cudnn_convolution_transpose", op="conv_transpose")
def conv_transpose_without_bias(input: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, i, *n], weight[i, o, *k] -> out[*, g*o, *m]: o*prod(k) multiply-adds per input, less 1 per output."""
    return conv_transpose(input, weight, out=out)


@formula(
    *named("slow_conv_transpose2d", "slow_conv_transpose3d"),
    op="conv_transpose",
)
def conv_transpose_sized(input: Spec, weight: Spec, kernel_size: Any, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i, *n], weight[i, o, *k] -> out[*, g*o, *m]: o*prod(k) multiply-adds per input, less 1 per output, plus bias."""
    return conv_transpose(input, weight, bias, out=out)


@formula(*named("convolution", "_convolution", "convolution_overrideable"), op="conv")
def convolution(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *,
    out: Spec,
) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: as conv, or as conv_transpose where transposed."""
    return (conv_transpose if transposed else conv)(input, weight, bias, out=out)
