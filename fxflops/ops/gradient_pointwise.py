"""Gradients of activations, softmax and dropout: the derivative times the gradient.

A bound is 1 compare; of two branches the one that computes more is counted. A coefficient that is 1 multiplies nothing.
The derivatives are those of https://github.com/pytorch/pytorch/blob/main/torch/_decomp/decompositions.py
"""

from __future__ import annotations

import math
from typing import Any

from ..records import Cost, FormulaFunction, Spec
from ._cost import times
from ._registry import formula
from ._spellings import named
from .activation import rows_along

LEAKY = Cost(muls=1, others=1)
BOUNDED = Cost(others=2), "grad[*], x[*] -> out[*]: grad where x is on the right side of two bounds: 2 per output."
PER_OUTPUT = {
    "threshold_backward": (
        Cost(others=1),
        "grad[*], x[*] -> out[*]: grad where x > threshold: 1 per output; so is relu's.",
    ),
    "hardshrink_backward": BOUNDED,
    "hardtanh_backward": BOUNDED,
    "softshrink_backward": BOUNDED,
    "hardsigmoid_backward": (
        Cost(muls=1, others=2),
        "grad[*], x[*] -> out[*]: grad * 1/6 between two bounds: 3 per output.",
    ),
    "hardswish_backward": (
        Cost(muls=1, adds=1, others=3),
        "grad[*], x[*] -> out[*]: grad * (x / 3 + 0.5) between two bounds: 5 per output.",
    ),
    "leaky_relu_backward": (LEAKY, "grad[*], x[*] -> out[*]: grad * slope below 0: 2 per output."),
    "silu_backward": (
        Cost(muls=3, adds=2, others=1),
        "grad[*], x[*] -> out[*]: grad * s * (1 + x * (1 - s)), s = sigmoid(x): 6 per output.",
    ),
    "mish_backward": (
        Cost(muls=4, adds=2, others=3),
        "grad[*], x[*] -> out[*]: grad * (t + x * sigmoid(x) * (1 - t * t)), t = tanh(softplus(x)): 9 per output.",
    ),
    "sigmoid_backward": (Cost(muls=2, adds=1), "grad[*], y[*] -> out[*]: grad * (1 - y) * y: 3 per output."),
    "tanh_backward": (Cost(muls=2, adds=1), "grad[*], y[*] -> out[*]: grad * (1 - y * y): 3 per output."),
    "log_sigmoid_backward": (
        Cost(muls=1, adds=1, others=1),
        "grad[*], x[*] -> out[*]: grad * (1 - sigmoid(x)): 3 per output, whatever the buffer of a device holds.",
    ),
}
"""Gradients that cost the same for each output, whatever their settings are, and how."""


def per_output(op: str, cost: Cost, doc: str) -> FormulaFunction:
    """The formula of an op that costs so much per output, described by ``doc``."""

    def backward(*, out: Spec) -> Cost:
        return times(out.numel(), cost)

    backward.__name__ = op
    backward.__doc__ = doc
    return backward


for _op, (_cost, _doc) in PER_OUTPUT.items():
    formula(*named(_op), op=_op)(per_output(_op, _cost, _doc))


@formula(*named("rrelu_with_noise_backward"), op="rrelu_backward")
def rrelu_backward(
    grad_output: Spec, input: Spec, noise: Spec, lower: float, upper: float, training: bool, *, out: Spec
) -> Cost:
    """grad[*], x[*], noise[*] -> out[*]: grad * noise, 1 per output; in eval as leaky_relu_backward."""
    return times(out.numel(), Cost(muls=1) if training else LEAKY)


@formula(*named("_prelu_kernel_backward"), op="prelu_backward")
def prelu_backward(grad_output: Spec, *, out: Any) -> Cost:
    """grad[*], x[*], weight[*] -> out[*], out_weight[*]: grad * weight and grad * x below 0: 3 per element."""
    return times(grad_output.numel(), Cost(muls=2, others=1))


@formula(*named("elu_backward"))
def elu_backward(
    grad_output: Spec, alpha: float, scale: float, input_scale: float, is_result: bool, *, out: Spec
) -> Cost:
    """grad[*], x[*] -> out[*]: grad * c * exp(x * input_scale) below 0, c = alpha * scale * input_scale: 3 to 5 per output.

    From the result y, where the forward was in place: grad * input_scale * (y + alpha * scale), 3 or 4 per output.
    """
    scaled = not math.isclose(input_scale, 1)
    if is_result:
        return times(out.numel(), Cost(muls=1 + scaled, adds=1, others=1))
    weighted = not math.isclose(alpha * scale * input_scale, 1)
    return times(out.numel(), Cost(muls=1 + scaled + weighted, others=2))


@formula(*named("gelu_backward"))
def gelu_backward(grad_output: Spec, input: Spec, *, approximate: str = "none", out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * (P(x) + x p(x)), P and p of the normal distribution, 11 per output; by tanh 17.

    P = 0.5 * (1 + erf(x * sqrt(1/2))), p = c * exp(-0.5 * x * x). By tanh: with t = tanh(b * (x + a * x * x * x)),
    grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * b * (1 + 3a * x * x)).
    """
    exact = approximate == "none"
    return times(out.numel(), Cost(muls=7, adds=2, others=2) if exact else Cost(muls=12, adds=5, others=1))


@formula(*named("softplus_backward"))
def softplus_backward(grad_output: Spec, input: Spec, beta: float, *, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * z / (z + 1), z = exp(beta * x), up to a bound: 5 per output, 6 with a beta."""
    return times(out.numel(), Cost(muls=1 + (beta != 1), adds=1, others=3))


@formula(*named("logit_backward"))
def logit_backward(grad_output: Spec, input: Spec, eps: float | None = None, *, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad / (x * (1 - x)): 3 per output, 5 with the two bounds that eps sets."""
    return times(out.numel(), Cost(muls=1, adds=1, others=1 if eps is None else 3))


@formula(*named("glu_backward"))
def glu_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, k], a and b[*, k] -> out[*, 2k]: grad * s and grad * s * a * (1 - s), s = sigmoid(b): 5 per element of grad."""
    return times(grad_output.numel(), Cost(muls=3, adds=1, others=1))


@formula(*named("native_dropout_backward"), op="dropout_backward")
def dropout_backward(*, out: Spec) -> Cost:
    """grad[*], mask[*] -> out[*]: grad * mask * scale: 2 per output."""
    return Cost(muls=2 * out.numel())


@formula(*named("_softmax_backward_data"), op="softmax_backward")
def softmax_backward(grad_output: Spec, output: Spec, dim: int, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: y * (grad - sum of y * grad): 2k multiplies and 2k-1 adds per row."""
    return Cost(muls=2 * out.numel(), adds=2 * out.numel() - rows_along(out, dim))


@formula(*named("_masked_softmax_backward"), op="softmax_backward")
def masked_softmax_backward(grad_output: Spec, output: Spec, mask: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: as softmax_backward, of every element: masked ones too."""
    return softmax_backward(grad_output, output, -1 if dim is None else dim, out=out)


@formula(*named("_log_softmax_backward_data"), op="log_softmax_backward")
def log_softmax_backward(grad_output: Spec, output: Spec, dim: int, *, out: Spec) -> Cost:
    """grad[*, k], y[*, k] -> out[*, k]: grad - exp(y) * sum of grad: k exps, k multiplies and 2k-1 adds per row."""
    return Cost(muls=out.numel(), adds=2 * out.numel() - rows_along(out, dim), others=out.numel())
