"""Fake quantization: x is quantized and dequantized; in training, observers update the range.

https://docs.pytorch.org/docs/stable/generated/torch.fake_quantize_per_tensor_affine.html
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, first, formula, named, times
from .quantized import CHOOSE, DEQUANTIZE, QUANTIZE


@formula(
    *named("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"),
    *named("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"),
    *named("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"),
    *named("_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine"),
)
def fake_quantize(input: Spec, *, out: Any) -> Cost:
    """x[*] -> out[*]: 6 per output, to quantize and dequantize; the mask for the backward pass is not counted."""
    return times(input.numel(), QUANTIZE.plus(DEQUANTIZE))


@fake_quantize.backward(
    *named("_fake_quantize_learnable_per_tensor_affine_backward"),
    *named("_fake_quantize_learnable_per_channel_affine_backward"),
)
def fake_quantize_backward(grad: Spec, input: Spec, scale: Spec, *, out: Any) -> Cost:
    """grad[*], x[*], scale[c] -> out[*], out_scale[c], out_zero_point[c]: 7 per element, 2 sums and 4 operations per channel.

    v = x / scale is rounded, shifted by the zero point and compared with 2 bounds. Within the bounds, grad * (round(v) - v) is
    added to the scale's gradient. Outside, -grad * scale is added to the zero point's gradient. Both sums are multiplied by a
    factor. https://arxiv.org/abs/1902.08153
    """
    n, channels = first(out).numel(), scale.numel()
    sums = Cost(muls=3 * channels, adds=2 * max(n - channels, 0), others=channels)
    return times(n, Cost(muls=1, adds=2, others=4)).plus(sums)


@formula(
    *named("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"),
    *named("_fused_moving_avg_obs_fq_helper_functional"),
    op="fake_quantize",
)
def observed_fake_quantize(input: Spec, *, ch_axis: int, per_row_fake_quant: bool = False, out: Any) -> Cost:
    """x[*, c] -> out[*, c]: per channel, the range, 2 moving averages (3 each), 8 for scale and zero point; plus the cost of fake_quantize.

    Observer and quantizer are assumed to be on, because their flags are tensor values, which a formula cannot read.
    """
    channels = input[ch_axis] if per_row_fake_quant else 1
    chosen = times(channels, CHOOSE.plus(Cost(muls=2, adds=4)))
    return chosen.plus(Cost(others=2 * max(input.numel() - channels, 0))).plus(fake_quantize(input, out=out))
