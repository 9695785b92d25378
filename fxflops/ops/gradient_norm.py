"""Gradients of normalizations, the mean's and the deviation's included; both are taken as the forward saved them.

With X = (x - mean) / std and G = grad * weight: (G - mean(G) - X * mean(G * X)) / std, each mean over what one mean of
the forward is over (https://arxiv.org/abs/1502.03167, https://arxiv.org/abs/1607.06450); the weight's is the sum of
grad * X, the bias's that of grad. Only the gradients asked for are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records import Cost, Spec
from ._cost import rows_of, summed, times, when
from ._registry import formula
from ._spellings import named


@formula(*named("native_batch_norm_backward", "batch_norm_backward"))
def batch_norm_backward(
    grad_out: Spec,
    input: Spec,
    weight: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    save_mean: Spec | None,
    save_invstd: Spec | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[n, c, *], x[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: 9 per element and 1 per channel.

    The sums of grad and of grad * X, which are the weight's and the bias's, are also those of its means; the weight
    is multiplied by 1 / std. In eval out is grad * weight / std, and 1 / std takes 2 per channel.
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


@formula(*named("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), op="batch_norm_backward")
def batch_norm_backward_of_library(input: Spec, grad_output: Spec, weight: Spec, *, out: Any) -> Cost:
    """x[n, c, *], grad[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: as native_batch_norm_backward."""
    settings = None, None, None, None, True, 0.0, (True, True, True)
    return batch_norm_backward(grad_output, input, weight, *settings, out=out)


@formula(*named("batch_norm_backward_reduce"), op="batch_norm_backward")
def batch_norm_backward_reduce(
    grad_out: Spec,
    input: Spec,
    mean: Spec,
    invstd: Spec,
    weight: Spec | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
    *,
    out: Any,
) -> Cost:
    """grad[n, c, *], x[n, c, *] -> sum[c], sum_x[c], out_weight[c], out_bias[c]: sums of grad and of grad * (x - mean) per channel."""
    n, c = input.numel(), input[1]
    return Cost(muls=n + c * weight_g, adds=n + 2 * max(n - c, 0))


@formula(*named("batch_norm_backward_elemt"), op="batch_norm_backward")
def batch_norm_backward_elements(
    grad_out: Spec, input: Spec, mean: Spec, invstd: Spec, weight: Spec | None, *, out: Spec
) -> Cost:
    """grad[n, c, *], x[n, c, *], sum[c], sum_x[c] -> out[n, c, *]: (grad - mean - (x - mean_x) * a) * b: 5 per output.

    Per channel 2 means of the sums given, a = mean(grad * (x - mean_x)) / std / std and b = weight / std: 4 or 5.
    """
    n, c = out.numel(), out[1]
    return Cost(muls=2 * n + (2 + (weight is not None)) * c, adds=3 * n, others=2 * c)


@formula(*named("native_layer_norm_backward"))
def layer_norm_backward(
    grad_out: Spec,
    input: Spec,
    normalized_shape: Sequence[int],
    mean: Spec,
    rstd: Spec,
    weight: Spec | None,
    bias: Spec | None,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k], out_bias[k]: 12 per element, less 1 per weight and bias."""
    k = math.prod(normalized_shape)
    return _normalized_backward(input, k, k, weight, output_mask)


@formula(*named("native_group_norm_backward"))
def group_norm_backward(
    grad_out: Spec,
    input: Spec,
    mean: Spec,
    rstd: Spec,
    weight: Spec | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[n, c, *], x[n, c, *], weight[c] -> out[n, c, *], out_weight[c], out_bias[c]: as layer_norm_backward, rows being groups."""
    return _normalized_backward(input, C * HxW // group, C, weight, output_mask)


@formula(*named("_fused_rms_norm_backward"))
def rms_norm_backward(
    grad_out: Spec,
    input: Spec,
    normalized_shape: Sequence[int],
    rstd: Spec,
    weight: Spec | None,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k]: as layer_norm_backward without the means of x and grad."""
    k = math.prod(normalized_shape)
    return _normalized_backward(input, k, k, weight, (*output_mask, False), centered=False)


@formula(*named("_weight_norm_interface_backward"))
def weight_norm_backward(grad_w: Spec, saved_v: Spec, saved_g: Spec, saved_norms: Spec, *, out: Any) -> Cost:
    """grad[n, *], v[n, *], g[n], norms[n] -> out_v[n, *], out_g[n]: 5 per element and 3 per row, of w = g * v / norm.

    s = sum of grad * v; out_g = s / norm; out_v = g / norm * (grad - v * s / (norm * norm)).
    """
    n, rows = saved_v.numel(), saved_norms.numel()
    return Cost(muls=3 * n + rows, adds=max(n - rows, 0) + n, others=3 * rows)


def _normalized_backward(
    input: Spec, k: int, weights: int, weight: Spec | None, mask: Sequence[bool], centered: bool = True
) -> Cost:
    """Of rows of ``k`` elements; ``weights`` in the weight and in the bias."""
    n, rows = input.numel(), rows_of(input.numel(), k)
    to_input, to_weight, to_bias = mask
    means = times(1 + centered, Cost(adds=max(n - rows, 0), others=rows))
    return summed(
        when(to_input or to_weight, Cost(muls=n, adds=n * centered)),
        when(to_input, means.plus(Cost(muls=(3 + (weight is not None)) * n, adds=(1 + centered) * n))),
        when(to_weight, Cost(muls=n, adds=max(n - weights, 0))),
        when(to_bias, Cost(adds=max(n - weights, 0))),
    )
