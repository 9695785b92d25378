"""Gradients of linear maps, matrix products and distances. Most products need none: autograd writes theirs as products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records import Cost, Spec
from ._cost import added_up, contraction, summed, times, when
from ._registry import formula
from ._spellings import named


@formula(*named("linear_backward", "mkldnn_linear_backward"))
def linear_backward(input: Spec, grad_output: Spec, weight: Spec, output_mask: Sequence[bool], *, out: Any) -> Cost:
    """x[n, i], grad[n, o], weight[o, i] -> out[n, i], out_weight[o, i], out_bias[o]: o multiply-adds per out, n per out_weight."""
    to_input, to_weight, to_bias = output_mask
    rows = math.prod(grad_output[:-1])
    return summed(
        when(to_input, contraction(weight[0], rows * weight[1])),
        when(to_weight, contraction(rows, weight.numel())),
        when(to_bias, Cost(adds=max(rows - 1, 0) * weight[0])),
    )


@formula(*named("mkldnn_linear_backward_input"), op="linear_backward")
def linear_backward_input(input_size: Any, grad_output: Spec, weight: Spec, *, out: Spec) -> Cost:
    """grad[n, o], weight[o, i] -> out[n, i]: o multiplies and o-1 adds per output."""
    return linear_backward(out, grad_output, weight, (True, False, False), out=out)


@formula(*named("mkldnn_linear_backward_weights"), op="linear_backward")
def linear_backward_weights(grad_output: Spec, input: Spec, weight: Spec, bias_defined: bool, *, out: Any) -> Cost:
    """grad[n, o], x[n, i] -> out_weight[o, i], out_bias[o]: n multiplies and n-1 adds per output; n-1 adds per bias."""
    return linear_backward(input, grad_output, weight, (False, True, bias_defined), out=out)


@formula(*named("matmul_backward"))
def matmul_backward(grad: Spec, input: Spec, other: Spec, mask: Sequence[bool], *, out: Any) -> Cost:
    """grad[*, m, n], a[*, m, k], b[*, k, n] -> out_a[*, m, k], out_b[*, k, n]: each as many multiply-adds as the product, less 1 add per output."""
    to_input, to_other = mask
    products = grad.numel() * input[-1]
    return when(to_input, added_up(products, input.numel())).plus(when(to_other, added_up(products, other.numel())))


@formula(*named("_cdist_backward"))
def cdist_backward(grad_output: Spec, x1: Spec, x2: Spec, p: float, cdist: Spec, *, out: Spec) -> Cost:
    """grad[*, m, n], x1[*, m, d], x2[*, n, d] -> out[*, m, d]: the derivative of each distance, n-1 adds per output.

    With z = x1 - x2: p = 2: z * (grad / distance); p = 1: sign(z) * grad; infinity: that where |z| is the distance; else
    sign(z) * |z|**(p - 1) * (grad / distance**(p - 1)).
    """
    differences, pairs = grad_output.numel() * x1[-1], grad_output.numel()
    return _distances(p, differences, pairs).plus(Cost(adds=max(differences - out.numel(), 0)))


@formula(*named("_pdist_backward"))
def pdist_backward(grad_output: Spec, input: Spec, p: float, pdist: Spec, *, out: Spec) -> Cost:
    """grad[n*(n-1)/2], x[n, d] -> out[n, d]: as _cdist_backward; 1 add to each of a pair."""
    differences, pairs = grad_output.numel() * input[-1], grad_output.numel()
    return _distances(p, differences, pairs).plus(Cost(adds=2 * differences))


def _distances(p: float, differences: int, pairs: int) -> Cost:
    if p == 0:
        return Cost()
    if p == 2:
        return Cost(muls=differences, adds=differences, others=pairs)
    if p == 1:
        return times(differences, Cost(muls=1, adds=1, others=1))
    if math.isinf(p):
        return times(differences, Cost(muls=1, adds=1, others=3))
    return times(differences, Cost(muls=2, adds=1, others=3)).plus(Cost(others=2 * pairs))
