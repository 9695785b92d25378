"""Quantized tensors on counting numbers: dequantize, compute, and quantize again."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost, Spec
from tests.oracle import Number, Tally, cost_by_name, cost_of, numbers, tallying

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
ops = torch.ops.quantized
SHAPE = (2, 4, 6)
X = torch.rand(SHAPE)
SCALE, ZERO = 0.1, 3
other = np.frompyfunc(Number._other, 1, 1)


def quantized(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, SCALE, ZERO, torch.quint8)


Q = quantized(X)


def quantize(x: Any) -> Any:
    """Divide, round, add the zero point, clamp."""
    return other(other(x / SCALE) + ZERO)


def dequantize(q: Any) -> Any:
    return (q - ZERO) * SCALE


def tally_of(textbook: Any, operands: int = 1) -> Tally:
    with tallying() as tally:
        quantize(textbook(*(dequantize(numbers(*SHAPE)) for _ in range(operands))))
    return tally


def test_quantize() -> None:
    with tallying() as tally:
        quantize(numbers(*SHAPE))
    assert tally == cost_of(torch.quantize_per_tensor, X, SCALE, ZERO, torch.qint8)
    assert tally == cost_of(torch.quantize_per_channel, X, torch.ones(4), torch.zeros(4).int(), 1, torch.qint8)
    pair = cost_of(torch.quantize_per_tensor, [X, X], torch.ones(2), torch.zeros(2).int(), torch.qint8)
    assert pair.flops == 2 * tally.flops


def test_dequantize() -> None:
    with tallying() as tally:
        dequantize(numbers(*SHAPE))
    assert tally == cost_of(torch.dequantize, Q) == cost_of("dequantize", Q)
    assert cost_of(torch.dequantize, [Q, Q]).flops == 2 * tally.flops
    assert cost_of(torch.dequantize, X.half()) == Cost()


def ranged(n: int) -> None:
    """The minimum and maximum, both clamped to 0; (max - min) / steps; clamp(round(lowest - min / scale))."""
    row = list(numbers(n))
    for _ in range(2):
        least = row[0]
        for x in row[1:]:
            least = least.minimum(x)
        least.compare()
    (row[0] - row[0]) / 255
    ((-128 - row[0] / SCALE).compare()).compare()


def test_quantize_by_the_range() -> None:
    with tallying() as tally:
        ranged(X.numel())
    assert tally == cost_of(torch._choose_qparams_per_tensor, X)
    with tallying() as tally:
        ranged(1)
    assert tally == cost_of(torch._choose_qparams_per_tensor, X.flatten()[:1])
    with tallying() as tally:
        ranged(X.numel())
        quantize(numbers(*SHAPE))
    assert tally == cost_of(torch.quantize_per_tensor_dynamic, X, torch.quint8, False)


@pytest.mark.parametrize("name", ["add", "mul"])
def test_arithmetic(name: str) -> None:
    with tallying() as tally:
        quantize(other(dequantize(numbers(*SHAPE)))), dequantize(numbers(*SHAPE))
    assert tally == cost_of(getattr(ops, name), Q, Q, SCALE, ZERO)
    assert tally == cost_of(getattr(ops, f"{name}_out"), Q, Q, quantized(X))
    alone = tally_of(other)
    assert alone == cost_of(getattr(ops, f"{name}_scalar"), Q, 2.0)
    relu = tally_of(lambda x: other(other(x)))
    assert relu == cost_of(getattr(ops, f"{name}_scalar_relu"), Q, 2.0)
    assert cost_of(getattr(ops, f"{name}_relu"), Q, Q, SCALE, ZERO).others == tally.others + X.numel()


def test_arithmetic_of_onednn() -> None:
    """Its inputs are integer codes of real numbers; its result need not be quantized."""
    codes = Spec(SHAPE, torch.uint8)
    args = codes, SCALE, ZERO, codes, SCALE, ZERO, SCALE, ZERO, torch.uint8
    assert cost_by_name("onednn::qadd", *args, out=codes) == cost_of(ops.add, Q, Q, SCALE, ZERO)
    assert cost_by_name("onednn::qmul", *args, out=Spec(SHAPE)).flops == (2 * 2 + 1) * X.numel()
    assert cost_by_name("onednn::qadd_relu", *args, out=codes) == cost_of(ops.add_relu, Q, Q, SCALE, ZERO)


def test_add_relu_of_real_numbers() -> None:
    with tallying() as tally:
        np.exp(numbers(*SHAPE) + 0.5 * numbers(*SHAPE))
    assert tally == cost_of(torch.ops.aten._add_relu.Tensor, X, X, alpha=0.5)


def test_cat() -> None:
    with tallying() as tally:
        for _ in range(2):
            quantize(dequantize(numbers(*SHAPE)))
    assert tally == cost_of(ops.cat, [Q, Q], 0, SCALE, ZERO)
    assert cost_of(ops.cat_relu, [Q, Q], 0, SCALE, ZERO).others == tally.others + 2 * X.numel()


ACTIVATIONS = [
    ("sigmoid", (SCALE, ZERO), other),
    ("hardswish", (SCALE, ZERO), other),
    ("elu", (SCALE, ZERO), other),
    ("celu", (SCALE, ZERO), other),
    ("leaky_relu", (0.1, False, SCALE, ZERO), lambda x: other(x) + 0.1 * other(x)),
    ("prelu", (quantized(torch.rand(1)), SCALE, ZERO), lambda x: other(x) + 0.1 * other(x)),
    ("softmax", (-1, SCALE, ZERO), lambda x: (e := np.exp(x)) / e.sum(-1, keepdims=True)),
    ("layer_norm", ([6], None, None, 1e-5, SCALE, ZERO), lambda x: (x - 1) / 2),
    ("group_norm", (2, None, None, 1e-5, SCALE, ZERO), lambda x: (x - 1) / 2),
    ("instance_norm", (torch.ones(4), torch.zeros(4), 1e-5, SCALE, ZERO), lambda x: (x - 1) / 2 * 3 + 4),
]


@pytest.mark.parametrize(("name", "args", "textbook"), ACTIVATIONS, ids=[name for name, *_ in ACTIVATIONS])
def test_between_dequantize_and_quantize(name: str, args: tuple[Any, ...], textbook: Any) -> None:
    assert tally_of(textbook) == cost_of(getattr(ops, name), Q, *args)


@pytest.mark.parametrize("d", ["", "1d", "2d", "3d"])
def test_batch_norm(d: str) -> None:
    args = Spec(SHAPE, torch.quint8), Spec((4,)), Spec((4,)), Spec((4,)), Spec((4,)), 1e-5, SCALE, ZERO
    expected = tally_of(lambda x: (x - 1) / 2 * 3 + 4)
    cost = cost_by_name(f"quantized::batch_norm{d}", *args, out=args[0])
    assert expected == cost
    assert cost_by_name(f"quantized::batch_norm{d}_relu", *args, out=args[0]).flops == cost.flops + X.numel()


@pytest.mark.parametrize(("name", "args"), [("relu6", ()), ("clamp", (0.0, 1.0)), ("threshold", (0.5, 0.0))])
def test_on_the_integers_themselves(name: str, args: tuple[float, ...]) -> None:
    with tallying() as tally:
        other(numbers(*SHAPE))
    assert tally == cost_of(getattr(ops, name), Q, *args)


def test_moves() -> None:
    assert cost_of(torch.int_repr, Q) == cost_of(ops.dropout, Q, SCALE, ZERO) == Cost()
