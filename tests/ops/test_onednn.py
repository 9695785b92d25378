"""Linear layers and convolutions of oneDNN and MKL: the product on counting numbers, and the operations fused with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.ops.test_packed import requantized
from tests.ops.test_quantized import dequantize, quantize
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

I, O = 5, 3  # noqa: E741
X, W, B, OUT = Spec((4, I), torch.uint8), Spec((I, O), torch.int8), Spec((O,)), Spec((4, O))
IMAGE, KERNEL, MAP = Spec((1, 4, 6, 6), torch.uint8), Spec((6, 2, 3, 3), torch.int8), Spec((1, 6, 4, 4))
SCALES = 0.1, 0
WEIGHT_SCALES = Spec((O,)), Spec((O,), torch.int32)
OUTPUTS, K = 6 * 4 * 4, 2 * 3 * 3


def linear() -> Any:
    return numbers(4, I) @ numbers(I, O) + numbers(O)


def conv() -> Any:
    """A convolution in 2 groups: each output is made of 2 channels."""
    return numbers(OUTPUTS, K) @ numbers(K) + numbers(OUTPUTS)


def tally_of(made: Any) -> Tally:
    with tallying() as tally:
        made()
    return tally


def coded(out: Spec) -> Spec:
    return Spec(tuple(out), torch.uint8)


@pytest.mark.parametrize("name", ["qlinear", "qconv1d", "qconv2d", "qconv3d", "qconv"])
def test_quantized_products(name: str) -> None:
    if name == "qlinear":
        product, out, x, w, sizes = linear, OUT, X, W, ()
    else:
        product, out, x, w, sizes = conv, MAP, IMAGE, KERNEL, ([1, 1], [0, 0], [1, 1], 2)

    def call(attr: str, out: Spec) -> Cost:
        args = x, *SCALES, w, *WEIGHT_SCALES, B, *sizes, *SCALES, None, attr, (), ""
        return cost_by_name(f"onednn::{name}_pointwise", *args, out=out)

    assert tally_of(lambda: product() * 0.1) == call("none", out)
    assert tally_of(lambda: np.exp(product() * 0.1)) == call("relu", out)
    assert tally_of(lambda: requantized(product())) == call("none", coded(out))


def test_quantized_products_and_sums() -> None:
    def linear_call(out: Spec, other: Spec) -> Cost:
        args = X, *SCALES, W, *WEIGHT_SCALES, other, B, *SCALES, None, *SCALES, "sum", 1.0, "relu", (), ""
        entry = "onednn::qlinear_pointwise.binary"
        assert cost_by_name(f"{entry}_tensor", *args, out=out) == cost_by_name(entry, *args, out=out)
        return cost_by_name(entry, *args, out=out)

    def conv_call(out: Spec, other: Spec) -> Cost:
        sizes = [1, 1], [0, 0], [1, 1], 2
        args = IMAGE, *SCALES, KERNEL, *WEIGHT_SCALES, other, B, *sizes, *SCALES, None, *SCALES, "sum", 1.0, "relu"
        return cost_by_name("onednn::qconv2d_pointwise.binary", *args, (), "", out=out)

    for call, product, out in ((linear_call, linear, OUT), (conv_call, conv, MAP)):
        n = out.numel()
        expected = tally_of(lambda: np.exp((product().ravel() + numbers(n)) * 0.1))  # noqa: B023
        assert expected == call(out, out)
        expected = tally_of(lambda: np.exp(requantized(product().ravel() + dequantize(numbers(n)))))  # noqa: B023
        assert expected == call(coded(out), coded(out))


def test_real_products() -> None:
    x, w = Spec((4, I)), Spec((O, I))
    assert tally_of(linear) == cost_by_name("mkldnn::_linear_pointwise", x, w, B, "none", (), "", out=OUT)
    assert tally_of(linear) == cost_by_name("mkl::_mkl_linear", x, Spec((1,)), w, B, 4, out=OUT)
    plain = tally_of(lambda: numbers(4, I) @ numbers(I, O))
    assert plain == cost_by_name("mkldnn::_linear_pointwise", x, w, None, "none", (), "", out=OUT)
    relu = tally_of(lambda: np.exp(linear()))
    assert relu == cost_by_name("mkldnn::_linear_pointwise", x, w, B, "relu", (), "", out=OUT)
    joined = cost_by_name("mkldnn::_linear_pointwise.binary", x, OUT, w, B, "add", out=OUT)
    assert joined.flops == tally_of(lambda: linear() + numbers(4, O)).flops


def test_real_convolutions() -> None:
    image, kernel = Spec(IMAGE), Spec(KERNEL)
    sizes = (0, 0), (1, 1), (1, 1), 2
    name = "mkldnn::_convolution_pointwise"
    assert tally_of(conv) == cost_by_name(name, image, kernel, B, *sizes, "none", (), "", out=MAP)
    relu = cost_by_name(name, image, kernel, B, *sizes, "relu", (), "", out=MAP)
    assert tally_of(lambda: np.exp(conv())) == relu
    follow = "add", 1.0, "relu", (), ""
    expected = tally_of(lambda: np.exp(conv() + numbers(OUTPUTS)))
    assert expected == cost_by_name(f"{name}.binary", image, MAP, kernel, B, *sizes, *follow, out=MAP)
    assert expected == cost_by_name(f"{name}_", MAP, image, kernel, B, *sizes, *follow, out=MAP)
    no_relu = cost_by_name(f"{name}.binary", image, MAP, kernel, B, *sizes, "add", 1.0, None, (), "", out=MAP)
    assert no_relu.flops == expected.flops - OUTPUTS


def test_transposed_convolution() -> None:
    """Each of 4 x 5 x 5 inputs meets 6 x 3 x 3 weights. An output's first product needs no add. Then a bias and a relu."""
    x, out, kernel = Spec((1, 4, 5, 5)), Spec((1, 6, 7, 7)), Spec((6, 4, 3, 3))
    args = x, kernel, B, (0, 0), (0, 0), (1, 1), (1, 1), 1, "relu", (), ""
    products = 100 * 54
    expected = Cost(macs=products, muls=products, adds=products - 294 + 294, others=294)
    assert cost_by_name("mkldnn::_convolution_transpose_pointwise", *args, out=out) == expected
    plain = cost_by_name("mkldnn::_convolution_transpose_pointwise", *args[:-3], "none", (), "", out=out)
    assert plain == expected._replace(others=0)


def test_batch_norm() -> None:
    args = IMAGE, *SCALES, B, B, B, B, 1e-5, *SCALES, torch.uint8
    expected = tally_of(lambda: quantize((dequantize(numbers(144)) - 1) / 2 * 3 + 4))
    assert expected == cost_by_name("onednn::qbatch_norm2d", *args, out=IMAGE)


def test_questions() -> None:
    assert cost_of(torch.ops.mkldnn._is_mkldnn_bf16_supported.default) == Cost()
