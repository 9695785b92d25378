"""Operations are integer operations or FLOPs by the dtype in which torch computes, however the call is written.

The oracle is torch. If a call on integers computes with real numbers, it must count like the same call on integers that were
converted first. The dtype of torch's result shows which calls these are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fxflops
from tests.kinds.calls import Calls

CONVERTED = "sum", "prod", "cumsum:0", "cumprod:0"
IDS = torch.arange(1, 13).reshape(3, 4)
PIXELS = torch.full((1, 3, 8, 8), 7, dtype=torch.uint8)
MASK = IDS > 5
REAL = torch.rand(3, 4)
UNARY = """
    abs acos angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor i0 lgamma log
    log10 log1p log2 logit neg rad2deg reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt square tan tanh trunc
    sum prod cumsum:0 cumprod:0 argmax amax:0 any all bitwise_not logical_not isfinite signbit sgn nan_to_num positive
""".split()
BINARY = """
    add sub mul div true_divide floor_divide remainder fmod pow float_power atan2 maximum minimum fmax fmin eq ne lt le gt
    ge bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor gcd lcm copysign xlogy logaddexp ldexp
    heaviside matmul
""".split()


def kinds(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[int, int]:
    """Return the FLOPs and integer operations, after checking that count and analyze agree."""
    report = fxflops.count(Calls(function), tensors)
    assert report.complete
    timed = fxflops.analyze(Calls(function), tensors, repeats=0, progress=False)
    assert (timed.total_flops, timed.total_int_ops) == (report.total_flops, report.total_int_ops)
    return report.total_flops, report.total_int_ops


def called(name: str) -> Callable[..., Any]:
    name, _, dim = name.partition(":")
    function = getattr(torch, name)
    return (lambda *t, **out: function(*t, int(dim), **out)) if dim else function


@pytest.mark.parametrize(("name", "operands"), [(n, 1) for n in UNARY] + [(n, 2) for n in BINARY])
def test_every_form_of_a_call_is_of_one_kind(name: str, operands: int) -> None:
    function, given = called(name), (IDS, IDS.T.contiguous() if name == "matmul" else IDS)[:operands]
    try:
        result = function(*given)
    except RuntimeError:
        pytest.skip("not for integers")
    flops, integer = kinds(function, *given)
    if result.is_floating_point():  # torch converted the integers, and computed with real numbers
        assert integer == 0
        assert (flops, integer) == kinds(function, *(tensor.float() for tensor in given))
    else:
        assert flops == 0
    # Writing the result to out= does not change the computation, except that sums and products are computed in the dtype of out.
    for dtype in (result.dtype, torch.float64)[: 1 if name in CONVERTED else 2]:
        out = torch.empty(result.shape, dtype=dtype)
        try:
            function(*given, out=out)
        except (RuntimeError, TypeError):
            continue
        elsewhere = kinds(lambda *t, d=dtype: function(*t, out=torch.empty(result.shape, dtype=d)), *given)
        assert elsewhere == (flops, integer), dtype


SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "pixels to [0, 1]": (lambda x: x / 255, lambda x: x.float() / 255, (PIXELS,)),
    "by a method": (lambda x: x.div(255), lambda x: x.float() / 255, (PIXELS,)),
    "out=": (lambda x: torch.div(x, 255, out=torch.empty(x.shape)), lambda x: x.float() / 255, (PIXELS,)),
    "normalized": (lambda x: (x - 128) / 58.4, lambda x: (x - 128).float() / 58.4, (PIXELS,)),
    "softmax(dtype=)": (lambda x: x.softmax(-1, dtype=torch.float32), lambda x: x.float().softmax(-1), (IDS,)),
    "F.log_softmax": (lambda x: F.log_softmax(x, 1, dtype=torch.float64), lambda x: x.double().log_softmax(1), (IDS,)),
    "mean(dtype=)": (lambda x: x.mean(dtype=torch.float32), lambda x: x.float().mean(), (MASK,)),
    "sum(dtype=)": (lambda x: x.sum(1, dtype=torch.float32), lambda x: x.float().sum(1), (MASK,)),
    "sum of real numbers as integers": (lambda x: x.sum(dtype=torch.int64), lambda x: x.long().sum(), (REAL,)),
    "sum into integers": (lambda x: torch.sum(x, 0, out=torch.empty(4, dtype=torch.int64)), lambda x: x.long().sum(0), (REAL,)),
    "cumsum(dtype=)": (lambda x: x.cumsum(1, dtype=torch.float32), lambda x: x.float().cumsum(1), (IDS,)),
    "mask to bias": (lambda x: (x > 3) * -1e4, lambda x: (x > 3).float() * -1e4, (REAL,)),
    "1 - mask": (lambda x: (1.0 - x) * -1e4, lambda x: (1.0 - x.float()) * -1e4, (IDS,)),
    "frequencies": (lambda x: x * 10000 ** (torch.arange(0, 8, 2) / 8), lambda x: x * 10000 ** (torch.arange(0, 8, 2).float() / 8), (REAL,)),
    "a real power": (lambda x: x**0.5, lambda x: x.float() ** 0.5, (IDS,)),
    "a power of a real number": (lambda x: 2.0**x, lambda x: 2.0 ** x.float(), (IDS,)),
    "over": (lambda x: 1 / x, lambda x: 1 / x.float(), (IDS,)),
    "floored by a real number": (lambda x: x // 2.5, lambda x: x.float() // 2.5, (IDS,)),
    "compared with a real number": (lambda x: x < 3.5, lambda x: x.float() < 3.5, (IDS,)),
    "bounded by real numbers": (lambda x: x.clamp(0.5, 3.5), lambda x: x.float().clamp(0.5, 3.5), (IDS,)),
    "tolerance": (lambda x: torch.isclose(x, x), lambda x: torch.isclose(x.float(), x.float()), (IDS,)),
    "chosen from real numbers": (lambda x: torch.where(x, 1.0, 0.0), lambda x: torch.where(x, REAL, REAL), (MASK,)),
    "a module": (nn.Sigmoid(), lambda x: x.float().sigmoid(), (IDS,)),
    "transformed": (torch.fft.fft, lambda x: torch.fft.fft(x.float()), (IDS,)),
    "covariance": (torch.cov, lambda x: torch.cov(x.float()), (IDS,)),
    "a product with real numbers": (lambda x, y: x * y, lambda x, y: x.float() * y, (IDS, REAL)),
    "compared with real numbers": (torch.lt, lambda x, y: x.float() < y, (IDS, REAL)),
    "searched among real numbers": (torch.bucketize, lambda x, y: torch.bucketize(x.float(), y), (IDS, REAL[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_integers_made_real_by_torch_count_as_if_converted_before(name: str) -> None:
    function, written_out, tensors = SAME[name]
    assert kinds(function, *tensors) == kinds(written_out, *tensors)


INTEGER: dict[str, tuple[Callable[..., Any], int]] = {
    "halved": (lambda x: x // 2, 12),
    "halved, rounded": (lambda x: torch.div(x, 2, rounding_mode="trunc"), 12),
    "compared": (lambda x: x < 3, 12),
    "compared into real numbers": (lambda x: torch.lt(x, 3, out=torch.empty(3, 4)), 12),
    "added into real numbers": (lambda x: torch.add(x, x, out=torch.empty(3, 4)), 12),
    "a mask counted": (lambda x: (x == x).sum(), 12 + 11),
    "positions": (lambda x: torch.arange(x.shape[1]) * 2 + 1, 8),
    "matmul": (lambda x: x @ x.T, 9 * (4 + 3)),
    "chosen": (lambda x: torch.where(x > 3, x, 0), 24),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers_that_stay_integers_are_no_flops(name: str) -> None:
    function, operations = INTEGER[name]
    assert kinds(function, IDS) == (0, operations)


def test_pixels_are_192_divisions() -> None:
    assert kinds(lambda x: x / 255, PIXELS) == (192, 0)


COMPLEX: dict[str, tuple[Callable[..., Any], int]] = {  # by hand: a complex product is 6 operations, a sum 2
    "product": (lambda x, z: z * z, 6 * 12),
    "product with a real one": (lambda x, z: x * z, 6 * 12),
    "made complex": (lambda x, z: x * 1j, 6 * 12),
    "sum of real ones, written as complex": (lambda x, z: torch.add(x, x, out=torch.empty(3, 4, dtype=torch.complex64)), 12),
    "a cosine, a sine and two products": (lambda x, z: torch.polar(x, x), 4 * 12),
    "summed as complex": (lambda x, z: x.sum(dtype=torch.complex64), 2 * 11),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_arithmetic_is_counted_where_torch_computes_with_complex_numbers(name: str) -> None:
    function, flops = COMPLEX[name]
    assert kinds(function, REAL, torch.rand(3, 4, dtype=torch.complex64)) == (flops, 0)


class RealOperations(TorchDispatchMode):
    """Counts one operation for each number that an operator of real arithmetic computes, and one for each addition in a reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("add", "sub", "mul", "div", "neg", "sqrt"):
            self.count += out.numel()
        elif name in ("sum", "amax"):
            self.count += args[0].numel() - out.numel()
        else:
            assert not out.is_floating_point() or name in ("stack", "select", "view", "alias", "unsqueeze"), name
        return out


