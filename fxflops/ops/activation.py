"""Activations count 1 per element; leaky_relu, prelu, rrelu and glu count each of their operations.

torch_flops also counts 1 per element for ReLU and GELU, and 4 for leaky_relu: https://github.com/zugexiaodui/torch_flops

A gradient is the derivative times the incoming gradient. A compare with a bound costs 1. Of two branches, the more expensive one is
counted. A coefficient of 1 costs no multiply. The derivatives follow
https://github.com/pytorch/pytorch/blob/main/torch/_decomp/decompositions.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import (
    ORDERED,
    POINTWISE,
    Cost,
    FormulaFunction,
    Spec,
    Specs,
    Strided,
    first,
    formula,
    named,
    spelled,
    times,
)
from .elementwise import in_place, same

LEAKY = Cost(muls=1, others=1)


def with_term(tensors: Sequence[Strided], out: Spec, input: Spec, inplace: bool = False) -> Specs:
    """Return the result and a temporary of the same size: tanh(x) in x - tanh(x), or 1 + |x| in x / (1 + |x|)."""
    return out, out


def with_buffer(tensors: Sequence[Strided], out: Spec, input: Spec, inplace: bool = False, *, device: str) -> Specs:
    """Return the result and, except on CUDA, the buffer from which the gradient is computed."""
    return (out, out) if device != "cuda" else ()


@formula(nn.ReLU, *named("relu"), op="relu")
@formula(nn.ReLU6, *named("relu6"), op="relu6")
@formula(nn.Hardtanh, *named("hardtanh"), op="hardtanh")
@formula(nn.Threshold, *named("threshold"), op="threshold")
@formula(nn.Hardshrink, *named("hardshrink"), op="hardshrink")
@formula(nn.Softshrink, *named("softshrink"), op="softshrink")
@formula(nn.Tanhshrink, *named("tanhshrink"), op="tanhshrink")
@formula(nn.Softsign, *named("softsign"), op="softsign")
@formula(nn.ELU, *named("elu"), op="elu")
@formula(nn.CELU, *named("celu"), op="celu")
@formula(nn.SELU, *named("selu"), op="selu")
def activation(input: Spec, *, out: Any) -> Cost:
    """input[*] -> out[*]: 1 per output."""
    return Cost(others=first(out).numel())


activation.shape(
    *(nn.ReLU, F.relu, torch.relu, torch.Tensor.relu, nn.ReLU6, F.relu6, nn.Hardtanh, nn.Threshold), layout=ORDERED
)(same)
activation.shape(nn.ELU, nn.CELU, nn.SELU, F.selu, layout=POINTWISE)(same)
activation.shape(nn.Tanhshrink, nn.Softsign, layout=POINTWISE, alive_at_peak=with_term)(same)
activation.shape(torch.relu_, torch.Tensor.relu_, layout=POINTWISE)(in_place)


@activation.shape(F.hardtanh, F.threshold, layout=ORDERED)
def bounded(input: Spec, low: float = 0, high: float = 0, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]."""
    return same(input, inplace)


