"""Transformer layers in one call cost the same as the calls they replace, whose own tests run the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fxflops.records import Cost, Spec
from tests.oracle import cost_by_name, cost_of, numbers, tallying

B, N, E, H, HIDDEN = 2, 5, 8, 2, 12
X = torch.rand(B, N, E)
QKV, QKV_BIAS, PROJ, PROJ_BIAS = torch.rand(3 * E, E), torch.rand(3 * E), torch.rand(E, E), torch.rand(E)
aten = torch.ops.aten


def together(*costs: Cost) -> Cost:
    total = Cost()
    for cost in costs:
        total = total.plus(cost)
    return total


def by_parts(mask: Any = None) -> Cost:
    heads = torch.rand(B, H, N, E // H)
    return together(
        cost_of(F.linear, X, QKV, QKV_BIAS),
        cost_of(F.scaled_dot_product_attention, heads, heads, heads, mask),
        cost_of(F.linear, X, PROJ, PROJ_BIAS),
    )


ATTENTION = X, X, X, E, H, QKV, QKV_BIAS, PROJ, PROJ_BIAS


def test_multi_head_attention() -> None:
    assert cost_of(aten._native_multi_head_attention.default, *ATTENTION, None, False) == by_parts()
    averaged = Cost(adds=B * N * N * (H - 1), others=B * N * N)
    assert cost_of(aten._native_multi_head_attention.default, *ATTENTION) == by_parts().plus(averaged)
    specs = [Spec(value.shape) if isinstance(value, torch.Tensor) else value for value in ATTENTION]
    assert cost_by_name("aten::_triton_multi_head_attention", *specs, out=None) == by_parts()
    masked = cost_by_name("aten::_triton_multi_head_attention", *specs, Spec((N, N)), out=None)
    assert masked == by_parts(torch.zeros(N, N))


def test_cross_attention_counts_the_keys_own_length() -> None:
    memory = Spec((B, 3, E))
    weights = Spec((3 * E, E)), Spec((3 * E,)), Spec((E, E)), Spec((E,))
    args = Spec((B, N, E)), memory, memory, E, H, *weights, None, False
    expected = B * N * E * E * 2 + 2 * B * 3 * E * E + 2 * B * N * 3 * E
    assert cost_by_name("aten::_native_multi_head_attention", *args, out=None).macs == expected


@pytest.mark.parametrize("gelu", [True, False])
def test_encoder_layer(gelu: bool) -> None:
    norm = torch.rand(E), torch.rand(E)
    feed = torch.rand(HIDDEN, E), torch.rand(HIDDEN), torch.rand(E, HIDDEN), torch.rand(E)
    args = X, E, H, QKV, QKV_BIAS, PROJ, PROJ_BIAS, gelu, False, 1e-5, *norm, *norm, *feed
    hidden = torch.rand(B, N, HIDDEN)
    parts = together(
        by_parts(),
        cost_of(torch.add, X, X),
        cost_of(F.layer_norm, X, [E], *norm),
        cost_of(F.linear, X, *feed[:2]),
        cost_of(F.gelu, hidden),
        cost_of(F.linear, hidden, *feed[2:]),
        cost_of(torch.add, X, X),
        cost_of(F.layer_norm, X, [E], *norm),
    )
    assert cost_of(aten._transformer_encoder_layer_fwd.default, *args) == parts


def test_attention_of_kernels() -> None:
    heads = torch.rand(B, H, N, 4)
    expected = cost_of(F.scaled_dot_product_attention, heads, heads, heads)
    same = [Spec((B, H, N, 4))] * 3
    assert cost_by_name("aten::_triton_scaled_dot_attention", *same, out=same[0]) == expected
    last = [Spec((B, N, H, 4))] * 4
    name = "aten::_flash_attention_forward_no_dropout_inplace"
    assert cost_by_name(name, *last, None, None, N, N, 0.0, False, False, out=None) == expected
    name = "aten::_cudnn_attention_forward_no_dropout_inplace"
    assert cost_by_name(name, *last, None, None, N, N, out=None) == expected
    packed = [Spec((B * N, H, 4))] * 4
    starts = Spec((B + 1,))
    assert cost_by_name(name, *packed, starts, starts, N, N, out=None) == expected


def test_bias_and_scale() -> None:
    with tallying() as tally:
        q, _, _ = np.split(numbers(B, N, 3 * E) + numbers(3 * E), 3, axis=2)
        q * 0.5
    assert tally == cost_of(aten._transform_bias_rescale_qkv.default, torch.rand(B, N, 3 * E), QKV_BIAS, H)
