"""Gradients of losses: the derivative of each element times the gradient, which a mean divides once by what it is over.

As in loss.py, of two branches the one that computes more is counted, and 1 for the choice.
"""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, Spec
from ._cost import times
from ._registry import formula
from ._spellings import named
from .ctc import STEP, states_of

MEAN = 1


@formula(*named("mse_loss_backward"))
def mse_loss_backward(grad_output: Spec, input: Spec, target: Spec, reduction: int, *, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: 2 * (x - y) * grad: 3 per element."""
    return _elements(Cost(muls=2, adds=1), out, reduction)


@formula(*named("smooth_l1_loss_backward"))
def smooth_l1_loss_backward(grad_output: Spec, input: Spec, target: Spec, reduction: int, *, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: (x - y) / beta, kept between -1 and 1, * grad: 5 per element."""
    return _elements(Cost(muls=1, adds=1, others=3), out, reduction)


@formula(*named("huber_loss_backward"))
def huber_loss_backward(grad_output: Spec, input: Spec, target: Spec, reduction: int, *, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: x - y, kept between -delta and delta, * grad: 4 per element."""
    return _elements(Cost(muls=1, adds=1, others=2), out, reduction)


@formula(*named("binary_cross_entropy_backward"))
def binary_cross_entropy_backward(
    grad_output: Spec, input: Spec, target: Spec, weight: Spec | None = None, reduction: int = 1, *, out: Spec
) -> Cost:
    """grad[], x[*], y[*] -> out[*]: (x - y) / (x * (1 - x)) * grad: 5 per element, 1 multiply with a weight."""
    return _elements(Cost(muls=2 + (weight is not None), adds=2, others=1), out, reduction)


@formula(*named("soft_margin_loss_backward"))
def soft_margin_loss_backward(grad_output: Spec, input: Spec, target: Spec, reduction: int, *, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: -y * z / (z + 1) * grad, z = exp(-y * x): 7 per element."""
    return _elements(Cost(muls=3, adds=1, others=3), out, reduction)


@formula(*named("nll_loss_backward", "nll_loss2d_backward"))
def nll_loss_backward(
    grad_output: Spec, input: Spec, target: Spec, weight: Spec | None, reduction: int, *, out: Spec
) -> Cost:
    """grad[], x[n, c, *], target[n, *] -> out[n, c, *]: -grad per target, 1 multiply with a weight; ignored ones are counted."""
    return _elements(Cost(muls=0 + (weight is not None), others=1), target, reduction)


@formula(*named("multi_margin_loss_backward"))
def multi_margin_loss_backward(
    grad_output: Spec,
    input: Spec,
    target: Spec,
    p: float,
    margin: float,
    weight: Spec | None = None,
    reduction: int = 1,
    *,
    out: Spec,
) -> Cost:
    """grad[], x[n, c], target[n] -> out[n, c]: per other class z = margin - x[y] + x, if above 0 grad to it and -grad to y: 4.

    For p = 2 times 2 * z; 1 multiply with a weight; the gradient of a row is divided by c.
    """
    c, rows = out[-1] if out.ndim else 1, math.prod(out[:-1])
    each = Cost(muls=2 * (p == 2) + (weight is not None), adds=3, others=1)
    return _elements(times(c - 1, each).plus(Cost(others=1)), Spec((rows,)), reduction)


@formula(*named("multilabel_margin_loss_backward"))
def multilabel_margin_loss_backward(grad_output: Spec, input: Spec, target: Spec, reduction: int, *, out: Spec) -> Cost:
    """grad[], x[n, c], target[n, c] -> out[n, c]: per pair of a target and another class 1 - (x[y] - x), if above 0 grad to both: 5.

    As many pairs as in the forward: c^2/4 per row, at most this. The gradient of a row is divided by c.
    """
    c, rows = out[-1] if out.ndim else 1, math.prod(out[:-1])
    return _elements(times(c * c // 4, Cost(adds=4, others=1)).plus(Cost(others=1)), Spec((rows,)), reduction)


@formula(*named("_ctc_loss_backward"))
def ctc_loss_backward(
    grad: Spec, log_probs: Spec, targets: Spec, input_lengths: Any, target_lengths: Any, *, out: Spec
) -> Cost:
    """grad[n], log_probs[t, n, c], targets[n, s] -> out[t, n, c]: 22 per step and state, of 2s + 1 states per sequence, 6 per output.

    The recursion from the end, as in the forward; alpha + beta, and its log-sum-exp (8) to that of its class;
    (exp(log_prob) - exp(sum + loss - log_prob)) * grad.
    """
    states = states_of(log_probs, targets, input_lengths, target_lengths)
    recursion = times(states, STEP.plus(Cost(adds=1 + 4, others=4)))
    return recursion.plus(times(out.numel(), Cost(muls=1, adds=3, others=2)))


def _elements(each: Cost, of: Spec, reduction: int) -> Cost:
    return times(of.numel(), each).plus(Cost(others=1 if reduction == MEAN else 0))
