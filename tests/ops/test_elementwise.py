"""Pointwise ops: one operation per output element, however the op is written. Fused ops follow their definitions."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import fxflops
from fxflops.ops import BASE
from fxflops.ops.elementwise import ALIASES, BINARY, SPECIAL, UNARY
from fxflops.records import Cost
from tests.kinds.calls import Calls
from tests.ops.draws import DTYPES, FUNCTION, META, Draw, Made, dims, draws, partner, same, tensor, unary
from tests.ops.textbook import agrees, between
from tests.oracle import Number, cost_of, numbers, tallying

X, Y = torch.rand(2, 3) + 0.5, torch.rand(4, 1, 3) + 0.5
N = 4 * 2 * 3
INTEGERS = {
    "bitwise_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "gcd",
    "lcm",
}
OF_ONE = [name for name in UNARY if hasattr(torch, name) and name not in ("mvlgamma", "polygamma")]
OF_TWO = [
    name
    for name in BINARY
    if hasattr(torch, name) and not name.startswith("clamp") and name not in ("clip", "masked_fill")
]
OF_AN_ORDER = [name for name in SPECIAL if "_polynomial_" in name]


@pytest.mark.parametrize("name", OF_ONE)
def test_one_per_element(name: str) -> None:
    x = torch.ones(2, 3, dtype=torch.int) if name in INTEGERS else X
    assert cost_of(getattr(torch, name), x).flops == 6
    if hasattr(torch.Tensor, name):
        assert cost_of(name, x).flops == 6
    if hasattr(torch.Tensor, f"{name}_") and not name.startswith("is"):
        assert cost_of(f"{name}_", x.clone()).flops == 6


@pytest.mark.parametrize("name", OF_TWO)
def test_one_per_output_of_two(name: str) -> None:
    x, y = (X.int() + 1, Y.int() + 1) if name in INTEGERS else (X, Y)
    assert cost_of(getattr(torch, name), x, y).flops == N


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str) -> None:
    function = getattr(torch.special, name)
    if name in OF_AN_ORDER:
        assert cost_of(function, X, 2) == Cost(others=6)
    elif name == "multigammaln":
        assert cost_of(function, X + 1, 2) == cost_of("mvlgamma", X + 1, 2) == Cost(others=6)
    elif name in ("gammainc", "gammaincc", "zeta"):
        assert cost_of(function, X, Y) == Cost(others=N)
    else:
        assert cost_of(function, X) == Cost(others=6)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        (lambda x: x + 1, Cost(adds=1)),
        (lambda x: 1 - x, Cost(adds=1)),
        (lambda x: x - 1, Cost(adds=1)),
        (lambda x: x * 2, Cost(muls=1)),
        (lambda x: 2 * x, Cost(muls=1)),
        (lambda x: x / 2, Cost(others=1)),
        (lambda x: 2 / x, Cost(others=1)),
        (lambda x: x**2, Cost(others=1)),
        (lambda x: 2**x, Cost(others=1)),
        (lambda x: x // 2, Cost(others=1)),
        (lambda x: 2 // x, Cost(others=1)),
        (lambda x: x % 2, Cost(others=1)),
        (lambda x: -x, Cost(others=1)),
        (lambda x: abs(x), Cost(others=1)),
        (lambda x: x == x, Cost(others=1)),
        (lambda x: x < 1, Cost(others=1)),
        (lambda x: operator.iadd(x, 1), Cost(adds=1)),
        (lambda x: operator.imul(x, 2), Cost(muls=1)),
        (lambda x: operator.itruediv(x, 2), Cost(others=1)),
        (lambda x: torch.ops.aten.add.Tensor(x, x), Cost(adds=1)),
        (lambda x: torch.ops.aten.mul_.Tensor(x, x), Cost(muls=1)),
        (lambda x: x.clamp(0, 1), Cost(others=1)),
        (lambda x: x.clamp_min(0), Cost(others=1)),
        (lambda x: torch.where(x > 5, x, x), Cost(others=2)),
        (lambda x: x.masked_fill(x.bool(), 0.0), Cost(others=1)),
        (lambda x: torch.polygamma(1, x), Cost(others=1)),
        (lambda x: x.int() << 1, Cost(others=1)),
        (lambda x: 1 << x.int(), Cost(others=1)),
        (lambda x: ~x.int() & 1 | 2 ^ x.int(), Cost(others=4)),
        (lambda x: 7 % x, Cost(others=1)),
        (lambda x: torch.frexp(x), Cost(others=1)),
        (lambda x: x if x == None else x + 1, Cost(adds=1)),  # noqa: E711
        (lambda x: torch.where(x > 5), Cost(others=1)),
        (lambda x: x.where(x > 5, 0.0), Cost(others=2)),
        (lambda x: torch.rsub(x, 1, alpha=3), Cost(muls=1, adds=1)),
        (lambda x: torch.add(x, 1, out=torch.empty(2, 3)), Cost(adds=1)),
    ],
    ids=str.split(
        "add rsub sub mul rmul div rdiv pow rpow floordiv rfloordiv mod neg abs eq lt iadd imul idiv aten_add aten_mul_ "
        "clamp clamp_min where masked_fill polygamma lshift rlshift bitwise rmod frexp is_none found where_method rsub_alpha out"
    ),
)
def test_operators(expression: Any, cost: Cost) -> None:
    """Compare the cost per element with the functions that a function mode sees in each expression."""
    seen: list[Cost] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunction():
                if BASE.find(func) is None or BASE.find(func).reason == "":
                    fresh = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
                    seen.append(cost_of(func, *fresh, **(kwargs or {})))
            return func(*args, **(kwargs or {}))

    x = X.clone()
    with Mode():
        expression(x)
    assert Cost(*map(sum, zip(*seen, strict=True))) == Cost(*(6 * part for part in cost))


@pytest.mark.parametrize(
    ("name", "args", "textbook"),
    [
        ("add", (X,), lambda x, y: x + y),
        ("addcmul", (X, X), lambda x, a, b: x + a * b),
        ("addcdiv", (X, X), lambda x, a, b: x + a / b),
        ("lerp", (X, 0.3), lambda x, end: x + (end - x) * 0.3),
        ("xlogy", (X,), lambda x, y: x * y.log()),
        ("isclose", (X,), lambda x, y: abs(x - y).compare(abs(y) * 1e-5 + 1e-8)),
    ],
    ids=["add", "addcmul", "addcdiv", "lerp", "xlogy", "isclose"],
)
def test_fused_ops(name: str, args: Any, textbook: Any) -> None:
    arity = textbook.__code__.co_argcount
    with tallying() as tally:
        for _ in range(6):
            textbook(*[Number()] * arity)
    assert tally == cost_of(getattr(torch, name), X, *args)
    assert tally == cost_of(name, X, *args)


def test_factors_cost_a_multiply() -> None:
    assert cost_of(torch.add, X, X, alpha=2) == cost_of(torch.sub, X, X, alpha=2) == Cost(muls=6, adds=6)
    assert cost_of(torch.addcmul, X, X, X, value=2) == Cost(muls=12, adds=6)
    assert cost_of(torch.addcdiv, X, X, X, value=2) == Cost(muls=6, adds=6, others=6)


def test_comparisons_that_give_one_bool() -> None:
    with tallying() as tally:
        for x, y in zip(numbers(6), numbers(6), strict=True):
            abs(x - y).compare(abs(y) * 1e-5 + 1e-8)
    assert tally == cost_of(torch.allclose, X, X) == cost_of(torch.allclose, X[:1, :1], X)
    assert cost_of(torch.equal, X, X) == cost_of("equal", X, X) == Cost(others=6)


def test_searches() -> None:
    """7 boundaries make 8 intervals: 3 compares find one."""
    boundaries = torch.linspace(0, 1, 7)
    assert cost_of(torch.bucketize, X, boundaries) == Cost(others=6 * 3)
    assert cost_of(torch.searchsorted, boundaries.expand(2, 7).contiguous(), X) == Cost(others=6 * 3)
    assert cost_of(torch.bucketize, 0.5, boundaries) == Cost(others=3)
    assert cost_of(torch.isin, X, torch.rand(4)) == Cost(others=6 * 4)
    assert cost_of(torch.isin, X, 0.5) == Cost(others=6)


def test_xlog1py_is_as_xlogy() -> None:
    assert cost_of(torch.special.xlog1py, X, Y) == cost_of(torch.special.xlogy, X, Y) == Cost(muls=N, others=N)


def test_polar() -> None:
    assert cost_of(torch.polar, X, X) == Cost(others=4 * 6)  # of real numbers, although the result is complex


def test_empty_and_scalar() -> None:
    assert cost_of(torch.exp, torch.ones(())) == Cost(others=1)
    assert cost_of(torch.exp, torch.ones(0, 3)) == Cost()


def test_aliases_are_one_op() -> None:
    for name, op in ALIASES.items():
        for target in (getattr(namespace, name, None) for namespace in (torch, torch.Tensor, torch.special)):
            if target is not None:
                entry = BASE.find(target)
                assert entry is not None
                assert entry.op == op


def test_ops_are_told_apart() -> None:
    spellings = {
        "add": [torch.add, operator.add, operator.iadd, torch.Tensor.add_, torch.ops.aten.add.Tensor],
        "sub": [torch.sub, torch.rsub, operator.sub, torch.Tensor.__rsub__, torch.ops.aten.sub_.Tensor],
        "bitwise_left_shift": [torch.bitwise_left_shift, operator.lshift, torch.ops.aten.__lshift__.Tensor],
        "bitwise_and": [torch.Tensor.__and__, operator.iand, torch.ops.aten.__iand__.Tensor],
    }
    for op, targets in spellings.items():
        assert {BASE.find(target).op for target in targets} == {op}


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("textbook", "settings"),
    [
        (lambda g, x: g / (x * (1 - x)), ()),
        (lambda g, x, eps: between(x, eps, 1 - eps, lambda: g / (x * (1 - x)), 0), (0.2,)),
    ],
)
def test_the_gradient_of_logit(textbook: Any, settings: tuple[float, ...]) -> None:
    g, x = torch.randn(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)
    agrees(aten.logit_backward.default, textbook, g, x, *settings)


@draws("same", of=FUNCTION)
def activation(draw: Draw, target: Any) -> Made:
    args, _ = unary(draw, target)
    return args, draw(st.sampled_from([{}, {"inplace": False}, {"inplace": True}]))


@draws("clamp")
def clamped(draw: Draw, target: Any) -> Made:
    (x,), _ = unary(draw, target)
    bounds = draw(st.sampled_from([(0,), (0.5,)]))
    if target.__name__ in ("clamp", "clip"):
        bounds = draw(st.sampled_from([(0,), (0, 1), (None, 2.5), (None, None), (torch.ones(x.shape, device=META),)]))
    return (x, *bounds), {}


def takes_tensors(target: Any) -> bool:
    """Return whether both of a target's arguments must be tensors."""
    return target.__name__ in ("maximum", "minimum", "atan2")


