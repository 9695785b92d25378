"""Multi-scale deformable attention: bilinear samples of feature maps, weighted and summed.

The ops count like the reference code with ``F.grid_sample``, ``ms_deform_attn_core_pytorch`` in ``models/ops`` of
https://github.com/fundamentalvision/Deformable-DETR, which mmcv and transformers also contain. Paper:
https://arxiv.org/abs/2010.04159, equation 3.
"""

from __future__ import annotations

import math
from typing import Any

from ._extend import Cost, Spec, added_up, summed
from ._libraries import gradients_of, library
from .resample import grid_sample, grid_sample_backward

NAMES = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights", "im2col_step")
"""The arguments of the extension's function, which has no signature."""
MMCV = "mmcv.ops.multi_scale_deform_attn:MultiScaleDeformableAttnFunction.apply"
EXTENSIONS = "MultiScaleDeformableAttention:ms_deform_attn_forward", "mmcv._ext:ms_deform_attn_forward"


def result(value: Spec, sampling_locations: Spec) -> Spec:
    """out[b, q, h * d]."""
    return Spec((*sampling_locations[:2], value[-2] * value[-1]), value.dtype)


def sampled(value: Spec, locations: Spec) -> tuple[Spec, Spec]:
    """Return the specs of the samples, [b * h, d, q, levels * points], and of the grid of their locations."""
    b, q, h, levels, points, _ = locations
    return Spec((b * h, value[-1], q, levels * points)), Spec((b * h, q, levels * points, 2))


@library(*EXTENSIONS, op="deformable_attention", result=result, names=NAMES)
@library(MMCV, op="deformable_attention", result=result)
def deformable_attention(*, value: Spec, sampling_locations: Spec, out: Any) -> Cost:
    """value[b, s, h, d], locations[b, q, h, l, p, 2], weights[b, q, h, l, p] -> out[b, q, hd]: bilinear samples of 4 taps each, and 1 multiply-accumulate per sampled element."""
    samples, grid = sampled(value, sampling_locations)
    outputs = math.prod(sampling_locations[:3]) * value[-1]
    places = Cost(muls=sampling_locations.numel(), adds=sampling_locations.numel())  # 2 * x - 1
    return summed(places, grid_sample(samples, grid, out=samples), added_up(samples.numel(), outputs))


@deformable_attention.backward(*gradients_of(MMCV), op="deformable_attention_backward")
def deformable_attention_backward(*, value: Spec, sampling_locations: Spec, out: Any) -> Cost:
    """grad[b, q, hd], value[b, s, h, d], locations[b, q, h, l, p, 2] -> out_value, out_locations, out_weights: the gradients of samples, weights and locations."""
    samples, grid = sampled(value, sampling_locations)
    n, weights = samples.numel(), sampling_locations.numel() // 2
    return summed(
        Cost(muls=n),  # samples
        added_up(n, weights),  # weights
        grid_sample_backward(grad_output=samples, grid=grid, out=None),
        Cost(muls=sampling_locations.numel()),  # places
    )


@library(
    "MultiScaleDeformableAttention:ms_deform_attn_backward", "mmcv._ext:ms_deform_attn_backward",
    op="deformable_attention_backward", names=(*NAMES[:5], "grad_output", "im2col_step"),
    result=lambda value, sampling_locations, attention_weights: tuple(
        Spec(each, each.dtype) for each in (value, sampling_locations, attention_weights)
    ),
)  # fmt: skip
def extension_backward(*, value: Spec, sampling_locations: Spec, out: Any) -> Cost:
    """grad[b, q, hd], value[b, s, h, d], locations[b, q, h, l, p, 2] -> out_value, out_locations, out_weights: counted like deformable_attention_backward."""
    return deformable_attention_backward(value=value, sampling_locations=sampling_locations, out=out)
