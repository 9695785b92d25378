"""Fused optimizer steps and gradient scaling, counted per element like the optimizer's plain loop.

The plain loops, e.g. ``_single_tensor_adam``, are in https://github.com/pytorch/pytorch/tree/main/torch/optim. ``fused=True``,
``foreach=True`` and the plain loop count the same. Scalars computed once per parameter (bias corrections, a decayed rate) are not
counted. These calls work in place and return nothing, so sizes are read from their arguments.
"""

from __future__ import annotations

from typing import Any

from ._extend import Cost, Spec, formula, named, summed, times, when

Tensors = tuple[Spec, ...]
SCALED_ADD = Cost(muls=1, adds=1)
"""x + alpha * y."""


@formula(*named("_fused_adam"))
def fused_adam(
    params: Tensors, *, weight_decay: float, amsgrad: bool, maximize: bool, grad_scale: Any = None, out: Any
) -> Cost:
    """p[t][*], g[t][*], m[t][*], v[t][*] -> p[t][*]: 13 per element, plus 2 with weight decay and 1 with amsgrad.

    The 13 are m + (1-b1)(g - m): 3; b2 v + (1-b2) g g: 4; d = sqrt(v) / c + eps: 3; p - step * m / d: 3. ``maximize`` takes 1 more
    (the sign of g), and unscaling g takes 1 more.
    """
    element = summed(_adam(amsgrad), when(weight_decay, SCALED_ADD), _gradient(maximize, grad_scale))
    return times(_elements(params), element)


@formula(*named("_fused_adamw"))
def fused_adamw(
    params: Tensors, *, weight_decay: float, amsgrad: bool, maximize: bool, grad_scale: Any = None, out: Any
) -> Cost:
    """p[t][*], g[t][*], m[t][*], v[t][*] -> p[t][*]: counted like fused_adam, but weight decay is 1 multiply per element."""
    element = summed(_adam(amsgrad), when(weight_decay, Cost(muls=1)), _gradient(maximize, grad_scale))
    return times(_elements(params), element)


@formula(*named("_fused_sgd"))
def fused_sgd(
    params: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    out: Any,
) -> Cost:
    """p[t][*], g[t][*], buf[t][*] -> p[t][*]: 2 per element for p - lr g, plus 2 each for weight decay, momentum and nesterov.

    Momentum is momentum * buf + (1-dampening) g; dampening takes 1 more. In the first step, the buffer is g itself, and momentum
    takes nothing. ``maximize`` takes 1 more, and unscaling g takes 1 more.
    """
    element = summed(
        SCALED_ADD,
        when(weight_decay, SCALED_ADD),
        when(momentum and not is_first_step, Cost(muls=1 + (dampening != 0), adds=1)),
        when(momentum and nesterov, SCALED_ADD),
        _gradient(maximize, grad_scale),
    )
    return times(_elements(params), element)


@formula(*named("_fused_adagrad"))
def fused_adagrad(params: Tensors, *, weight_decay: float, maximize: bool, grad_scale: Any = None, out: Any) -> Cost:
    """p[t][*], g[t][*], s[t][*] -> p[t][*]: 7 per element, plus 2 with weight decay.

    The 7 are s + g g: 2; d = sqrt(s) + eps: 2; p - rate * g / d: 3. ``maximize`` takes 1 more, and unscaling g takes 1 more.
    """
    element = summed(Cost(muls=2, adds=3, others=2), when(weight_decay, SCALED_ADD), _gradient(maximize, grad_scale))
    return times(_elements(params), element)


@formula(*named("_amp_foreach_non_finite_check_and_unscale"))
def amp_unscale(grads: Tensors, *, out: Any) -> Cost:
    """g[t][*], inv_scale[1] -> g[t][*]: 1 multiply and 1 check for infinity per element."""
    return times(_elements(grads), Cost(muls=1, others=1))


@formula(*named("_amp_update_scale"))
def amp_update_scale(*, out: Any) -> Cost:
    """scale[1], growth_tracker[1], found_inf[1] -> scale[1]: 5 in all: check found_inf, count the step, compare it with the interval, grow the scale, check that it is finite."""
    return Cost(muls=1, adds=1, others=3)


def _adam(amsgrad: bool) -> Cost:
    return summed(
        Cost(muls=1, adds=2),  # the mean
        Cost(muls=3, adds=1),  # the mean of squares
        Cost(adds=1, others=2),  # sqrt(v) / c + eps
        Cost(muls=1, adds=1, others=1),  # the step
        when(amsgrad, Cost(others=1)),
    )


def _gradient(maximize: bool, grad_scale: Any) -> Cost:
    return Cost(others=maximize + (grad_scale is not None))


def _elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)
