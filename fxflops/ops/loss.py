"""Losses count their definition for each element, then the reduction: n-1 adds for a sum, and 1 more divide for a mean.

Definitions: https://docs.pytorch.org/docs/stable/nn.html#loss-functions. Of two branches, the more expensive one is
counted. The aten overloads take the reduction as a number.
A gradient is the derivative of each element times the incoming gradient. A mean first divides the incoming gradient once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import Cost, Spec, formula, named, rows_of, stores, summed, times, when
from .linear import linear, linear_backward
from .softmax import log_softmax, log_softmax_backward

Reduction = str | int
NUMBERS = {0: "none", 1: "mean", 2: "sum"}
CODES = {name: number for number, name in NUMBERS.items()}


@formula(nn.MSELoss, *named("mse_loss"))
def mse_loss(
    input: Spec, target: Spec, *, reduction: Reduction = "mean", weight: Spec | None = None, out: Spec
) -> Cost:
    """input[*], target[*] -> out[]: 1 subtraction and 1 square per element, plus 1 multiply with a weight."""
    return pointwise_loss(Cost(muls=1, adds=1), input, target, reduction, weight)


@stores("aten::mse_loss")
@stores("aten::smooth_l1_loss")
@stores("aten::soft_margin_loss")
def losses_stored(input: Spec, target: Spec, *_: Any) -> int:
    """x[*], y[*] -> bytes: the kernels allocate one value per element, then shrink the result's shape, but not its storage.

    See https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/Loss.cpp; CUDA's kernels do the same.
    """
    elements = Spec(torch.broadcast_shapes(input, target), input.dtype)
    return elements.nbytes


@stores("aten::binary_cross_entropy")
def binary_losses_stored(input: Spec, *_: Any) -> int:
    """x[*], y[*] -> bytes: the same bytes as losses_stored."""
    return input.nbytes


@mse_loss.backward(*named("mse_loss_backward"))
def mse_loss_backward(*, reduction: int, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: 2 * (x - y) * grad: 3 per element."""
    return elements_backward(Cost(muls=2, adds=1), out, reduction)


@formula(nn.L1Loss, *named("l1_loss"))
def l1_loss(input: Spec, target: Spec, *, reduction: Reduction = "mean", weight: Spec | None = None, out: Spec) -> Cost:
    """input[*], target[*] -> out[]: 1 subtraction and 1 absolute value per element, plus 1 multiply with a weight."""
    return pointwise_loss(Cost(adds=1, others=1), input, target, reduction, weight)


@formula(nn.SmoothL1Loss, *named("smooth_l1_loss"))
def smooth_l1_loss(input: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec) -> Cost:
    """input[*], target[*] -> out[]: 0.5 * d * d / beta where |d| < beta, with d = x - y: 6 per element."""
    return pointwise_loss(Cost(muls=2, adds=1, others=3), input, target, reduction)


