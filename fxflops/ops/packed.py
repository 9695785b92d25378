"""Quantized products and convolutions, mostly with a packed weight. A formula gets the packed weight as ``(weight, bias or None)``.

An integer product counts like a float product. Scaling, rounding, shifting by the zero point and clamping the sums take 4 per
output. Corrections for zero points are not counted.
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, formula, times, zero
from .conv import conv
from .conv_transpose import conv_transpose
from .linear import linear
from .matmul import matmul
from .pool import max_pool1d, max_pool2d
from .quantized import DEQUANTIZE, quantize, quantize_dynamic

REQUANTIZE = Cost(muls=1, adds=1, others=2)
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
SPACES = ("quantized", "_quantized")


@formula(*(f"{space}::linear" for space in SPACES), op="linear")
def linear_packed(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: counted like linear, plus 4 per output to quantize."""
    return linear(X, **unpacked(packed), out=out).plus(times(out.numel(), REQUANTIZE))


@formula("quantized::linear_relu", "quantized::linear_leaky_relu", "quantized::linear_tanh", op="linear")
def linear_activated(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: counted like quantized::linear, plus 1 per output for the activation, even leaky_relu."""
    return linear_packed(X, packed, out=out).plus(Cost(others=out.numel()))


@formula(*(f"{space}::linear_dynamic" for space in SPACES), op="linear")
def linear_dynamic(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: the cost of quantize_per_tensor_dynamic and of linear, plus 1 multiply by the scale per output."""
    return dynamic(X, linear(X, **unpacked(packed), out=out), out)


@formula("quantized::linear_relu_dynamic", op="linear")
def linear_relu_dynamic(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: counted like quantized::linear_dynamic, plus 1 per output for the relu."""
    return linear_dynamic(X, packed, out=out).plus(Cost(others=out.numel()))


@formula("quantized::linear_dynamic_fp16", op="linear")
def linear_half(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: counted like linear."""
    return linear(X, **unpacked(packed), out=out)


@formula("quantized::linear_relu_dynamic_fp16", op="linear")
def linear_relu_half(X: Spec, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: counted like linear, plus 1 per output for the relu."""
    return linear_half(X, packed, out=out).plus(Cost(others=out.numel()))


formula("quantized::linear_dynamic_fp16_unpacked_weight", op="linear")(linear)


@formula(
    "quantized::linear_with_input_q_dq_qweight_dq_output_fp32",
    "quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32",
    op="linear",
)
def linear_between_floats(X: Spec, scale: float, zero_point: int, packed: Any, *, out: Spec) -> Cost:
    """X[*, i], packed weight[o, i] -> out[*, o]: 4 per element of X to quantize it, the cost of linear, and 1 multiply by the scale per output; a relu is not counted."""
    return quantize(X, out=X).plus(linear(X, **unpacked(packed), out=out)).plus(Cost(muls=out.numel()))


@formula(*(f"{space}::{name}" for space in SPACES for name in CONVOLUTIONS), op="conv")
def conv_packed(qx: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, g*i, *n], packed weight[o, i, *k] -> out[*, o, *m]: counted like conv, plus 4 per output to quantize."""
    return conv(qx, **unpacked(packed), out=out).plus(times(out.numel(), REQUANTIZE))


@formula(*(f"{space}::{name}_relu" for space in SPACES for name in CONVOLUTIONS), op="conv")
def conv_relu_packed(qx: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, g*i, *n], packed weight[o, i, *k] -> out[*, o, *m]: counted like quantized::conv2d, plus 1 per output for the relu."""
    return conv_packed(qx, packed, out=out).plus(Cost(others=out.numel()))


@formula(*(f"quantized::{name}_dynamic" for name in CONVOLUTIONS), op="conv")
def conv_dynamic(qx: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, g*i, *n], packed weight[o, i, *k] -> out[*, o, *m]: the cost of quantize_per_tensor_dynamic and of conv, plus 1 multiply by the scale per output."""
    return dynamic(qx, conv(qx, **unpacked(packed), out=out), out)


@formula("quantized::conv2d_add", op="conv")
def conv_add(qx: Spec, qaccum: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, g*i, *n], packed weight[o, i, *k], y[*] -> out[*, o, *m]: counted like quantized::conv2d, plus 3 per output to dequantize y and add it."""
    return conv_packed(qx, packed, out=out).plus(times(out.numel(), DEQUANTIZE.plus(Cost(adds=1))))


@formula("quantized::conv2d_add_relu", op="conv")
def conv_add_relu(qx: Spec, qaccum: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, g*i, *n], packed weight[o, i, *k], y[*] -> out[*, o, *m]: counted like quantized::conv2d_add, plus 1 per output for the relu."""
    return conv_add(qx, qaccum, packed, out=out).plus(Cost(others=out.numel()))


@formula(*(f"{space}::{name}" for space in SPACES for name in TRANSPOSED), op="conv_transpose")
def conv_transpose_packed(qx: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, i, *n], packed weight[i, o, *k] -> out[*, g*o, *m]: counted like conv_transpose, plus 4 per output to quantize."""
    return conv_transpose(qx, **unpacked(packed), out=out).plus(times(out.numel(), REQUANTIZE))


@formula(*(f"quantized::{name}_dynamic" for name in TRANSPOSED), op="conv_transpose")
def conv_transpose_dynamic(qx: Spec, packed: Any, *, out: Spec) -> Cost:
    """qx[*, i, *n], packed weight[i, o, *k] -> out[*, g*o, *m]: counted like quantized::conv2d_dynamic."""
    return dynamic(qx, conv_transpose(qx, **unpacked(packed), out=out), out)


@formula("quantized::matmul", op="matmul")
def matmul_quantized(qa: Spec, qb: Spec, *, out: Spec) -> Cost:
    """qa[*, m, k] @ qb[*, k, n] -> out[*, m, n]: counted like matmul, plus 4 per output to quantize."""
    return matmul(qa, qb, out=out).plus(times(out.numel(), REQUANTIZE))


formula("quantized::int4mm_packed_weight_cpu", op="matmul")(matmul)
formula("quantized::max_pool1d", op="max_pool")(max_pool1d)
formula("quantized::max_pool2d", op="max_pool")(max_pool2d)


def dynamic(input: Spec, product: Cost, out: Spec) -> Cost:
    """Return the cost of quantizing the input, plus ``product``, plus the cost of scaling the results."""
    return quantize_dynamic(input, out=input).plus(product).plus(Cost(muls=out.numel()))


def unpacked(packed: Any) -> dict[str, Any]:
    """Return the weight and bias of a packed weight."""
    if isinstance(packed, Spec) or not isinstance(packed, tuple):
        raise TypeError(f"cannot unpack weight and bias from {packed!r}")
    return {"weight": packed[0], "bias": packed[1]}


for _space, _names in {
    "aten": (
        *("_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu", "_dyn_quant_pack_4bit_weight"),
        *("fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix"),
    ),
    "quantized": (
        *(
            f"{name}_{what}"
            for name in ("linear", "conv", "conv1d", "conv2d", "conv3d")
            for what in ("prepack", "unpack")
        ),
        *(f"conv_transpose{d}d_{what}" for d in (1, 2, 3) for what in ("prepack", "unpack")),
        *("linear_prepack_fp16", "linear_prepack_legacy", "linear_prepack_fp16_legacy", "linear_unpack_fp16"),
        *("embedding_bag_prepack", "embedding_bag_unpack", "make_quantized_cell_params"),
        *("make_quantized_cell_params_dynamic", "make_quantized_cell_params_fp16"),
    ),
    "_quantized": (
        *("linear_prepack", "linear_prepack_fp16", "linear_prepack_legacy", "linear_prepack_fp16_legacy"),
        *("conv2d_prepack", "conv3d_prepack", *(f"conv_transpose{d}d_prepack" for d in (1, 2, 3))),
        "wrapped_fbgemm_pack_gemm_matrix_fp16",
    ),
    "onednn": ("linear_prepack_fp16", "qlinear_prepack", "qconv_prepack"),
    "mkldnn": (
        *("_reorder_convolution_transpose_weight", "_reorder_convolution_weight", "_reorder_linear_weight"),
        "_reorder_mkldnn_rnn_layer_weight",
    ),
    "mkl": ("_mkl_reorder_linear_weight",),
    "mkldnn_prepacked": ("conv2d_prepack",),
}.items():
    zero("move", *(f"{_space}::{_name}" for _name in _names))
zero(
    "query",
    *(
        f"quantized::{conv}_{setting}"
        for conv in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
        for setting in ("stride", "padding", "dilation", "groups", "transpose", "output_padding")
    ),
    "quantized::conv2d_unpack_sizes",
)