Parts = tuple[torch.Tensor, torch.Tensor]


def times(z: Parts, w: Parts) -> Parts:
    return z[0] * w[0] - z[1] * w[1], z[0] * w[1] + z[1] * w[0]


def inverse(z: Parts) -> Parts:
    length = z[0] * z[0] + z[1] * z[1]
    return z[0] / length, -z[1] / length


def over(z: Parts, w: Parts) -> Parts:
    length = w[0] * w[0] + w[1] * w[1]
    return (z[0] * w[0] + z[1] * w[1]) / length, (z[1] * w[0] - z[0] * w[1]) / length


def plus(z: Parts, w: Parts) -> Parts:
    return z[0] + w[0], z[1] + w[1]


def length(z: Parts) -> torch.Tensor:
    return (z[0] * z[0] + z[1] * z[1]).sqrt()


def direction(z: Parts) -> Parts:
    return z[0] / (distance := length(z)), z[1] / distance


Z, W = torch.rand(2, 3, 4, dtype=torch.complex64) + 0.5
DIVISIONS = (
    lambda z, w: z / w, torch.div, torch.true_divide, torch.divide, operator.truediv, torch.Tensor.div,
    lambda z, w: z.clone().div_(w), lambda z, w: torch.div(z, w, out=torch.empty_like(z)), torch.ops.aten.div.Tensor,
    lambda z, w: torch._foreach_div([z], [w])[0], lambda z, w: operator.itruediv(z.clone(), w),
)  # fmt: skip
BY_PARTS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    *((each, over) for each in DIVISIONS),
    (lambda z, w: z.reciprocal(), lambda z, w: inverse(z)),
    (lambda z, w: torch._foreach_reciprocal([z])[0], lambda z, w: inverse(z)),
    (lambda z, w: z**-1, lambda z, w: inverse(z)),
    (lambda z, w: z**2, lambda z, w: times(z, z)),
    (lambda z, w: z.square(), lambda z, w: times(z, z)),
    (lambda z, w: torch.pow(z, 2.0), lambda z, w: times(z, z)),
    (lambda z, w: torch._foreach_pow([z], 2)[0], lambda z, w: times(z, z)),
    (lambda z, w: z.clone().pow_(3), lambda z, w: times(times(z, z), z)),
    (lambda z, w: z**-2, lambda z, w: inverse(times(z, z))),
    (lambda z, w: z.abs(), lambda z, w: length(z)),
    (lambda z, w: abs(z), lambda z, w: length(z)),
    (lambda z, w: torch.absolute(z), lambda z, w: length(z)),
    (lambda z, w: torch._foreach_abs([z])[0], lambda z, w: length(z)),
    (lambda z, w: -z, lambda z, w: (-z[0], -z[1])),
    (lambda z, w: z.sgn(), lambda z, w: direction(z)),
    (lambda z, w: torch.addcmul(z, z, w), lambda z, w: plus(z, times(z, w))),
    (lambda z, w: torch.addcdiv(z, z, w), lambda z, w: plus(z, over(z, w))),
    (lambda z, w: z.mean(), lambda z, w: (z[0].sum() / 12, z[1].sum() / 12)),
    (lambda z, w: torch.linalg.vector_norm(z), lambda z, w: (torch.stack(z) * torch.stack(z)).sum().sqrt()),
    (lambda z, w: torch.linalg.vector_norm(z, 1), lambda z, w: length(z).sum()),
    (lambda z, w: torch.linalg.vector_norm(z, float("inf")), lambda z, w: length(z).amax()),
]


@pytest.mark.parametrize(("function", "written_out"), BY_PARTS)
def test_complex_arithmetic_is_its_definition_in_real_operations(
    function: Callable[..., Any], written_out: Callable[..., Any]
) -> None:
    z, w = (Z.real.clone(), Z.imag.clone()), (W.real.clone(), W.imag.clone())
    with RealOperations() as real:
        result = written_out(z, w)
    result = torch.complex(*result) if isinstance(result, tuple) else result
    torch.testing.assert_close(function(Z, W), result)
    assert kinds(function, Z, W) == (real.count, 0)