@smooth_l1_loss.backward(*named("smooth_l1_loss_backward"))
def smooth_l1_loss_backward(*, reduction: int, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: (x - y) / beta, clamped to -1 and 1, times grad: 5 per element."""
    return elements_backward(Cost(muls=1, adds=1, others=3), out, reduction)


@formula(nn.HuberLoss, *named("huber_loss"))
def huber_loss(
    input: Spec, target: Spec, *, reduction: Reduction = "mean", weight: Spec | None = None, out: Spec
) -> Cost:
    """input[*], target[*] -> out[]: 0.5 * d * d where |d| < delta, with d = x - y: 5 per element, plus 1 multiply with a weight."""
    return pointwise_loss(Cost(muls=2, adds=1, others=2), input, target, reduction, weight)


@huber_loss.backward(*named("huber_loss_backward"))
def huber_loss_backward(*, reduction: int, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: x - y, clamped to -delta and delta, times grad: 4 per element."""
    return elements_backward(Cost(muls=1, adds=1, others=2), out, reduction)


@formula(nn.KLDivLoss, *named("kl_div"))
def kl_div(input: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec) -> Cost:
    """input[*], target[*] -> out[]: y * (log(y) - x), or exp(y) * (y - x) for a log target: 3 per element."""
    return pointwise_loss(Cost(muls=1, adds=1, others=1), input, target, reduction)


@formula(nn.BCELoss, *named("binary_cross_entropy"))
def binary_cross_entropy(
    input: Spec, target: Spec, *, weight: Spec | None = None, reduction: Reduction = "mean", out: Spec
) -> Cost:
    """input[*], target[*] -> out[]: -(y * log(x) + (1-y) * log(1-x)): 8 per element, plus 1 multiply with a weight."""
    element = Cost(muls=2 + (weight is not None), adds=3, others=3)
    return pointwise_loss(element, input, target, reduction)


@binary_cross_entropy.backward(*named("binary_cross_entropy_backward"))
def binary_cross_entropy_backward(*, weight: Spec | None = None, reduction: int = 1, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: (x - y) / (x * (1 - x)) * grad: 5 per element, plus 1 multiply with a weight."""
    return elements_backward(Cost(muls=2 + (weight is not None), adds=2, others=1), out, reduction)


@formula(nn.BCEWithLogitsLoss, *named("binary_cross_entropy_with_logits"))
def binary_cross_entropy_with_logits(
    input: Spec,
    target: Spec,
    *,
    weight: Spec | None = None,
    reduction: Reduction = "mean",
    pos_weight: Spec | None = None,
    out: Spec,
) -> Cost:
    """input[*], target[*] -> out[]: max(x, 0) - x * y + log(1 + exp(-|x|)): 9 per element, plus 1 multiply with a weight.

    ``pos_weight`` p scales the last two terms by 1 + (p-1) * y, which costs 4 more.
    """
    weighted, positives = weight is not None, 2 * (pos_weight is not None)
    element = Cost(muls=1 + weighted + positives, adds=3 + positives, others=5)
    return pointwise_loss(element, input, target, reduction)


@formula(nn.NLLLoss, *named("nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward"))
def nll_loss(
    input: Spec, target: Spec, *, weight: Spec | None = None, reduction: Reduction = "mean", out: object
) -> Cost:
    """input[n, c, *], target[n, *] -> out[]: 1 negation per target, plus 1 multiply with a weight; ignored targets count too."""
    return pointwise_loss(Cost(others=1), target, target, reduction, weight)


@nll_loss.backward(*named("nll_loss_backward", "nll_loss2d_backward"))
def nll_loss_backward(*, target: Spec, weight: Spec | None, reduction: int, out: Spec) -> Cost:
    """grad[], x[n, c, *], target[n, *] -> out[n, c, *]: -grad per target, plus 1 multiply with a weight; ignored targets count too."""
    return elements_backward(Cost(muls=0 + (weight is not None), others=1), target, reduction)


@formula(nn.CrossEntropyLoss, F.cross_entropy, *named("cross_entropy_loss"))
def cross_entropy(
    input: Spec,
    target: Spec,
    *,
    weight: Spec | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    out: Spec,
) -> Cost:
    """input[n, c, *], target[n, *] -> out[]: the cost of log_softmax over c, plus the cost of nll_loss.

    If the target has probabilities, [n, c, *], each row takes c multiplies and c-1 adds instead of a lookup. Label smoothing takes,
    per row, c-1 adds and a negation for the mean of all classes, and 2 multiplies and 1 add to mix the mean in. For a target with
    probabilities, smoothing takes 1 multiply and 1 add per probability. A weight takes 1 multiply per class that it scales.
    """
    classes = 1 if input.ndim > 1 else 0
    c = input[classes]
    rows = rows_of(input.numel(), c)
    weighted, smoothed = weight is not None, label_smoothing != 0
    if target == input:
        row = Cost(muls=c * (1 + weighted + smoothed), adds=c - 1 + c * smoothed, others=1)
    else:
        mixed = when(smoothed, Cost(muls=2 + c * weighted, adds=c, others=1))
        row = Cost(muls=0 + weighted, others=1).plus(mixed)
    total = log_softmax(input, classes, out=input).plus(times(rows, row))
    return total.plus(reduced_loss(rows, reduction, weighted and target != input))


CHUNKED = "torch_nn::_linear_cross_entropy_batch_chunked"
"""The function that F.linear_cross_entropy calls with chunk options; torch has it since 2.14."""


@formula(CHUNKED, op="linear_cross_entropy")
def linear_cross_entropy(
    input: Spec,
    linear_weight: Spec,
    target: Spec,
    linear_bias: Spec | None,
    weight: Spec | None,
    reduction: str,
    *,
    label_smoothing: float = 0.0,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
    out: object,
) -> Cost:
    """input[n, i], weight[c, i], target[n] -> out[]: the cost of linear, plus the cost of cross_entropy; chunking does not change the count.

    The forward also computes the gradients. These gradients count like a backward pass; the real backward pass only scales the gradients.
    """
    logits = Spec((input[0], linear_weight[0]), input.dtype)
    loss = linear(input, linear_weight, linear_bias, out=logits).plus(
        cross_entropy(logits, target, weight=weight, reduction=reduction, label_smoothing=label_smoothing, out=logits)
    )
    wanted = compute_input_grad, compute_linear_weight_grad, compute_linear_bias_grad
    if not any(wanted):
        return loss
    if target == logits:  # probabilities: 1 multiply each
        to_logits = times(target.numel(), Cost(muls=1))
    else:
        to_logits = nll_loss_backward(target=target, weight=weight, reduction=CODES[reduction], out=logits)
    to_logits = to_logits.plus(log_softmax_backward(logits, logits, 1, out=logits))
    return summed(loss, to_logits, linear_backward(input, logits, linear_weight, wanted, out=None))


@formula(f"{CHUNKED}_no_reduction", op="linear_cross_entropy")
def linear_cross_entropy_of_rows(
    input: Spec, linear_weight: Spec, target: Spec, linear_bias: Spec | None, weight: Spec | None, *, out: Spec
) -> Cost:
    """input[n, i], weight[c, i], target[n] -> out[n]: the cost of linear, plus the cost of cross_entropy; the backward pass recomputes both."""
    logits = Spec((input[0], linear_weight[0]), input.dtype)
    return linear(input, linear_weight, linear_bias, out=logits).plus(
        cross_entropy(logits, target, weight=weight, reduction="none", out=out)
    )


def pointwise_loss(element: Cost, input: Spec, target: Spec, reduction: Reduction, weight: Spec | None = None) -> Cost:
    """Return a loss's cost: ``element`` per element, then the reduction. A weight takes 1 multiply per element, and the sum of weights in a mean."""
    n, weighted = math.prod(torch.broadcast_shapes(input, target)), weight is not None
    return times(n, element.plus(Cost(muls=0 + weighted))).plus(reduced_loss(n, reduction, weighted))


def reduced_loss(elements: int, reduction: Reduction, weighted: bool = False) -> Cost:
    """Return the cost of reducing ``elements`` losses. The mean of ``weighted`` losses divides by the sum of the weights."""
    name = NUMBERS[reduction] if isinstance(reduction, int) else reduction
    if name == "none" or not elements:
        return Cost()
    if name == "sum":
        return Cost(adds=elements - 1)
    return Cost(adds=(elements - 1) * (1 + weighted), others=1)


def elements_backward(each: Cost, of: Spec, reduction: int) -> Cost:
    """Return the cost of a loss's gradient, ``each`` per element; a mean adds 1 divide."""
    return times(of.numel(), each).plus(Cost(others=1 if NUMBERS[reduction] == "mean" else 0))
