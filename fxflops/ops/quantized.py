"""Quantization, and arithmetic on quantized tensors: dequantize, compute, quantize again.

Quantizing, q = clamp(round(x / scale) + zero point), takes 4 operations per element. Dequantizing, (q - zero point) * scale, takes 2.
The count is the same if a library uses integer arithmetic or lookup tables instead. Converting between precisions costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from ._extend import QUANTIZED, Cost, Spec, formula, named, specs_in, times, zero
from .activation import activation, sloped_relu
from .elementwise import add, pointwise
from .norm import normalized
from .softmax import softmax

QUANTIZE = Cost(adds=1, others=3)
DEQUANTIZE = Cost(muls=1, adds=1)
CHOOSE = Cost(adds=2, others=6)
"""Scale and zero point of a range: clamp both ends to 0, divide their difference by the number of steps, then
clamp(round(smallest - min / scale))."""


@formula(*named("quantize_per_tensor", "quantize_per_channel"))
def quantize(input: Any, *, out: Any) -> Cost:
    """x[*] -> out[*]: clamp(round(x / scale) + zero point): 4 per output."""
    return times(sum(spec.numel() for spec in specs_in(out)), QUANTIZE)


@formula(*named("quantize_per_tensor_dynamic"), op="quantize")
def quantize_dynamic(input: Spec, *, out: Spec) -> Cost:
    """x[n] -> out[n]: 2(n - 1) compares for the range, 8 for scale and zero point, plus the cost of quantize."""
    return choose_qparams(input, out=None).plus(quantize(input, out=out))


@formula(*named("_choose_qparams_per_tensor"))
def choose_qparams(input: Spec, *, out: Any) -> Cost:
    """x[n] -> scale, zero_point: 2(n - 1) compares for the range, 8 for scale and zero point."""
    return CHOOSE.plus(Cost(others=2 * max(input.numel() - 1, 0)))


@formula(*named("dequantize"))
def dequantize(input: Any, *, out: Any) -> Cost:
    """q[*] -> out[*]: 1 subtraction and 1 multiply per output; nothing if the input is not quantized."""
    return times(sum(spec.numel() for spec in specs_in(input) if spec.dtype in QUANTIZED), DEQUANTIZE)


@formula("quantized::add", "quantized::add_out", "_quantized::add", "onednn::qadd", op="add")
@formula("quantized::mul", "quantized::mul_out", "onednn::qmul", op="mul")
@formula("quantized::add_scalar", "quantized::add_scalar_out", op="add")
@formula("quantized::mul_scalar", "quantized::mul_scalar_out", op="mul")
def arithmetic(*args: Any, out: Spec, **kwargs: Any) -> Cost:
    """a[*], b[*] -> out[*]: 1 per output, plus 2 per element to dequantize and 4 per output to quantize."""
    operands = tuple(specs_in((*args, *kwargs.values())))[:2]
    return _requantized(operands, pointwise(out=out), out)


@formula("quantized::add_relu", "quantized::add_relu_out", "onednn::qadd_relu", op="add")
@formula("quantized::mul_relu", "quantized::mul_relu_out", op="mul")
@formula("quantized::add_scalar_relu", "quantized::add_scalar_relu_out", op="add")
@formula("quantized::mul_scalar_relu", "quantized::mul_scalar_relu_out", op="mul")
def arithmetic_relu(*args: Any, out: Spec, **kwargs: Any) -> Cost:
    """a[*], b[*] -> out[*]: counted like quantized::add, plus 1 per output for the relu."""
    return arithmetic(*args, out=out, **kwargs).plus(pointwise(out=out))


@formula("aten::_add_relu", op="add")
def add_relu(input: Spec, other: Any, alpha: float = 1, *, out: Spec) -> Cost:
    """x[*] + alpha * y[*] -> out[*]: counted like add, plus 1 compare per output for the relu."""
    return add(input, other, alpha, out=out).plus(pointwise(out=out))


@formula("quantized::cat", "quantized::cat_out")
def cat(qx: Any, *, out: Spec) -> Cost:
    """q[t][*, n] -> out[*, n]: 6 per output to dequantize and quantize, because the scales may differ."""
    return _requantized(qx, Cost(), out)


@formula("quantized::cat_relu", "quantized::cat_relu_out", op="cat")
def cat_relu(qx: Any, *, out: Spec) -> Cost:
    """q[t][*, n] -> out[*, n]: counted like quantized::cat, plus 1 per output for the relu."""
    return _requantized(qx, pointwise(out=out), out)


@formula("quantized::sigmoid", op="sigmoid")
@formula("quantized::hardswish", op="hardswish")
@formula("quantized::elu", op="elu")
@formula("quantized::celu", op="celu")
def activation_quantized(input: Spec, *, out: Spec) -> Cost:
    """q[*] -> out[*]: 7 per output: 1 for the activation, 2 to dequantize and 4 to quantize."""
    return _requantized(input, activation(input, out=out), out)


@formula("quantized::leaky_relu", op="leaky_relu")
@formula("quantized::prelu", op="prelu")
def sloped_relu_quantized(qx: Spec, *, out: Spec) -> Cost:
    """q[*] -> out[*]: counted like leaky_relu, plus 2 per element to dequantize and 4 per output to quantize."""
    return _requantized(qx, sloped_relu(qx, out=out), out)


for _name in ("relu6", "clamp", "threshold"):
    formula(f"quantized::{_name}", op=_name)(pointwise)


@formula("quantized::softmax", op="softmax")
def softmax_quantized(qx: Spec, dim: int, *, out: Spec) -> Cost:
    """q[*, k] -> out[*, k]: counted like softmax, plus 2 per element to dequantize and 4 per output to quantize."""
    return _requantized(qx, softmax(qx, dim, out=out), out)


@formula("quantized::layer_norm", op="layer_norm")
@formula("quantized::group_norm", op="group_norm")
@formula("quantized::instance_norm", op="instance_norm")
@formula(*(f"quantized::batch_norm{d}" for d in ("", "1d", "2d", "3d")), op="batch_norm")
def norm_quantized(input: Spec, *, weight: Any = None, bias: Any = None, out: Spec) -> Cost:
    """q[*] -> out[*]: counted like the norm of floats, plus 2 per element to dequantize and 4 per output to quantize."""
    return _requantized(input, normalized(out, weight, bias), out)


@formula(*(f"quantized::batch_norm{d}_relu" for d in ("", "1d", "2d", "3d")), op="batch_norm")
def batch_norm_relu(input: Spec, *, weight: Any = None, bias: Any = None, out: Spec) -> Cost:
    """q[n, c, *] -> out[n, c, *]: counted like quantized::batch_norm, plus 1 per output for the relu."""
    return norm_quantized(input, weight=weight, bias=bias, out=out).plus(pointwise(out=out))


zero(
    "move",
    *named("int_repr", "_make_per_tensor_quantized_tensor", "_make_per_channel_quantized_tensor"),
    *("quantization::_Bfloat16QuantizedToFloat", "quantization::_FloatToBfloat16Quantized"),
    op="int_repr",
)
zero("move", "quantized::dropout", op="dropout")


def is_coded(spec: Spec) -> bool:
    """Return True for integers that represent real numbers."""
    return spec.dtype in QUANTIZED or spec.dtype in (torch.int8, torch.uint8)


def _requantized(inputs: Any, cost: Cost, out: Spec) -> Cost:
    """Return ``cost``, plus the cost of dequantizing quantized inputs and of quantizing a quantized result."""
    elements = sum(spec.numel() for spec in specs_in(inputs) if is_coded(spec))
    return times(elements, DEQUANTIZE).plus(cost).plus(times(out.numel() if is_coded(out) else 0, QUANTIZE))
