"""Gradients of convolutions: that of the input is the transposed convolution, or for a transposed one the convolution.

Windows are counted whole, as in conv.py, and groups as what they are: each weight meets the channels of its group alone
(FlopCounterMode counts the weight's gradient ``groups`` times). Only the gradients asked for are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records import Cost, Spec
from ._cost import contraction, summed, when
from ._registry import formula
from ._spellings import named
from .conv import conv, conv_transpose

ALL = (True, True, True)


@formula(*named("convolution_backward"), op="conv_backward")
def convolution_backward(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, g*i, *n], weight[o, i, *k] -> out[b, g*i, *n], out_weight[o, i, *k], out_bias[o]: 3 contractions.

    To the input i*prod(k) multiply-adds per element of grad, less 1 add per output (transposed: o*prod(k) per output);
    to the weight b*prod(m) per output (transposed: b*prod(n)), less 1 add; to the bias b*prod(m) - 1 adds per output.
    """
    return _gradients(grad_output, input, weight, transposed, output_mask)


@formula(*named("convolution_backward_overrideable"), op="conv_backward")
def convolution_backward_overrideable(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, g*i, *n], weight[o, i, *k] -> out[b, g*i, *n], out_weight[o, i, *k], out_bias[o]: as convolution_backward."""
    return _gradients(grad_output, input, weight, transposed, output_mask)


@formula(*named("_slow_conv2d_backward"), op="conv_backward")
def slow_conv_backward(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    output_mask: Sequence[bool] = ALL,
    *,
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, i, *n], weight[o, i, *k] -> out[b, i, *n], out_weight[o, i, *k], out_bias[o]: as convolution_backward."""
    return _gradients(grad_output, input, weight, False, output_mask)


@formula(*named("mps_convolution_backward"), op="conv_backward")
def mps_convolution_backward(
    input: Spec,
    grad_output: Spec,
    weight: Spec,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """x[b, g*i, *n], grad[b, o, *m], weight[o, i, *k] -> out[b, g*i, *n], out_weight[o, i, *k], out_bias[o]: as convolution_backward."""
    return _gradients(grad_output, input, weight, False, output_mask)


@formula(*named("mps_convolution_transpose_backward"), op="conv_backward")
def mps_convolution_transpose_backward(
    input: Spec,
    grad_output: Spec,
    weight: Spec,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """x[b, i, *n], grad[b, g*o, *m], weight[i, o, *k] -> out[b, i, *n], out_weight[i, o, *k]: as convolution_backward."""
    return _gradients(grad_output, input, weight, True, (*output_mask, False))


def _gradients(grad: Spec, input: Spec, weight: Spec, transposed: bool, mask: Sequence[bool]) -> Cost:
    to_input, to_weight, to_bias = mask
    batch, _, *places = input if transposed else grad
    return summed(
        when(to_input, (conv if transposed else conv_transpose)(grad, weight, out=input)),
        when(to_weight, contraction(batch * math.prod(places), weight.numel())),
        when(to_bias, Cost(adds=max(grad.numel() - grad[1], 0))),
    )
