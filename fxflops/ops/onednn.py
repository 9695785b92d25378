"""oneDNN's and MKL's linear layers and convolutions, quantized or not, with weights reordered for these libraries.

The order of dims in a reordered weight is internal to the library, so only the weight's number of elements is used.
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, contraction, formula, times, zero
from .batch_norm import batch_norm
from .conv_transpose import conv_transpose
from .packed import REQUANTIZE
from .quantized import DEQUANTIZE, QUANTIZE, is_coded


@formula("onednn::qlinear_pointwise", op="linear")
def qlinear(qx: Spec, *, bias: Spec | None, post_op_name: str, out: Spec) -> Cost:
    """qx[*, i], qw -> out[*, o]: counted like linear, plus 1 per output for a fused op, and 4 to quantize the output or 1 to scale it."""
    return _followed(contraction(qx[-1], out.numel(), bias is not None), post_op_name, out)


@formula("onednn::qlinear_pointwise.binary", "onednn::qlinear_pointwise.binary_tensor", op="linear")
def qlinear_binary(qx: Spec, *, other: Spec | None, bias: Spec | None, unary_post_op: str, out: Spec) -> Cost:
    """qx[*, i], qw, y[*, o] -> out[*, o]: counted like onednn::qlinear_pointwise, plus 1 per output to add y, 2 more if y is quantized."""
    return _followed(contraction(qx[-1], out.numel(), bias is not None).plus(_joined(other, out)), unary_post_op, out)


@formula(*(f"onednn::qconv{d}_pointwise" for d in ("", "1d", "2d", "3d")), op="conv")
def qconv(*, qw: Spec, bias: Spec | None, attr: str, out: Spec) -> Cost:
    """qx[n, g*i, *], qw -> out[n, o, *]: counted like conv, plus 1 per output for a fused op, and 4 to quantize the output or 1 to scale it."""
    return _followed(_windows(qw, bias, out), attr, out)


@formula("onednn::qconv2d_pointwise.binary", "onednn::qconv2d_pointwise.binary_tensor", op="conv")
def qconv_binary(*, qw: Spec, qaccum: Spec, bias: Spec | None, unary_attr: str | None, out: Spec) -> Cost:
    """qx[n, g*i, *], qw, y[n, o, *] -> out[n, o, *]: counted like onednn::qconv_pointwise, plus 1 per output to add y, 2 more if y is quantized."""
    return _followed(_windows(qw, bias, out).plus(_joined(qaccum, out)), unary_attr, out)


@formula("mkldnn::_linear_pointwise", op="linear")
def linear_pointwise(input: Spec, weight: Spec, bias: Spec | None, attr: str, *, out: Spec) -> Cost:
    """input[*, i], weight -> out[*, o]: counted like linear, plus 1 per output for a fused op."""
    return _followed(contraction(input[-1], out.numel(), bias is not None), attr, out, scaled=False)


@formula("mkldnn::_linear_pointwise.binary", op="linear")
def linear_binary(input: Spec, other: Spec, weight: Spec, bias: Spec | None, attr: str, *, out: Spec) -> Cost:
    """input[*, i], weight, y[*, o] -> out[*, o]: counted like linear, plus 1 per output to combine the output with y."""
    return linear_pointwise(input, weight, bias, attr, out=out)


@formula("mkl::_mkl_linear", op="linear")
def mkl_linear(input: Spec, packed: Any, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: counted like linear."""
    return contraction(weight[-1], out.numel(), bias is not None)


@formula("mkldnn::_convolution_pointwise", op="conv")
def conv_pointwise(input: Spec, weight: Spec, bias: Spec | None, *rest: Any, out: Spec) -> Cost:
    """input[n, g*i, *], weight -> out[n, o, *]: counted like conv, plus 1 per output for a fused op."""
    return _followed(_windows(weight, bias, out), rest[4], out, scaled=False)


@formula("mkldnn::_convolution_pointwise.binary", op="conv")
def conv_binary(input: Spec, other: Spec, weight: Spec, bias: Spec | None, *rest: Any, out: Spec) -> Cost:
    """input[n, g*i, *], weight, y[n, o, *] -> out[n, o, *]: counted like conv, plus 1 per output to combine the output with y, and 1 for a fused op."""
    unary = rest[6] if len(rest) > 6 else None
    return _followed(_windows(weight, bias, out).plus(_joined(other, out)), unary, out, scaled=False)


@formula("mkldnn::_convolution_pointwise_", op="conv")
def conv_binary_in_place(other: Spec, input: Spec, weight: Spec, bias: Spec | None, *rest: Any, out: Spec) -> Cost:
    """y[n, o, *], input[n, g*i, *], weight -> y[n, o, *]: counted like mkldnn::_convolution_pointwise.binary."""
    return conv_binary(input, other, weight, bias, *rest, out=out)


@formula("mkldnn::_convolution_transpose_pointwise", op="conv_transpose")
def conv_transpose_pointwise(input: Spec, weight: Spec, bias: Spec | None, *rest: Any, out: Spec) -> Cost:
    """input[n, i, *], weight -> out[n, o, *]: counted like conv_transpose, plus 1 per output for a fused op."""
    taps = Spec((input[1], weight.numel() // input[1]))
    return _followed(conv_transpose(input, taps, bias=bias, out=out), rest[5], out, scaled=False)


@formula("onednn::qbatch_norm2d", op="batch_norm")
def qbatch_norm(qx: Spec, *, weight: Spec, bias: Spec, out: Spec) -> Cost:
    """qx[n, c, *] -> out[n, c, *]: counted like batch_norm, plus 2 per element to dequantize and 4 per output to quantize."""
    made = times(out.numel(), DEQUANTIZE.plus(QUANTIZE if is_coded(out) else Cost()))
    return batch_norm(qx, weight=weight, bias=bias, out=out).plus(made)


def _windows(weight: Spec, bias: Spec | None, out: Spec) -> Cost:
    """Return the cost of multiplying each window by each output channel's weights."""
    return contraction(weight.numel() // out[1], out.numel(), bias is not None)


def _joined(other: Spec | None, out: Spec) -> Cost:
    if other is None:
        return Cost()
    return Cost(adds=out.numel()).plus(times(out.numel() if is_coded(other) else 0, DEQUANTIZE))


def _followed(cost: Cost, attr: str | None, out: Spec, scaled: bool = True) -> Cost:
    """Return ``cost``, plus the fused op named ``attr`` and, if ``scaled``, the conversion of sums to quantized or float numbers."""
    made = (REQUANTIZE if is_coded(out) else Cost(muls=1)) if scaled else Cost()
    return cost.plus(times(out.numel(), made.plus(Cost(others=0 if attr in (None, "", "none") else 1))))


zero(
    "query",
    *("mkldnn::_get_mkldnn_serialized_md", "mkldnn::_nbytes", "mkldnn::data_ptr"),
    *(f"mkldnn::_is_mkldnn_{what}_supported" for what in ("acl", "bf16", "fp16")),
    op="mkldnn_query",
)
