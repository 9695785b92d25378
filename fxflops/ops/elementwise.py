"""Pointwise arithmetic: one operation per output element, fused ops by their definition."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..records import Cost, Spec, specs_in
from ._cost import times
from ._registry import formula
from ._spellings import named
from ._traits import MAYBE_NOTHING

UNARY = """
    acos acosh asin asinh atan atanh ceil conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac
    frexp lgamma log log10 log1p log2 logit mvlgamma nan_to_num neg polygamma rad2deg reciprocal round rsqrt sgn sign
    signbit sin sinc sinh sqrt square tan trunc fix abs absolute negative isnan isinf isfinite isposinf isneginf isreal
    logical_not bitwise_not angle
""".split()
BINARY = """
    atan2 arctan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign eq ne lt le gt ge
    greater greater_equal less less_equal not_equal floor_divide fmax fmin fmod float_power gcd lcm heaviside hypot
    ldexp logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum nextafter pow remainder clamp clamp_min
    clamp_max clip masked_fill igamma igammac
""".split()
SPECIAL = """
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx gammainc gammaincc gammaln i0 i0e i1 i1e log_ndtr
    modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri psi
    scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 zeta chebyshev_polynomial_t
    chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he
    laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
    shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
""".split()
ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh",
    "absolute": "abs", "negative": "neg", "fix": "trunc", "clip": "clamp", "arctan2": "atan2", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "gammaln": "lgamma", "psi": "digamma",
    "gammainc": "igamma", "gammaincc": "igammac", "multigammaln": "mvlgamma",
}  # fmt: skip
DUNDERS = {"and": "and", "or": "or", "xor": "xor", "lshift": "left_shift", "rshift": "right_shift"}


def pointwise(*, out: Any) -> Cost:
    """x[*] -> out[*]: 1 per output; none where Python is left to decide (``x == None``)."""
    return Cost(others=next(specs_in(out), Spec((0,))).numel())


for _name in (*UNARY, *BINARY, *SPECIAL, *ALIASES):
    formula(*named(_name, f"special_{_name}"), op=ALIASES.get(_name, _name))(pointwise)
for _symbol, _name in DUNDERS.items():
    formula(f"aten::__{_symbol}__", f"aten::__i{_symbol}__", op=f"bitwise_{_name}")(pointwise)


@formula(*named("where"))
def where(*, out: Any) -> Cost:
    """condition[*], x[*], y[*] -> out[*]: 1 selection per output; a condition alone is only looked through."""
    return Cost(others=out.numel() if isinstance(out, Spec) else 0)


@formula(*named("add"), op="add")
@formula(*named("sub", "subtract", "rsub"), op="sub")
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


@formula(*named("xlogy", "special_xlogy"), op="xlogy")
@formula(*named("xlog1py", "special_xlog1py"), op="xlog1py")
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


@formula(*named("isclose"))
def isclose(*, out: Spec) -> Cost:
    """x[*], y[*] -> out[*]: ``|x - y| <= atol + rtol |y|`` per output: 2 adds, 1 multiply, 2 absolutes, 1 compare."""
    return times(out.numel(), Cost(muls=1, adds=2, others=3))


@formula(*named("allclose"))
def allclose(input: Spec, other: Spec, *, out: bool) -> Cost:
    """x[*], y[*] -> bool: as isclose, per element."""
    return isclose(out=Spec(torch.broadcast_shapes(input, other)))


@formula(*named("isin"))
def isin(elements: Any, test_elements: Any, *, out: Spec) -> Cost:
    """x[*], tests[m] -> out[*]: m compares per output: each with each, a choice of ours."""
    return Cost(others=out.numel() * (test_elements.numel() if isinstance(test_elements, Spec) else 1))


@formula(*named("bucketize"))
def bucketize(input: Any, boundaries: Spec, *, out: Spec) -> Cost:
    """x[*], boundaries[k] -> out[*]: ceil(log2(k + 1)) compares per output: a binary search."""
    return Cost(others=out.numel() * math.ceil(math.log2(boundaries[-1] + 1)))


@formula(*named("searchsorted"))
def searchsorted(sorted_sequence: Spec, *, out: Spec) -> Cost:
    """sorted[*, k], x[*] -> out[*]: as bucketize."""
    return bucketize(None, sorted_sequence, out=out)


@formula(
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    *named("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
    op="dropout",
    traits=[MAYBE_NOTHING],
)  # fmt: skip
def dropout(
    input: Spec, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True, out: Spec
) -> Cost:
    """x[*] -> out[*]: in training 2 multiplies per output (the mask, the scale), in eval nothing."""
    return Cost(muls=2 * out.numel() if training and train and p > 0 else 0)


@formula(*named("native_dropout"), op="dropout")
def native_dropout(input: Spec, p: float, train: bool | None = True, *, out: tuple[Spec, Spec]) -> Cost:
    """x[*] -> out[*], mask[*]: as dropout; in training also where ``train`` is None."""
    return dropout(input, p, train is not False, out=out[0])
