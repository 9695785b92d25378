"""CTC loss, for sequences that are not aligned with their labels. The loss takes one recursion step per time step and state.

A. Graves et al., Connectionist Temporal Classification: https://www.cs.toronto.edu/~graves/icml_2006.pdf
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ._extend import Cost, Spec, formula, named, times
from .loss import Reduction, reduced_loss

STEP = Cost(adds=7, others=6)
"""The cost of one recursion step for one state."""


@formula(nn.CTCLoss, *named("ctc_loss"))
def ctc_loss(
    log_probs: Spec,
    targets: Spec,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Reduction = "mean",
    *,
    out: Any,
) -> Cost:
    """log_probs[t, n, c], targets[n, s] -> out[]: 13 per time step and state; a sequence has 2s + 1 states.

    log(exp(a - m) + exp(b - m) + exp(c - m)) + m + log_prob: 2 compares, 7 adds, 3 exps, 1 log. Lengths that are numbers are
    used. If the lengths are tensors, every sequence counts as if padded to the longest one.
    """
    n = log_probs[1] if log_probs.ndim == 3 else 1
    total = times(states_of(log_probs, targets, input_lengths, target_lengths), STEP)
    return total.plus(reduced_loss(n, reduction)).plus(Cost(others=n if reduction in (1, "mean") else 0))


@ctc_loss.backward(*named("_ctc_loss_backward"))
def ctc_loss_backward(
    grad: Spec, log_probs: Spec, targets: Spec, input_lengths: Any, target_lengths: Any, *, out: Spec
) -> Cost:
    """grad[n], log_probs[t, n, c], targets[n, s] -> out[t, n, c]: 22 per time step and state, plus 6 per output; a sequence has 2s + 1 states.

    The recursion from the end costs as much as in the forward (13). alpha + beta (1) is added to the sum of its class by
    log-sum-exp (8). Each output is (exp(log_prob) - exp(sum + loss - log_prob)) * grad.
    """
    states = states_of(log_probs, targets, input_lengths, target_lengths)
    recursion = times(states, STEP.plus(Cost(adds=1 + 4, others=4)))
    return recursion.plus(times(out.numel(), Cost(muls=1, adds=3, others=2)))


@formula("aten::_ctc_loss", "aten::_cudnn_ctc_loss", "aten::miopen_ctc_loss", op="ctc_loss")
def ctc_loss_forward(log_probs: Spec, targets: Spec, input_lengths: Any, target_lengths: Any, *, out: Any) -> Cost:
    """log_probs[t, n, c], targets[n, s] -> out[n]: counted like ctc_loss, without the reduction."""
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, reduction="none", out=out)


def states_of(log_probs: Spec, targets: Spec, input_lengths: Any, target_lengths: Any) -> int:
    """Return the number of time steps times states, summed over all sequences."""
    n = log_probs[1] if log_probs.ndim == 3 else 1
    steps, length = log_probs[0], targets[-1] if targets.ndim == 2 else targets.numel() // n if n else 0
    given, labels = _lengths(input_lengths, n, steps), _lengths(target_lengths, n, length)
    return sum(t * (2 * s + 1) for t, s in zip(given, labels, strict=True))


def _lengths(given: Any, n: int, longest: int) -> tuple[int, ...]:
    return given if isinstance(given, tuple) and not isinstance(given, Spec) else (longest,) * n
