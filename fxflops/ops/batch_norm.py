"""Batch and instance norm, counted like the norms in norm.py: the forward excludes computing the mean and the deviation.

With X = (x - mean) / std, the input's gradient is (grad - mean(grad) - X * mean(grad * X)) * weight / std, where each mean is over a
channel: https://arxiv.org/abs/1502.03167. The weight's gradient is the sum of grad * X, and the bias's gradient is the sum of grad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from ._extend import KEPT, Cost, Spec, Specs, Strided, fits, formula, named, summed, when, zero
from .norm import normalized


@formula(
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *named("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "quantized_batch_norm"),
    *named("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    *named("_batch_norm_impl_index", "_batch_norm_with_update", "_batch_norm_with_update_functional"),
    *named("_batch_norm_no_update", "batch_norm_elemt"),
    op="batch_norm",
)
@formula(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, *named("instance_norm"), op="instance_norm")
def batch_norm(input: Spec, *, weight: Spec | None = None, bias: Spec | None = None, out: Any) -> Cost:
    """input[n, c, *], weight[c], bias[c] -> out[n, c, *]: 2 per output, plus 1 with a weight and 1 with a bias."""
    return normalized(out, weight, bias)


zero(
    "part of batch_norm: computing the mean and the deviation is not counted",
    *named("batch_norm_stats", "batch_norm_update_stats", "batch_norm_gather_stats"),
    *named("batch_norm_gather_stats_with_counts"),
    op="batch_norm_stats",
)


def batch_normed(input: Spec, training: bool, *weights: Spec | None) -> Spec | None:
    """x[n, c, *] -> out[n, c, *], or None if a weight has the wrong size or dtype, or if a channel has a single value in training."""
    if input.ndim < 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    if training and input.numel() == input[1]:
        return None
    return Spec(input, input.dtype) if all(fits(weight, input[1], input) for weight in weights) else None


def batch_moments(
    tensors: Sequence[Strided],
    out: Spec,
    input: Spec,
    running_mean: Spec | None = None,
    running_var: Spec | None = None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    training: bool = False,
    **kwargs: Any,
) -> Specs:
    """Return the result and, in training, the mean and deviation of each channel, which the kernel also returns."""
    channel = Spec((input[1],), out.dtype)
    return (out, channel, channel) if training or running_mean is None else ()


@batch_norm.shape(F.batch_norm, layout=KEPT, alive_at_peak=batch_moments)
def batch_norm_shape(
    input: Spec,
    running_mean: Spec | None,
    running_var: Spec | None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    training: bool = False,
) -> Spec | None:
    """x[n, c, *] -> out[n, c, *]."""
    if not training and (running_mean is None or running_var is None):
        return None
    return batch_normed(input, training, running_mean, running_var, weight, bias)


def batch_norm_of(*dims: int) -> Callable[..., Spec | None]:
    """Return the shape rule of a BatchNorm module whose input may have these numbers of dimensions."""

    def batch_norm_shape(
        input: Spec,
        num_features: int,
        running_mean: Spec | None = None,
        running_var: Spec | None = None,
        weight: Spec | None = None,
        bias: Spec | None = None,
        training: bool = False,
    ) -> Spec | None:
        """x[n, c, *] -> out[n, c, *]."""
        if input.ndim not in dims or input[1] != num_features:
            return None
        return batch_normed(input, training or running_mean is None, running_mean, running_var, weight, bias)

    return batch_norm_shape


batch_norm.shape(nn.BatchNorm1d, layout=KEPT, alive_at_peak=batch_moments)(batch_norm_of(2, 3))
batch_norm.shape(nn.BatchNorm2d, layout=KEPT, alive_at_peak=batch_moments)(batch_norm_of(4))
batch_norm.shape(nn.BatchNorm3d, layout=KEPT, alive_at_peak=batch_moments)(batch_norm_of(5))


@batch_norm.backward(*named("native_batch_norm_backward", "batch_norm_backward"))
def batch_norm_backward(
    grad_out: Spec,
    input: Spec,
    weight: Spec | None,
    *,
    train: bool = True,
    output_mask: Sequence[bool] = (True, True, True),
    out: Any,
) -> Cost:
    """grad[n, c, *], x[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: 9 per element and 1 per channel.

    The sums of grad * X and of grad are the gradients of weight and bias, and also give the means. The weight is multiplied by
    1 / std once per channel. In eval mode, out is grad * weight / std, and 1 / std takes 2 per channel.
    """
    n, c = input.numel(), input[1]
    to_input, to_weight, to_bias = output_mask
    centered = to_input and train
    sums = Cost(adds=max(n - c, 0))
    return summed(
        when(centered or to_weight, Cost(muls=2 * n, adds=n).plus(sums)),
        when(centered or to_bias, sums),
        when(centered, Cost(muls=n, adds=2 * n, others=2 * c)),
        when(to_input, Cost(muls=n + (c if weight is not None else 0))),
        when(not train and (to_input or to_weight), Cost(adds=c, others=c)),
    )


@batch_norm.backward(*named("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), op="batch_norm_backward")
def batch_norm_backward_of_library(input: Spec, grad_output: Spec, weight: Spec, *, out: Any) -> Cost:
    """x[n, c, *], grad[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: counted like native_batch_norm_backward."""
    return batch_norm_backward(grad_output, input, weight, out=out)


@batch_norm.backward(*named("batch_norm_backward_reduce"), op="batch_norm_backward")
def batch_norm_backward_reduce(*, input: Spec, weight_g: bool, out: Any) -> Cost:
    """grad[n, c, *], x[n, c, *] -> sum[c], sum_x[c], out_weight[c], out_bias[c]: sums of grad and of grad * (x - mean) per channel."""
    n, c = input.numel(), input[1]
    return Cost(muls=n + c * weight_g, adds=n + 2 * max(n - c, 0))


@batch_norm.backward(*named("batch_norm_backward_elemt"), op="batch_norm_backward")
def batch_norm_backward_elements(*, weight: Spec | None, out: Spec) -> Cost:
    """grad[n, c, *], x[n, c, *], sum[c], sum_x[c] -> out[n, c, *]: (grad - mean - (x - mean_x) * a) * b: 5 per output.

    Each channel takes 4 or 5 more: 2 means from the sums, a = mean(grad * (x - mean_x)) / std / std, and b = weight / std.
    """
    n, c = out.numel(), out[1]
    return Cost(muls=2 * n + (2 + (weight is not None)) * c, adds=3 * n, others=2 * c)
