"""Normalizations: per element the subtraction of the mean, the division by the deviation, the weight and the bias.

Computing the mean and the deviation is NOT counted, in training neither, nor for layer_norm, which computes them always:
torch_flops counts this way (https://github.com/zugexiaodui/torch_flops), and its published totals rest on it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Cost, Spec
from ._cost import first, times
from ._registry import formula
from ._spellings import named


@formula(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, F.batch_norm, op="batch_norm")
@formula(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, F.instance_norm, op="instance_norm")
def batch_norm(
    input: Spec,
    running_mean: Spec | None = None,
    running_var: Spec | None = None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    *,
    out: Spec,
) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: 2 per output, 1 each for weight and bias."""
    return _normalized(out, weight, bias)


@formula(
    torch.batch_norm,
    *named("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "quantized_batch_norm", "batch_norm_elemt"),
    *named("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    *named("_batch_norm_impl_index", "_batch_norm_with_update", "_batch_norm_with_update_functional"),
    *named("_batch_norm_no_update"),
    "aten::batch_norm",
    op="batch_norm",
)
def batch_norm_native(input: Spec, weight: Spec | None = None, bias: Spec | None = None, *, out: Any) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: as batch_norm."""
    return _normalized(out, weight, bias)


@formula(torch.instance_norm, "aten::instance_norm", op="instance_norm")
def instance_norm_native(input: Spec, weight: Spec | None = None, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: as instance_norm."""
    return _normalized(out, weight, bias)


@formula(nn.LayerNorm, *named("layer_norm", "native_layer_norm"))
def layer_norm(
    input: Spec, normalized_shape: Any, weight: Spec | None = None, bias: Spec | None = None, *, out: Any
) -> Cost:
    """input[*, k], weight[k], bias[k] -> out[*, k]: 2 per output, 1 each for weight and bias."""
    return _normalized(out, weight, bias)


@formula(nn.GroupNorm, *named("group_norm"))
def group_norm(
    input: Spec, num_groups: int, weight: Spec | None = None, bias: Spec | None = None, *, out: Spec
) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: 2 per output, 1 each for weight and bias."""
    return _normalized(out, weight, bias)


@formula(*named("native_group_norm"), op="group_norm")
def group_norm_native(input: Spec, weight: Spec | None = None, bias: Spec | None = None, *, out: Any) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: as group_norm."""
    return _normalized(out, weight, bias)


@formula(nn.RMSNorm, *named("rms_norm", "_fused_rms_norm"))
def rms_norm(input: Spec, normalized_shape: Any, weight: Spec | None = None, *, out: Any) -> Cost:
    """input[*, k], weight[k] -> out[*, k]: 1 divide per output, 1 multiply by the weight."""
    return times(first(out).numel(), Cost(muls=0 if weight is None else 1, others=1))


@formula(nn.LocalResponseNorm, *named("local_response_norm"))
def local_response_norm(input: Spec, size: int, *, out: Spec) -> Cost:
    """input[n, c, *] -> out[n, c, *]: size+4 per output.

    x / (k + alpha/size * sum of size squares) ** beta: 2 multiplies, size adds, 1 power, 1 divide.
    """
    return Cost(muls=2 * out.numel(), adds=size * out.numel(), others=2 * out.numel())


def _normalized(out: Any, weight: Spec | None, bias: Spec | None) -> Cost:
    each = Cost(muls=0 if weight is None else 1, adds=1 if bias is None else 2, others=1)
    return times(first(out).numel(), each)
