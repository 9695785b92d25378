"""Pointwise arithmetic: one operation per output element, fused ops by their definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..records import Cost, Spec
from ._registry import formula
from ._spellings import named

UNARY = """
    acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac i0 i1 i0e
    i1e lgamma log log10 log1p log2 logit mvlgamma nan_to_num ndtr ndtri log_ndtr neg polygamma rad2deg reciprocal round
    rsqrt sgn sign signbit sin sinc sinh sqrt square tan trunc fix abs absolute negative positive entr erfcx isnan isinf
    isfinite isposinf isneginf isreal logical_not bitwise_not angle gammaln psi special_expit
""".split()
BINARY = """
    atan2 arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign eq ne lt le gt ge
    greater greater_equal less less_equal not_equal floor_divide fmax fmin fmod float_power gcd lcm heaviside hypot
    isclose ldexp logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum nextafter pow remainder
    xlog1py zeta clamp clamp_min clamp_max clip where masked_fill dist_ igamma igammac bucketize searchsorted
""".split()
ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh",
    "absolute": "abs", "negative": "neg", "fix": "trunc", "clip": "clamp", "arctan2": "atan2", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "gammaln": "lgamma", "psi": "digamma",
    "special_expit": "sigmoid",
}  # fmt: skip


def pointwise(*, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output."""
    return Cost(others=out.numel())


for _name in sorted({*UNARY, *BINARY, *ALIASES} - {"special_expit", "dist_", "positive"}):
    formula(*named(_name, f"special_{_name}"), op=ALIASES.get(_name, _name))(pointwise)
formula(torch.Tensor.__rpow__, "aten::__rpow__", op="pow")(pointwise)
for _symbol in ("and", "or", "xor", "lshift", "rshift"):
    formula(f"aten::__{_symbol}__", f"aten::__i{_symbol}__", op=f"bitwise_{_symbol}")(pointwise)


@formula(*named("add", "sub", "subtract", "rsub"), torch.Tensor.__rsub__, op="add")
def add(input: Any, other: Any, alpha: float = 1, *, out: Spec) -> Cost:
    """x[*] + alpha * y[*] -> out[*]: 1 add per output, 1 multiply more where alpha is not 1."""
    return Cost(muls=0 if alpha == 1 else out.numel(), adds=out.numel())


@formula(*named("mul", "multiply"), op="mul")
def mul(*, out: Spec) -> Cost:
    """x[*] * y[*] -> out[*]: 1 multiply per output."""
    return Cost(muls=out.numel())


@formula(*named("div", "divide", "true_divide"), op="div")
def div(*, out: Spec) -> Cost:
    """x[*] / y[*] -> out[*]: 1 divide per output; a rounding mode is part of it."""
    return Cost(others=out.numel())


@formula(*named("lerp"))
def lerp(*, out: Spec) -> Cost:
    """start[*] + weight * (end[*] - start[*]) -> out[*]: 2 adds and 1 multiply per output."""
    return Cost(muls=out.numel(), adds=2 * out.numel())


@formula(*named("addcmul"))
def addcmul(input: Spec, tensor1: Spec, tensor2: Spec, value: float = 1, *, out: Spec) -> Cost:
    """x[*] + value * a[*] * b[*] -> out[*]: 1 multiply and 1 add per output, 1 multiply more where value is not 1."""
    return Cost(muls=(1 + (value != 1)) * out.numel(), adds=out.numel())


@formula(*named("addcdiv"))
def addcdiv(input: Spec, tensor1: Spec, tensor2: Spec, value: float = 1, *, out: Spec) -> Cost:
    """x[*] + value * a[*] / b[*] -> out[*]: 1 divide and 1 add per output, 1 multiply more where value is not 1."""
    return Cost(muls=(value != 1) * out.numel(), adds=out.numel(), others=out.numel())


@formula(*named("xlogy"))
def xlogy(*, out: Spec) -> Cost:
    """x[*] * log(y[*]) -> out[*]: 1 logarithm and 1 multiply per output."""
    return Cost(muls=out.numel(), others=out.numel())


@formula(torch.polar, "aten::polar")
def polar(*, out: Spec) -> Cost:
    """abs[*], angle[*] -> out[*]: a cosine, a sine and 2 multiplies per output."""
    return Cost(muls=2 * out.numel(), others=2 * out.numel())


@formula(*named("equal"))
def equal(input: Spec, *, out: bool) -> Cost:
    """x[*], y[*] -> bool: 1 compare per element."""
    return Cost(others=input.numel())


@formula(*named("allclose"))
def allclose(input: Spec, *, out: bool) -> Cost:
    """x[*], y[*] -> bool: ``|x - y| <= atol + rtol |y|`` per element: 2 adds, 1 multiply, 2 absolutes, 1 compare."""
    n = input.numel()
    return Cost(muls=n, adds=2 * n, others=3 * n)


@formula(
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    *named("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
    op="dropout",
)  # fmt: skip
def dropout(input: Spec, p: float = 0.5, training: bool = True, *, out: Spec) -> Cost:
    """x[*] -> out[*]: in training 2 multiplies per output (the mask, the scale), in eval nothing."""
    return Cost(muls=2 * out.numel() if training and p > 0 else 0)


@formula("aten::native_dropout", op="dropout")
def native_dropout(input: Spec, p: float, train: bool = True, *, out: tuple[Spec, Spec]) -> Cost:
    """x[*] -> out[*], mask[*]: as dropout."""
    return dropout(input, p, train, out=out[0])
