"""Linear and bilinear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from ._extend import (
    ANY,
    SPARSE,
    Cost,
    Spec,
    Specs,
    Strided,
    contraction,
    fits,
    formula,
    is_one,
    lies_in,
    named,
    summed,
    when,
)
from .matmul import sparse


@formula(nn.Linear, *named("linear", "mkldnn_linear"))
def linear(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: i multiplies and i-1 adds per output, plus 1 add with a bias."""
    if weight.layout in SPARSE:
        return sparse(weight, input.numel() // weight[-1], out).plus(Cost(adds=out.numel() * (bias is not None)))
    return contraction(weight[-1], out.numel(), bias is not None)


def folded(tensors: Sequence[Strided], out: Spec, input: Spec, weight: Spec, bias: Spec | None = None) -> Specs | None:
    """Return the product, and its sum with the bias, if the input is neither a matrix nor contiguous: torch then adds the bias separately.

    Return None if the input's leading dims cannot be viewed as one dim. In this case, torch's choice depends on whether the weight
    requires a gradient.
    """
    sizes, strides = tensors[0]
    if len(sizes) == 2 or (input.numel() and lies_in(sizes, strides, range(len(sizes)))):
        return ()
    if len(sizes) < 2 or not input.numel() or not is_one(sizes[:-1], strides):
        return None
    return () if bias is None else (out, out)


@linear.shape(nn.Linear, F.linear, layout=ANY, alive_at_peak=folded)
def linear_shape(input: Spec, weight: Spec, bias: Spec | None = None) -> Spec | None:
    """input[*, i], weight[o, i] -> out[*, o]."""
    if input.dtype is not weight.dtype or weight.ndim != 2 or not input.ndim or input[-1] != weight[1]:
        return None
    fit = input.dtype.is_floating_point and fits(bias, weight[0], input)
    return Spec((*input[:-1], weight[0]), input.dtype) if fit else None


@linear.backward(*named("linear_backward", "mkldnn_linear_backward"))
def linear_backward(input: Spec, grad_output: Spec, weight: Spec, output_mask: Sequence[bool], *, out: Any) -> Cost:
    """x[n, i], grad[n, o], weight[o, i] -> out[n, i], out_weight[o, i], out_bias[o]: o multiply-adds per element of out, and n per element of out_weight."""
    to_input, to_weight, to_bias = output_mask
    rows = math.prod(grad_output[:-1])
    return summed(
        when(to_input, contraction(weight[0], rows * weight[1])),
        when(to_weight, contraction(rows, weight.numel())),
        when(to_bias, Cost(adds=max(rows - 1, 0) * weight[0])),
    )


@linear.backward(*named("mkldnn_linear_backward_input"), op="linear_backward")
def linear_backward_input(input_size: Any, grad_output: Spec, weight: Spec, *, out: Spec) -> Cost:
    """grad[n, o], weight[o, i] -> out[n, i]: o multiplies and o-1 adds per output."""
    return linear_backward(out, grad_output, weight, (True, False, False), out=out)


@linear.backward(*named("mkldnn_linear_backward_weights"), op="linear_backward")
def linear_backward_weights(grad_output: Spec, input: Spec, weight: Spec, bias_defined: bool, *, out: Any) -> Cost:
    """grad[n, o], x[n, i] -> out_weight[o, i], out_bias[o]: n multiplies and n-1 adds per element of out_weight; n-1 adds per element of out_bias."""
    return linear_backward(input, grad_output, weight, (False, True, bias_defined), out=out)


@formula(nn.Bilinear, *named("bilinear"))
def bilinear(input1: Spec, input2: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input1[*, i], weight[o, i, j], input2[*, j] -> out[*, o]: per output, j sums of i products, then 1 sum of j products."""
    _, i, j = weight
    return contraction(i, out.numel() * j).plus(contraction(j, out.numel(), bias is not None))