@formula(*named("threshold_backward"))
def threshold_backward(*, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad where x > threshold, else 0: 1 per output. relu has the same gradient."""
    return times(out.numel(), Cost(others=1))


@formula(*named("hardtanh_backward"), op="hardtanh_backward")
@activation.backward(*named("hardshrink_backward"), op="hardshrink_backward")
@activation.backward(*named("softshrink_backward"), op="softshrink_backward")
def bounded_backward(*, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad where x is inside two bounds (hardtanh) or outside them (hardshrink, softshrink), else 0: 2 per output."""
    return times(out.numel(), Cost(others=2))


def derivative(of: str, text: str, each: Cost) -> FormulaFunction:
    """Return a backward formula that costs ``each`` per element. ``text`` is the derivative, written with ``of``: "x" (input) or "y" (result)."""

    def backward(*, out: Spec) -> Cost:
        return times(out.numel(), each)

    backward.__doc__ = f"grad[*], {of}[*] -> out[*]: {text}: {each.flops} per output."
    return backward


def gelu_backward(grad_output: Spec, input: Spec, *, approximate: str = "none", out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * (P(x) + x p(x)), with the normal distribution P and its density p: 11 per output, or 17 by tanh.

    P = 0.5 * (1 + erf(x * sqrt(1/2))), p = c * exp(-0.5 * x * x). By tanh, the gradient is
    grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * b * (1 + 3a * x * x)) with t = tanh(b * (x + a * x * x * x)).
    """
    exact = approximate == "none"
    return times(out.numel(), Cost(muls=7, adds=2, others=2) if exact else Cost(muls=12, adds=5, others=1))


DERIVATIVES: dict[str, tuple[type[nn.Module], Any]] = {
    "hardsigmoid": (nn.Hardsigmoid, derivative("x", "grad * 1/6 between two bounds", Cost(muls=1, others=2))),
    "hardswish": (
        nn.Hardswish,
        derivative("x", "grad * (x / 3 + 0.5) between two bounds", Cost(muls=1, adds=1, others=3)),
    ),
    "gelu": (nn.GELU, gelu_backward),
    "silu": (
        nn.SiLU,
        derivative("x", "grad * s * (1 + x * (1 - s)), s = sigmoid(x)", Cost(muls=3, adds=2, others=1)),
    ),
    "mish": (
        nn.Mish,
        derivative(
            *("x", "grad * (t + x * sigmoid(x) * (1 - t * t)), t = tanh(softplus(x))"),
            each=Cost(muls=4, adds=2, others=3),
        ),
    ),
    "sigmoid": (nn.Sigmoid, derivative("y", "grad * (1 - y) * y", Cost(muls=2, adds=1))),
    "tanh": (nn.Tanh, derivative("y", "grad * (1 - y * y)", Cost(muls=2, adds=1))),
}
"""The module and the backward formula of each function whose forward counts 1 per element."""
for _name, (_module, _backward) in DERIVATIVES.items():
    _backward.__name__ = _backward.__qualname__ = f"{_name}_backward"
    _op = formula(_module, *named(_name), op=_name)(activation)
    _spaces = (torch, torch.Tensor) if hasattr(torch, _name) else (F,)  # F.sigmoid calls the method
    _op.shape(_module, *spelled(_name, *_spaces), layout=POINTWISE)(same)
    _op.backward(*named(f"{_name}_backward"))(_backward)
formula(*named("expit"), "aten::special_expit", op="sigmoid")(activation)
activation.shape(*spelled("sigmoid_ tanh_", torch, torch.Tensor), layout=POINTWISE)(in_place)


@activation.shape(F.elu, F.celu, layout=POINTWISE)
def sloped(input: Spec, alpha: float = 1.0, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*]."""
    return same(input, inplace)


@formula(*named("elu_backward"))
def elu_backward(
    grad_output: Spec, alpha: float, scale: float, input_scale: float, is_result: bool, *, out: Spec
) -> Cost:
    """grad[*], x[*] -> out[*]: grad * c * exp(x * input_scale) where x < 0, with c = alpha * scale * input_scale: 3 to 5 per output.

    If the forward was in place, the formula uses the result y: grad * input_scale * (y + alpha * scale), 3 or 4 per output.
    """
    scaled = not math.isclose(input_scale, 1)
    if is_result:
        return times(out.numel(), Cost(muls=1 + scaled, adds=1, others=1))
    weighted = not math.isclose(alpha * scale * input_scale, 1)
    return times(out.numel(), Cost(muls=1 + scaled + weighted, others=2))


log_sigmoid = formula(nn.LogSigmoid, *named("logsigmoid", "log_sigmoid", "log_sigmoid_forward"), op="log_sigmoid")(
    activation
)
log_sigmoid.shape(nn.LogSigmoid, layout=POINTWISE, alive_at_peak=with_buffer)(same)


@log_sigmoid.backward(*named("log_sigmoid_backward"))
def log_sigmoid_backward(*, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * (1 - sigmoid(x)): 3 per output, on every device."""
    return times(out.numel(), Cost(muls=1, adds=1, others=1))


softplus = formula(nn.Softplus, *named("softplus"), op="softplus")(activation)
softplus.shape(nn.Softplus, layout=POINTWISE)(same)


@softplus.backward(*named("softplus_backward"))
def softplus_backward(grad_output: Spec, input: Spec, beta: float, *, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * z / (z + 1) where x is below a bound, with z = exp(beta * x): 5 per output, 6 if beta is not 1."""
    return times(out.numel(), Cost(muls=1 + (beta != 1), adds=1, others=3))


@formula(nn.LeakyReLU, *named("leaky_relu"), op="leaky_relu")
@formula(nn.PReLU, *named("prelu", "_prelu_kernel"), op="prelu")
@formula(nn.RReLU, *named("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional"), op="rrelu")
def sloped_relu(input: Spec, *, out: Any) -> Cost:
    """input[*] -> out[*]: max(0, x) + slope * min(0, x): 2 compares, 1 multiply and 1 add per output."""
    return times(first(out).numel(), Cost(muls=1, adds=1, others=2))


sloped_relu.shape(nn.LeakyReLU, layout=POINTWISE)(same)
sloped_relu.shape(F.leaky_relu, layout=POINTWISE)(sloped)


@sloped_relu.backward(*named("leaky_relu_backward"))
def leaky_relu_backward(*, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad * slope where x < 0: 2 per output."""
    return times(out.numel(), LEAKY)


@sloped_relu.backward(*named("_prelu_kernel_backward"))
def prelu_backward(grad_output: Spec, *, out: Any) -> Cost:
    """grad[*], x[*], weight[*] -> out[*], out_weight[*]: grad * weight and grad * x where x < 0: 3 per element."""
    return times(grad_output.numel(), Cost(muls=2, others=1))


@sloped_relu.backward(*named("rrelu_with_noise_backward"))
def rrelu_backward(
    grad_output: Spec, input: Spec, noise: Spec, lower: float, upper: float, training: bool, *, out: Spec
) -> Cost:
    """grad[*], x[*], noise[*] -> out[*]: grad * noise, 1 per output; in eval mode counted like leaky_relu_backward."""
    return times(out.numel(), Cost(muls=1) if training else LEAKY)


@formula(nn.GLU, *named("glu"))
def glu(input: Spec, *, out: Spec) -> Cost:
    """input[*, 2k] -> out[*, k]: a * sigmoid(b): 1 sigmoid and 1 multiply per output."""
    return Cost(muls=out.numel(), others=out.numel())


@glu.shape(nn.GLU, F.glu)
def glu_shape(input: Spec, dim: int = -1) -> Spec | None:
    """x[*, 2k] -> out[*, k], where 2k is the size of ``dim``."""
    if not input.dtype.is_floating_point or not -input.ndim <= dim < input.ndim or input[dim] % 2:
        return None
    dim %= input.ndim
    return Spec((*input[:dim], input[dim] // 2, *input[dim + 1 :]), input.dtype)


@glu.backward(*named("glu_backward"))
def glu_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, k], a and b[*, k] -> out[*, 2k]: grad * s and grad * s * a * (1 - s), s = sigmoid(b): 5 per element of grad."""
    return times(grad_output.numel(), Cost(muls=3, adds=1, others=1))
