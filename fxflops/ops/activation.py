"""Activations: 1 per element, but for the few whose parts torch_flops counts; softmax and its relatives by row.

torch_flops counts GELU as ReLU, 1 per element, and leaky_relu 4: https://github.com/zugexiaodui/torch_flops
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..records import Cost, Spec
from ._cost import first, reduced, rows_of, times
from ._registry import formula
from ._spellings import named


@formula(nn.ReLU, *named("relu"), op="relu")
@formula(nn.ReLU6, *named("relu6"), op="relu6")
@formula(nn.GELU, *named("gelu"), op="gelu")
@formula(nn.SiLU, *named("silu"), op="silu")
@formula(nn.Mish, *named("mish"), op="mish")
@formula(nn.ELU, *named("elu"), op="elu")
@formula(nn.SELU, *named("selu"), op="selu")
@formula(nn.CELU, *named("celu"), op="celu")
@formula(nn.Sigmoid, *named("sigmoid", "expit"), "aten::special_expit", op="sigmoid")
@formula(nn.LogSigmoid, *named("logsigmoid", "log_sigmoid", "log_sigmoid_forward"), op="log_sigmoid")
@formula(nn.Hardsigmoid, *named("hardsigmoid"), op="hardsigmoid")
@formula(nn.Hardswish, *named("hardswish"), op="hardswish")
@formula(nn.Hardtanh, *named("hardtanh"), op="hardtanh")
@formula(nn.Tanh, *named("tanh"), op="tanh")
@formula(nn.Tanhshrink, *named("tanhshrink"), op="tanhshrink")
@formula(nn.Hardshrink, *named("hardshrink"), op="hardshrink")
@formula(nn.Softshrink, *named("softshrink"), op="softshrink")
@formula(nn.Softplus, *named("softplus"), op="softplus")
@formula(nn.Softsign, *named("softsign"), op="softsign")
@formula(nn.Threshold, *named("threshold"), op="threshold")
def activation(input: Spec, *, out: Any) -> Cost:
    """input[*] -> out[*]: 1 per output."""
    return Cost(others=first(out).numel())


@formula(nn.LeakyReLU, *named("leaky_relu"), op="leaky_relu")
@formula(nn.PReLU, *named("prelu", "_prelu_kernel"), op="prelu")
@formula(nn.RReLU, *named("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional"), op="rrelu")
def sloped_relu(input: Spec, *, out: Any) -> Cost:
    """input[*] -> out[*]: max(0, x) + slope * min(0, x): 2 compares, 1 multiply and 1 add per output."""
    return times(first(out).numel(), Cost(muls=1, adds=1, others=2))


@formula(nn.GLU, *named("glu"))
def glu(input: Spec, *, out: Spec) -> Cost:
    """input[*, 2k] -> out[*, k]: a * sigmoid(b): 1 sigmoid and 1 multiply per output."""
    return Cost(muls=out.numel(), others=out.numel())


@formula(nn.Softmax, *named("softmax", "_softmax", "_safe_softmax"), "aten::special_softmax")
def softmax(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k exps, k-1 adds and k divides per row."""
    return Cost(adds=out.numel() - rows_along(out, dim), others=2 * out.numel())


@formula(nn.Softmax2d, op="softmax")
def softmax2d(module: nn.Softmax2d, input: Spec, *, out: Spec) -> Cost:
    """input[*, k, h, w] -> out[*, k, h, w]: k exps, k-1 adds and k divides per pixel."""
    return softmax(input, -3, out=out)


@formula(nn.Softmin, *named("softmin"))
def softmin(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k negations, k exps, k-1 adds and k divides per row."""
    return softmax(input, dim, out=out).plus(Cost(others=out.numel()))


@formula(nn.LogSoftmax, *named("log_softmax", "_log_softmax"), "aten::special_log_softmax")
def log_softmax(input: Spec, dim: int | None = None, *, out: Spec) -> Cost:
    """input[*, k] -> out[*, k]: k exps, k-1 adds, 1 log and k subtractions per row."""
    rows = rows_along(out, dim)
    return Cost(adds=2 * out.numel() - rows, others=out.numel() + rows)


def rows_along(out: Spec, dim: int | None) -> int:
    """How many rows lie along ``dim``; F.softmax chooses one where it is None."""
    if dim is None:
        dim = 0 if out.ndim in (0, 1, 3) else 1
    return rows_of(out.numel(), reduced(out, dim))
