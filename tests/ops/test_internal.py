"""Operators that only torch itself calls: each costs the same as the function that it is part of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fxflops.ops import BASE, apply
from fxflops.records import Cost, Operation, Spec
from tests.oracle import cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten
X, Y = torch.rand(3, 4), torch.rand(5, 4)


@pytest.mark.filterwarnings("ignore:_aminmax")
@pytest.mark.parametrize(
    ("internal", "public", "args"),
    [
        (aten._aminmax.default, torch.aminmax, (X,)),
        (aten._conj_physical.default, torch.conj_physical, (X + 0j,)),
        (aten._euclidean_dist.default, torch.cdist, (X, Y)),
        (aten._logcumsumexp.default, torch.logcumsumexp, (X, 1)),
        (aten.native_norm.default, torch.norm, (X,)),
        (aten.special_logsumexp.default, torch.logsumexp, (X, [1])),
    ],
)
def test_as_the_public_form(internal: Any, public: Any, args: tuple[Any, ...]) -> None:
    given = [value.to_sparse() if internal is aten.native_norm.default else value for value in args]
    assert cost_of(internal, *given) == cost_of(public, *args)


def test_products() -> None:
    out = Spec((3, 5))
    mixed = cost_by_name("aten::_weight_int4pack_mm_with_scales_and_zeros", Spec((3, 4)), Spec((5, 4)), out=out)
    assert mixed.macs == 3 * 4 * 5
    with tallying() as tally:
        0.5 * numbers(3, 5) + 2 * ((numbers(3, 4) @ numbers(4, 5)) * 0.1 * 0.2)
    args = out, Spec((3, 4)), Spec((4, 5)), (), (), (), (), (), ()
    entry = BASE.get("aten::_scaled_addmm")
    assert entry is not None
    assert tally == apply(entry, Operation("", "", args, {"beta": 0.5, "alpha": 2}, out))


def test_a_transposed_convolution_of_mps() -> None:
    x, weight = torch.rand(1, 2, 4), torch.rand(2, 3, 3)
    expected = cost_of(F.conv_transpose1d, x, weight)
    assert (
        cost_by_name("aten::_mps_convolution_transpose", Spec(x.shape), Spec(weight.shape), out=Spec((1, 3, 6)))
        == expected
    )


def test_masked_index() -> None:
    mask, index = torch.ones(6, dtype=torch.bool), torch.arange(6) % 3
    with tallying() as tally:
        np.exp(numbers(6))
    assert tally == cost_of(aten._unsafe_masked_index.default, torch.rand(3), mask, [index], 0.0)
    with tallying() as tally:
        numbers(6) + np.exp(numbers(6))
    args = torch.rand(3), mask, [index], torch.rand(6)
    assert tally == cost_of(aten._unsafe_masked_index_put_accumulate.default, *args)


@pytest.mark.parametrize("name", ["cudnn_convolution_relu", "miopen_convolution_relu"])
def test_convolution_relu(name: str) -> None:
    outputs, k = 2 * 8 * 4 * 4, 4 * 9
    with tallying() as tally:
        np.exp(numbers(outputs, k) @ numbers(k) + numbers(outputs))
    out = Spec((2, 8, 4, 4))
    args = Spec((2, 4, 6, 6)), Spec((8, 4, 3, 3)), Spec((8,)), [1, 1], [0, 0], [1, 1], 1
    assert tally == cost_by_name(f"aten::{name}", *args, out=out)


@pytest.mark.parametrize("name", ["cudnn_convolution_add_relu", "miopen_convolution_add_relu"])
@pytest.mark.parametrize("alpha", [None, 2.0])
def test_convolution_add_relu(name: str, alpha: float | None) -> None:
    outputs, k = 3 * 4 * 4, 2 * 9
    with tallying() as tally:
        z = numbers(outputs) if alpha is None else alpha * numbers(outputs)
        np.exp(numbers(outputs, k) @ numbers(k) + numbers(outputs) + z)
    out = Spec((1, 3, 4, 4))
    args = Spec((1, 2, 6, 6)), Spec((3, 2, 3, 3)), out, alpha, Spec((3,)), [1, 1], [0, 0], [1, 1], 1
    assert tally == cost_by_name(f"aten::{name}", *args, out=out)


def test_linear_combination() -> None:
    with tallying() as tally:
        numbers(2, 3) @ numbers(3, 16)
    assert tally == cost_of(aten._compute_linear_combination.default, torch.rand(3, 4, 4), torch.rand(2, 3))


@pytest.mark.parametrize("b", [2, 1])
def test_trilinear_is_what_bilinear_is_made_of(b: int) -> None:
    i, j, o = 3, 4, 5
    x, w, y = torch.rand(b, i), torch.rand(o, i, j), torch.rand(b, j)
    args = x, w, y, [1, 3], [0], [1, 2], [2, 3]
    cost = cost_of(aten._trilinear.default, *args)
    assert cost == cost_of(F.bilinear, x, y, w)
    assert cost.macs == b * o * j * (i + 1)
    assert cost_of(aten._trilinear.default, torch.rand(0, i), w, torch.rand(0, j), *args[3:]) == Cost()
