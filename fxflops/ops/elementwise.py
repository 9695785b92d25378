"""Pointwise arithmetic: one operation per output element. Fused ops count each operation of their definition."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._cost import by_parts, is_complex
from ._extend import ORDERED, POINTWISE, Cost, Spec, broadcast, formula, named, shape, specs_in, spelled, times

NUMBER = (int, float)
LIKE_THEIR_INPUT = "abs ceil cos erf exp expm1 floor log log1p neg reciprocal round rsqrt sin sqrt square"
UNARY = f"""
    {LIKE_THEIR_INPUT} acos acosh asin asinh atan atanh conj_physical cosh deg2rad digamma erfc erfinv exp2 frac frexp
    lgamma log10 log2 logit mvlgamma nan_to_num polygamma rad2deg sgn sign signbit sinc sinh tan trunc fix absolute negative
    isnan isinf isfinite isposinf isneginf isreal logical_not bitwise_not angle
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
    """x[*] -> out[*]: 1 per output.

    A method that returns NotImplemented computes nothing, e.g. in ``x == None``.
    """
    return Cost(others=next(specs_in(out), Spec((0,))).numel())


DEFINED = frozenset("abs absolute neg negative reciprocal square sgn pow float_power".split())
"""Ops that take several real operations on complex numbers. A function such as exp or sqrt counts 1 for a complex number too."""
for _name in (*UNARY, *BINARY, *SPECIAL, *ALIASES):
    if _name in DEFINED:
        continue
    formula(*named(_name, f"special_{_name}"), op=ALIASES.get(_name, _name))(pointwise)
for _symbol, _name in DUNDERS.items():
    formula(f"aten::__{_symbol}__", f"aten::__i{_symbol}__", op=f"bitwise_{_name}")(pointwise)


