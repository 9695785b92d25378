"""Quantized contractions: the product on counting numbers, and its conversion to quantized or real numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxflops.errors import FormulaError
from fxflops.records import Cost, Spec
from tests.ops.test_quantized import SCALE, ZERO, dequantize, other, quantize, quantized, ranged
from tests.oracle import cost_by_name, cost_of, numbers, tallying

pytestmark = pytest.mark.filterwarnings("ignore")
ops = torch.ops.quantized
I, O = 5, 3  # noqa: E741
X = torch.rand(4, I)
REAL, CODES = torch.float32, torch.quint8


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    # Avoid qnnpack if possible: it packs zeros where there is no bias.
    others = [engine for engine in torch.backends.quantized.supported_engines if engine in ("x86", "fbgemm")]
    torch.backends.quantized.engine = (others or [before])[0]
    yield
    torch.backends.quantized.engine = before


def weight(*shape: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.rand(shape), 0.1, 0, torch.qint8)


def requantized(sums: Any) -> Any:
    """Multiply by the scale, round, add the zero point, clamp."""
    return other(other(sums * SCALE) + ZERO)


def product(bias: bool = True) -> Any:
    sums = numbers(4, I) @ numbers(I, O)
    return sums + numbers(O) if bias else sums


def test_linear() -> None:
    x = quantized(X)
    for bias in (None, torch.rand(O)):
        packed = ops.linear_prepack(weight(O, I), bias)
        with tallying() as tally:
            requantized(product(bias is not None))
        cost = cost_of(ops.linear, x, packed, SCALE, ZERO)
        assert tally == cost
        assert cost.macs == 4 * I * O
        assert cost_of(ops.linear_relu, x, packed, SCALE, ZERO) == cost.plus(Cost(others=4 * O))


def test_linear_with_an_activation() -> None:
    packed = Spec((O, I), torch.qint8), Spec((O,))
    args = Spec((4, I), CODES), packed, SCALE, ZERO
    with tallying() as tally:
        other(requantized(product()))
    assert tally == cost_by_name("quantized::linear_tanh", *args, out=Spec((4, O), CODES))
    assert tally == cost_by_name("quantized::linear_leaky_relu", *args, 0.1, out=Spec((4, O), CODES))


def test_linear_dynamic() -> None:
    packed = ops.linear_prepack(weight(O, I), torch.rand(O))
    with tallying() as tally:
        ranged(X.numel())
        quantize(numbers(4, I))
        product() * SCALE
    cost = cost_of(ops.linear_dynamic, X, packed)
    assert tally == cost
    assert cost_of(ops.linear_relu_dynamic, X, packed) == cost.plus(Cost(others=4 * O))


def test_linear_of_half_precision() -> None:
    packed = Spec((O, I)), Spec((O,))
    with tallying() as tally:
        product()
    args = Spec((4, I)), packed
    cost = cost_by_name("quantized::linear_dynamic_fp16", *args, out=Spec((4, O)))
    assert tally == cost
    relu = cost_by_name("quantized::linear_relu_dynamic_fp16", *args, out=Spec((4, O)))
    assert relu == cost.plus(Cost(others=4 * O))
    name = "quantized::linear_dynamic_fp16_unpacked_weight"
    assert cost_by_name(name, Spec((4, I)), *packed, out=Spec((4, O))) == cost


def test_linear_between_floats() -> None:
    name = "quantized::linear_with_input_q_dq_qweight_dq_output_fp32"
    packed = Spec((O, I), torch.qint8), Spec((O,))
    with tallying() as tally:
        quantize(numbers(4, I))
        product() * SCALE
    assert tally == cost_by_name(name, Spec((4, I)), SCALE, ZERO, packed, out=Spec((4, O)))


@pytest.mark.parametrize("d", [1, 2])
def test_conv(d: int, torch_macs: Any) -> None:
    image, kernel = torch.rand(1, 4, *[6] * d), (6, 2, *[3] * d)
    packed = getattr(ops, f"conv{d}d_prepack")(weight(*kernel), torch.rand(6), [1] * d, [0] * d, [1] * d, 2)
    outputs, k = 6 * 4**d, 2 * 3**d
    with tallying() as tally:
        requantized(numbers(outputs, k) @ numbers(k) + numbers(outputs))
    cost = cost_of(getattr(ops, f"conv{d}d"), quantized(image), packed, SCALE, ZERO)
    assert tally == cost
    assert cost.macs == torch_macs(getattr(F, f"conv{d}d"), image, torch.rand(kernel), groups=2)
    relu = cost_of(getattr(ops, f"conv{d}d_relu"), quantized(image), packed, SCALE, ZERO)
    assert relu == cost.plus(Cost(others=outputs))


def test_conv_and_a_sum() -> None:
    x, out = Spec((1, 4, 6, 6), CODES), Spec((1, 6, 4, 4), CODES)
    packed = Spec((6, 4, 3, 3), torch.qint8), None
    with tallying() as tally:
        requantized(numbers(96, 36) @ numbers(36) + dequantize(numbers(96)))
    args = x, out, packed, SCALE, ZERO
    assert tally == cost_by_name("quantized::conv2d_add", *args, out=out)
    assert cost_by_name("quantized::conv2d_add_relu", *args, out=out).others == tally.others + 96


@pytest.mark.parametrize("d", [1, 2, 3])
def test_conv_dynamic(d: int) -> None:
    x, out, packed = Spec((1, 4, *[6] * d)), Spec((1, 6, *[4] * d)), (Spec((6, 4, *[3] * d)), None)
    with tallying() as tally:
        ranged(x.numel())
        quantize(numbers(x.numel()))
        (numbers(out.numel(), 4 * 3**d) @ numbers(4 * 3**d)) * SCALE
    assert tally == cost_by_name(f"quantized::conv{d}d_dynamic", x, packed, out=out)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_conv_transpose(d: int) -> None:
    """Each input meets 6 * 3^d weights. Each output needs one add fewer than it has products."""
    x, out, packed = Spec((1, 4, *[4] * d)), Spec((1, 6, *[6] * d)), (Spec((4, 6, *[3] * d)), None)
    products = 4 * 4**d * 6 * 3**d
    outputs = 6 * 6**d
    summed = Cost(macs=products, muls=products, adds=products - outputs)
    with tallying() as tally:
        requantized(numbers(outputs))
    cost = cost_by_name(f"quantized::conv_transpose{d}d", x, packed, SCALE, ZERO, out=out)
    assert cost == summed.plus(Cost(0, tally.muls, tally.adds, tally.others))
    with tallying() as tally:
        ranged(x.numel())
        quantize(numbers(x.numel()))
        numbers(outputs) * SCALE
    dynamic = cost_by_name(f"quantized::conv_transpose{d}d_dynamic", x, packed, out=out)
    assert dynamic == summed.plus(Cost(0, tally.muls, tally.adds, tally.others))


def test_matmul_and_pools() -> None:
    with tallying() as tally:
        requantized(product(bias=False))
    assert tally == cost_of(ops.matmul, quantized(X), quantized(torch.rand(I, O)), SCALE, ZERO)
    int4 = cost_by_name("quantized::int4mm_packed_weight_cpu", Spec((4, I)), Spec((O, I)), out=Spec((4, O)))
    assert int4.macs == 4 * I * O
    image = quantized(torch.rand(1, 2, 4, 4))
    args = [2, 2], [2, 2], [0, 0], [1, 1], False
    assert cost_of(ops.max_pool2d, image, *args) == Cost(others=3 * 2 * 2 * 2)
    line = cost_by_name("quantized::max_pool1d", Spec((1, 2, 4)), [2], out=Spec((1, 2, 2)))
    assert line == Cost(others=2 * 2)


def test_packing_is_a_move() -> None:
    packed = ops.linear_prepack(weight(O, I), None)
    assert cost_of(ops.linear_prepack, weight(O, I), None) == cost_of(ops.linear_unpack, packed) == Cost()


def test_what_is_packed_otherwise_is_not_known() -> None:
    with pytest.raises(FormulaError, match="cannot unpack weight and bias"):
        cost_by_name("quantized::linear", Spec((4, I)), "<Packed>", SCALE, ZERO, out=Spec((4, O)))
