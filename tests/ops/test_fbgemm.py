"""FBGEMM's packed weights and low-bit weights: the product on counting numbers, and the quantization of its input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.ops.test_packed import requantized
from tests.ops.test_quantized import dequantize, quantize, ranged
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

I, O = 5, 3  # noqa: E741
X, W, B, OUT, PACKED = Spec((4, I)), Spec((O, I)), Spec((O,)), Spec((4, O)), Spec((1000,), torch.uint8)


def product(bias: bool = True) -> Any:
    sums = numbers(4, I) @ numbers(I, O)
    return sums + numbers(O) if bias else sums


def dynamic(bias: bool = True) -> Tally:
    with tallying() as tally:
        ranged(X.numel())
        quantize(numbers(4, I))
        product(bias) * 0.1
    return tally


@pytest.mark.parametrize(
    "name",
    [
        "aten::fbgemm_linear_fp16_weight",
        "aten::fbgemm_linear_fp16_weight_fp32_activation",
        "_quantized::wrapped_fbgemm_linear_fp16_weight",
        "onednn::linear_dynamic_fp16",
    ],
)
def test_half_weights(name: str) -> None:
    with tallying() as tally:
        product()
    assert tally == cost_by_name(name, X, PACKED, B, out=OUT)
    products = 4 * O * I
    assert cost_by_name(name, X, PACKED, None, out=OUT) == Cost(products, products, products - 4 * O)
    relu = cost_by_name("onednn::linear_relu_dynamic_fp16", X, PACKED, B, out=OUT)
    assert relu.flops == tally.flops + 4 * O


@pytest.mark.parametrize("name", ["fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation"])
def test_int8_weights(name: str) -> None:
    assert dynamic() == cost_by_name(f"aten::{name}", X, W, PACKED, B, 0.1, 0, B, out=OUT)
    assert dynamic(bias=False) == cost_by_name(f"aten::{name}", X, W, PACKED, B, 0.1, 0, None, out=OUT)


def test_4bit_weights() -> None:
    assert dynamic(bias=False) == cost_by_name("aten::_dyn_quant_matmul_4bit", X, PACKED, 32, I, O, out=OUT)


def test_mixed_dtypes() -> None:
    with tallying() as tally:
        np.exp(product(bias=False) * numbers(O))
    args = X, Spec((I, O), torch.uint8), Spec((O,))
    assert tally.others == 4 * O
    cost = cost_by_name("aten::_mixed_dtypes_linear", *args, out=OUT)
    assert cost == Cost(macs=4 * I * O, muls=tally.muls, adds=tally.adds)


def test_quantizing_weights() -> None:
    with tallying() as tally:
        ranged(15)
        quantize(numbers(O, I))
    assert tally == cost_by_name("aten::fbgemm_linear_quantize_weight", W, out=(W, B, 0.1, 0))
    with tallying() as tally:
        quantize(numbers(O, I))
    for space in ("aten", "_quantized"):
        assert tally == cost_by_name(f"{space}::_wrapped_linear_prepack", W, B, B, B, out=PACKED)
    assert cost_of(torch._saturate_weight_to_fp16, torch.rand(O, I)) == Cost(others=15)


def test_between_real_numbers() -> None:
    with tallying() as tally:
        quantize(numbers(4, I))
        dequantize(requantized(product()))
    one = Spec(())
    for space in ("aten", "_quantized"):
        name = f"{space}::_wrapped_quantized_linear_prepacked"
        assert tally == cost_by_name(name, X, one, one, PACKED, one, one, O, out=OUT)
    with tallying() as weight:
        quantize(numbers(O, I))
    cost = cost_by_name("_quantized::wrapped_quantized_linear", X, one, one, W, one, one, B, one, one, O, out=OUT)
    assert cost.flops == tally.flops + weight.flops
    assert cost.macs == 4 * I * O


def test_lookups() -> None:
    """3 bags of 2 rows of 8 elements: rows are dequantized, and each bag's rows are added up."""
    indices, rows, bags = Spec((6,), torch.int64), numbers(3, 2, 8), Spec((3, 8))
    with tallying() as tally:
        dequantize(rows)
    for name in ("embedding_byte", "embedding_4bit"):
        assert tally == cost_by_name(f"quantized::{name}", PACKED, indices, out=Spec((6, 8)))
    with tallying() as tally:
        dequantize(rows).sum(1)
    packed = "embedding_bag_byte", "embedding_bag_4bit"
    for name in (*packed, "embedding_bag_byte_rowwise_offsets", "embedding_bag_4bit_rowwise_offsets"):
        args = PACKED, indices, Spec((3,), torch.int64), False, 0
        assert tally == cost_by_name(f"quantized::{name}", *args, out=bags)