@formula(*named("abs", "absolute"), op="abs")
def absolute(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output; complex: sqrt(a^2 + b^2): 2 multiplies, 1 add and 1 root."""
    return by_parts(out.numel(), muls=2, adds=1, others=1) if is_complex(input) else Cost(others=out.numel())


@formula(*named("neg", "negative"), op="neg")
def negative(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output; complex: 2."""
    return Cost(others=(2 if is_complex(input) else 1) * out.numel())


@formula(*named("reciprocal"))
def reciprocal(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output; complex: (c - di) / (c^2 + d^2): 2 multiplies, 1 add, 1 negation and 2 divides."""
    return by_parts(out.numel(), muls=2, adds=1, others=3) if is_complex(input) else Cost(others=out.numel())


@formula(*named("square"))
def square(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output; complex: counted like x * x."""
    return mul(out=out) if is_complex(input) else Cost(others=out.numel())


@formula(*named("sgn"))
def sgn(input: Spec, *, out: Spec) -> Cost:
    """x[*] -> out[*]: 1 per output; complex: x / abs(x): the cost of abs, plus 2 divides."""
    return by_parts(out.numel(), muls=2, adds=1, others=3) if is_complex(input) else Cost(others=out.numel())


POWERS = {2: 1, 3: 2, -2: 1, -1: 0}
"""The number of complex products in a power with each of these exponents; torch computes other powers with exp and log."""


@formula(*(target for target in named("pow") if target is not torch.Tensor.__rpow__), op="pow")
@formula(*named("float_power"), op="float_power")
def pow(input: Any, exponent: Any = None, *, out: Any) -> Cost:
    """x[*] ** y[*] -> out[*]: 1 per output; complex x: y = 2 counts like x * x, 3 like x * x * x, -1 like reciprocal(x), -2 like reciprocal(x * x)."""
    computed = next(specs_in(out), Spec((0,)))  # empty if the method returns NotImplemented
    if isinstance(exponent, Spec) or exponent not in POWERS or not is_complex(input):
        return pointwise(out=out)
    products = times(POWERS[exponent], mul(out=computed))
    return products if exponent in (2, 3) else products.plus(reciprocal(input, out=computed))


formula(torch.Tensor.__rpow__, op="pow")(pointwise)


def same(input: Spec, inplace: bool = False) -> Spec | None:
    """x[*] -> out[*], or None if x is not floating point."""
    if not input.dtype.is_floating_point:
        return None
    return input if inplace else Spec(input, input.dtype)


def in_place(input: Spec) -> Spec | None:
    """x[*] -> x[*]."""
    return same(input, inplace=True)


shape(*spelled(LIKE_THEIR_INPUT, torch, torch.Tensor), layout=POINTWISE)(same)
shape(*spelled(LIKE_THEIR_INPUT.replace(" ", "_ ") + "_", torch, torch.Tensor), layout=POINTWISE)(in_place)


@shape(*spelled("clamp clip clamp_min clamp_max", torch, torch.Tensor), layout=ORDERED)
def clamp_shape(input: Spec, min: float | None = None, max: float | None = None) -> Spec | None:
    """x[*] -> out[*], or None if a bound is a tensor."""
    numbers = all(value is None or type(value) in NUMBER for value in (min, max))
    return same(input) if numbers and (min, max) != (None, None) else None


@shape(
    *spelled("eq ne lt le gt ge", torch, torch.Tensor),
    *spelled("__eq__ __ne__ __lt__ __le__ __gt__ __ge__", torch.Tensor),
    layout=POINTWISE,
)
def comparison(input: Any, other: Any) -> Spec | None:
    """x[*], y[*] -> out[*] of booleans, broadcast."""
    out = together(input, other)
    return None if out is None else Spec(out, torch.bool)


@shape(torch.masked_fill, torch.Tensor.masked_fill)
def masked_fill_shape(input: Spec, mask: Spec, value: Any) -> Spec | None:
    """x[*], m[*] -> out[*], where the mask m is broadcast to x."""
    if type(value) not in NUMBER or mask.dtype is not torch.bool or not input.dtype.is_floating_point:
        return None
    return Spec(input, input.dtype) if broadcast(input, mask) == tuple(input) else None


def together(*operands: Any) -> Spec | None:
    """Return the broadcast result of floating-point tensors of one dtype and of numbers, or None for other operands."""
    specs = [value for value in operands if isinstance(value, Spec)]
    if len({spec.dtype for spec in specs}) != 1 or not specs[0].dtype.is_floating_point:
        return None
    if not all(type(value) in NUMBER for value in operands if not isinstance(value, Spec)):
        return None
    sizes = broadcast(*specs)
    return None if sizes is None else Spec(sizes, specs[0].dtype)


@formula(*named("logit_backward"))
def logit_backward(grad_output: Spec, input: Spec, eps: float | None = None, *, out: Spec) -> Cost:
    """grad[*], x[*] -> out[*]: grad / (x * (1 - x)): 3 per output, or 5 if ``eps`` clamps x."""
    return times(out.numel(), Cost(muls=1, adds=1, others=1 if eps is None else 3))


@formula(*named("where"))
def where(*, out: Any) -> Cost:
    """condition[*], x[*], y[*] -> out[*]: 1 selection per output; nothing if only the condition is passed."""
    return Cost(others=out.numel() if isinstance(out, Spec) else 0)


@where.shape(torch.where, layout=POINTWISE)
def where_shape(condition: Spec, input: Any, other: Any) -> Spec | None:
    """c[*], x[*], y[*] -> out[*], broadcast, or None if x or y is a number."""
    if not isinstance(input, Spec) or not isinstance(other, Spec) or condition.dtype is not torch.bool:
        return None
    chosen = together(input, other)
    sizes = None if chosen is None else broadcast(condition, chosen)
    return None if chosen is None or sizes is None else Spec(sizes, chosen.dtype)


@formula(*named("add"), op="add")
@formula(*named("sub", "subtract", "rsub"), op="sub")
def add(input: Any, other: Any, alpha: float = 1, *, out: Spec) -> Cost:
    """x[*] + alpha * y[*] -> out[*]: 1 add per output, plus 1 multiply if alpha is not 1."""
    return Cost(muls=0 if alpha == 1 else out.numel(), adds=out.numel())


@formula(*named("mul", "multiply"))
def mul(*, out: Spec) -> Cost:
    """x[*] * y[*] -> out[*]: 1 multiply per output."""
    return Cost(muls=out.numel())


@formula(*named("div", "divide", "true_divide"))
def div(input: Any, other: Any = None, *, out: Spec) -> Cost:
    """x[*] / y[*] -> out[*]: 1 divide per output, which includes rounding by ``rounding_mode``; complex: 11 per output.

    The complex quotient (a + bi) / (c + di) = ((ac + bd) + (bc - ad)i) / (c^2 + d^2) takes 6 multiplies, 3 adds and 2 divides.
    """
    return by_parts(out.numel(), muls=6, adds=3, others=2) if is_complex(input, other) else Cost(others=out.numel())


@add.shape(
    *spelled("add sub subtract", torch, torch.Tensor),
    *spelled("__add__ __radd__ __sub__", torch.Tensor),
    layout=POINTWISE,
)
@mul.shape(*spelled("mul multiply", torch, torch.Tensor), *spelled("__mul__ __rmul__", torch.Tensor), layout=POINTWISE)
@div.shape(
    *spelled("div divide true_divide", torch, torch.Tensor),
    *spelled("__truediv__ __div__", torch.Tensor),
    layout=POINTWISE,
)
@shape(*spelled("pow maximum minimum remainder atan2", torch, torch.Tensor), layout=POINTWISE)
def arithmetic(input: Any, other: Any, *former: Any) -> Spec | None:
    """x[*], y[*] -> out[*], broadcast, or None if dtypes differ, and for the deprecated ``add(x, alpha, y)``."""
    return None if former else together(input, other)


@add.shape(*spelled("add_ sub_ __iadd__ __isub__", torch.Tensor), layout=POINTWISE)
@mul.shape(*spelled("mul_ __imul__", torch.Tensor), layout=POINTWISE)
@div.shape(*spelled("div_ __itruediv__", torch.Tensor), layout=POINTWISE)
@shape(torch.Tensor.pow_, layout=POINTWISE)
def arithmetic_in_place(input: Spec, other: Any, *former: Any) -> Spec | None:
    """x[*], y[*] -> x[*]."""
    out = None if former else together(input, other)
    return input if out is not None and tuple(out) == tuple(input) else None


@add.shape(torch.Tensor.__rsub__, layout=POINTWISE)
def arithmetic_reversed(input: Spec, other: Any) -> Spec | None:
    """x[*], a number -> out[*], or None for two tensors, because the kernel swaps them.

    1 / x has no rule: torch computes a reciprocal and a product.
    """
    return None if isinstance(other, Spec) else together(input, other)


@formula(*named("lerp"))
def lerp(*, out: Spec) -> Cost:
    """start[*] + weight * (end[*] - start[*]) -> out[*]: 2 adds and 1 multiply per output."""
    return Cost(muls=out.numel(), adds=2 * out.numel())


@formula(*named("addcmul"))
def addcmul(input: Spec, tensor1: Spec, tensor2: Spec, value: float = 1, *, out: Spec) -> Cost:
    """x[*] + value * a[*] * b[*] -> out[*]: 1 multiply and 1 add per output, plus 1 multiply if value is not 1."""
    return Cost(muls=(1 + (value != 1)) * out.numel(), adds=out.numel())


@formula(*named("addcdiv"))
def addcdiv(input: Spec, tensor1: Spec, tensor2: Spec, value: float = 1, *, out: Spec) -> Cost:
    """x[*] + value * a[*] / b[*] -> out[*]: the cost of div and 1 add per output, plus 1 multiply if value is not 1."""
    return Cost(muls=(value != 1) * out.numel(), adds=out.numel()).plus(div(tensor1, tensor2, out=out))


@addcmul.shape(torch.addcmul, torch.Tensor.addcmul, layout=ORDERED)
@addcdiv.shape(torch.addcdiv, torch.Tensor.addcdiv, layout=ORDERED)
def addcmul_shape(input: Spec, tensor1: Spec, tensor2: Spec, *former: Any) -> Spec | None:
    """x[*], y[*], z[*] -> out[*], broadcast."""
    return None if former else together(input, tensor1, tensor2)


@formula(*named("xlogy", "special_xlogy"), op="xlogy")
@formula(*named("xlog1py", "special_xlog1py"), op="xlog1py")
def xlogy(*, out: Spec) -> Cost:
    """x[*] * log(y[*]) -> out[*]: 1 logarithm and 1 multiply per output."""
    return Cost(muls=out.numel(), others=out.numel())


@formula(torch.polar, "aten::polar")
def polar(*, out: Spec) -> Cost:
    """abs[*], angle[*] -> out[*]: a cosine, a sine and 2 multiplies of real numbers per output."""
    # The multiplies are counted as ``others``: with a complex result, ``muls`` would be counted as complex products.
    return Cost(others=4 * out.numel())


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
    """x[*], y[*] -> bool: the cost of isclose for each element."""
    return isclose(out=Spec(torch.broadcast_shapes(input, other)))


@formula(*named("isin"))
def isin(elements: Any, test_elements: Any, *, out: Spec) -> Cost:
    """x[*], tests[m] -> out[*]: m compares per output, since fxflops counts a compare of every pair."""
    return Cost(others=out.numel() * (test_elements.numel() if isinstance(test_elements, Spec) else 1))


@formula(*named("bucketize"))
def bucketize(input: Any, boundaries: Spec, *, out: Spec) -> Cost:
    """x[*], boundaries[k] -> out[*]: ceil(log2(k + 1)) compares per output, for a binary search."""
    return Cost(others=out.numel() * math.ceil(math.log2(boundaries[-1] + 1)))


@formula(*named("searchsorted"))
def searchsorted(sorted_sequence: Spec, *, out: Spec) -> Cost:
    """sorted[*, k], x[*] -> out[*]: counted like bucketize."""
    return bucketize(None, sorted_sequence, out=out)
