"""Linear layers and lookups with weights packed for FBGEMM, and products of low-bit weights with floats.

The order of dims in a packed weight is internal to the library, so sizes are read from inputs and results.
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, contraction, formula, named, times
from .embedding import embedding_bag_native
from .packed import REQUANTIZE, dynamic
from .quantized import DEQUANTIZE, QUANTIZE, quantize_dynamic


@formula("quantized::embedding_byte", "quantized::embedding_4bit", op="embedding")
def embedding_packed(packed: Any, indices: Spec, *, out: Spec) -> Cost:
    """packed weight[v, d], indices[*] -> out[*, d]: 2 per output to dequantize."""
    return times(out.numel(), DEQUANTIZE)


@formula(
    *("quantized::embedding_bag_byte", "quantized::embedding_bag_4bit"),
    *(f"quantized::embedding_bag_{bits}_rowwise_offsets" for bits in ("byte", "4bit", "2bit")),
    op="embedding_bag",
)
def embedding_bag_packed(
    packed: Any, indices: Spec, *, mode: int = 0, per_sample_weights: Any = None, out: Spec
) -> Cost:
    """packed weight[v, d], indices[n] -> out[bags, d]: counted like embedding_bag, plus 2 per element looked up to dequantize it."""
    rows = Spec((indices.numel(), out[-1]))
    bags = embedding_bag_native(rows, indices, mode=mode, per_sample_weights=per_sample_weights, out=out)
    return times(rows.numel(), DEQUANTIZE).plus(bags)


@formula(
    *named("fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation"),
    "_quantized::wrapped_fbgemm_linear_fp16_weight",
    "onednn::linear_dynamic_fp16",
    op="linear",
)
def linear_half_weight(input: Spec, packed: Any, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i], packed weight -> out[*, o]: counted like linear."""
    return contraction(input[-1], out.numel(), bias is not None)


@formula("onednn::linear_relu_dynamic_fp16", op="linear")
def linear_relu_half_weight(input: Spec, packed: Any, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, i], packed weight -> out[*, o]: counted like linear, plus 1 per output for the relu."""
    return linear_half_weight(input, packed, bias, out=out).plus(Cost(others=out.numel()))


@formula(*named("fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation"), op="linear")
def linear_int8_weight(input: Spec, weight: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: the cost of quantize_per_tensor_dynamic and of linear, plus 1 multiply per output."""
    return dynamic(input, contraction(weight[-1], out.numel(), bias is not None), out)


@formula(*named("_dyn_quant_matmul_4bit"), op="linear")
def linear_4bit(input: Spec, packed: Any, block_size: int, in_features: int, *, out: Spec) -> Cost:
    """input[*, i], packed weight -> out[*, o]: counted like fbgemm_linear_int8_weight; a bias packed with the weight is not counted."""
    return dynamic(input, contraction(in_features, out.numel()), out)


@formula(*named("_mixed_dtypes_linear"), op="linear")
def linear_mixed(
    input: Spec, weight: Spec, scale: Spec, *, bias: Any = None, activation: str | None = None, out: Spec
) -> Cost:
    """input[*, i], weight[i, o], scale[o] -> out[*, o]: counted like linear, plus per output 1 multiply by the scale and 1 for an activation."""
    each = Cost(muls=1, others=0 if activation in (None, "", "none") else 1)
    return contraction(input[-1], out.numel(), bias is not None).plus(times(out.numel(), each))


@formula(*named("fbgemm_linear_quantize_weight"), op="quantize")
def quantize_weight(input: Spec, *, out: Any) -> Cost:
    """x[*] -> out[*], offsets, scale, zero_point: counted like quantize_per_tensor_dynamic; sums for the zero point are not counted."""
    return quantize_dynamic(input, out=input)


@formula(*named("_saturate_weight_to_fp16"))
def saturate_weight_to_fp16(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: clamp to the range of fp16: 1 per output."""
    return Cost(others=out.numel())


@formula("aten::_wrapped_linear_prepack", "_quantized::_wrapped_linear_prepack", op="quantize")
def quantize_and_pack(weight: Spec, *, out: Spec) -> Cost:
    """weight[o, i] -> packed weight: 4 per element to quantize it."""
    return times(weight.numel(), QUANTIZE)


@formula(*("aten::_wrapped_quantized_linear_prepacked", "_quantized::_wrapped_quantized_linear_prepacked"), op="linear")
def linear_between_floats(input: Spec, *, out: Spec) -> Cost:
    """input[*, i], packed weight and bias -> out[*, o]: 4 per input element to quantize, the cost of linear, and per output 4 to quantize and 2 to dequantize."""
    quantized = times(input.numel(), QUANTIZE).plus(times(out.numel(), REQUANTIZE.plus(DEQUANTIZE)))
    return quantized.plus(contraction(input[-1], out.numel(), bias=True))


@formula("_quantized::wrapped_quantized_linear", op="linear")
def linear_all_quantized(input: Spec, x_scale: Spec, x_zero_point: Spec, weight: Spec, *, out: Spec) -> Cost:
    """input[*, i], weight[o, i], bias[o] -> out[*, o]: counted like _wrapped_quantized_linear_prepacked, plus 4 per weight element to quantize it."""
    return quantize_and_pack(weight, out=weight).plus(linear_between_floats(input, out=out))