@draws("arithmetic", "arithmetic_in_place", "comparison", kind=takes_tensors)
def binary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    y = partner(draw, x)
    number = draw(st.sampled_from([2, 0.5, True, 1j]))
    if takes_tensors(target):
        return draw(st.sampled_from([(x, y), (y, x)])), {}
    return draw(st.sampled_from([(x, y), (y, x), (x, y), (x, number)])), {}


@draws("arithmetic_reversed")
def by_a_number(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.sampled_from([2, 0.5, 1.5, partner(draw, x)]))), {}


@draws("addcmul", kind=same)
def ternary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, partner(draw, x), partner(draw, x)), {}


@draws("where")
def chosen(draw: Draw, target: Any) -> Made:
    (x, y, z), _ = ternary(draw, target)
    condition = tensor(draw, z.shape, torch.bool if draw(st.integers(0, 5)) else torch.float32)
    return draw(st.sampled_from([(condition, x, y), (condition, y, x), (condition, x, 0.5)])), {}


@draws("masked_fill", kind=same)
def filled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, tensor(draw, partner(draw, x).shape, torch.bool), draw(st.sampled_from([0, -math.inf]))), {}


@pytest.mark.parametrize("name", ["reciprocal", "square", "sgn", "neg", "abs", "pow", "float_power", "div", "addcdiv"])
def test_complex_numbers_without_imaginary_part_cost_more_than_real_ones(name: str) -> None:
    """Each is several real operations by its definition. The operator and the function cost the same."""
    operands = {"addcdiv": 3, "div": 2}.get(name, 1)
    exponent = (2,) if name in ("pow", "float_power") else ()
    x, z = ((X.to(dtype),) * operands for dtype in (torch.float32, torch.complex64))
    real, complex_, by_operator = (
        fxflops.count(Calls(lambda *t, f=function: f(*t, *exponent)), given).total_flops
        for function, given in (
            (getattr(torch, name), x),
            (getattr(torch, name), z),
            (getattr(torch.ops.aten, name), z),
        )
    )
    assert complex_ == by_operator >= 2 * real == 12 * (1 + (name == "addcdiv"))
