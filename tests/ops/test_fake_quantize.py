"""Fake quantization on counting numbers: quantizing and dequantizing, the observed range, and the gradients of a learned scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.ops.test_quantized import dequantize, quantize, ranged
from tests.ops.textbook import agrees, between, is_counting, pick, rounded
from tests.oracle import Tally, cost_of, numbers, tallying

SHAPE = (3, 4)
X = torch.rand(SHAPE)
ONE, ZERO = torch.ones(1), torch.zeros(1)
SCALES, ZEROS = torch.ones(4), torch.zeros(4)
aten = torch.ops.aten


def there_and_back() -> Tally:
    with tallying() as tally:
        dequantize(quantize(numbers(*SHAPE)))
    return tally


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.fake_quantize_per_tensor_affine, (0.1, 0, 0, 255)),
        (torch.fake_quantize_per_tensor_affine, (ONE, ZERO.int(), 0, 255)),
        (torch.fake_quantize_per_channel_affine, (SCALES, ZEROS.int(), 1, 0, 255)),
        (aten.fake_quantize_per_tensor_affine_cachemask.default, (0.1, 0, 0, 255)),
        (aten.fake_quantize_per_channel_affine_cachemask.default, (SCALES, ZEROS.int(), 1, 0, 255)),
        (torch._fake_quantize_learnable_per_tensor_affine, (ONE, ZERO, 0, 255, 1.0)),
        (torch._fake_quantize_learnable_per_channel_affine, (SCALES, ZEROS, 1, 0, 255, 1.0)),
    ],
)
def test_fake_quantize(function: Any, args: tuple[Any, ...]) -> None:
    assert there_and_back() == cost_of(function, X, *args)


@pytest.mark.parametrize("channels", [1, 3])
def test_observed_fake_quantize(channels: int) -> None:
    """For each channel: its range, old + c * (new - old) at both ends, scale and zero point."""
    with tallying() as tally:
        for _ in range(channels):
            ranged(X.numel() // channels)
            for new, old in (numbers(2), numbers(2)):
                old + 0.01 * (new - old)
        dequantize(quantize(numbers(*SHAPE)))
    on = torch.ones(1, dtype=torch.long)
    state = [torch.ones(channels) for _ in range(3)]
    args = on, on, *state, torch.zeros(channels, dtype=torch.int32), 0.01, 0, 255, 0, channels > 1
    assert tally == cost_of(torch.fused_moving_avg_obs_fake_quant, X, *args)
    assert tally == cost_of(aten._fused_moving_avg_obs_fq_helper.default, X, *args)


G, INPUT = torch.randn(3, 4), 4 * torch.randn(3, 4)


def learned(g, x, scale, zero_point, *settings):
    """Within q's bounds the scale's gradient uses the rounding error. Beyond them it uses the clamped q, and g goes to the zero point."""
    *_, low, high, factor = settings
    scale, zero_point = scale.reshape(-1, 1), zero_point.reshape(-1, 1)
    v = x / scale
    near = rounded(v)
    q = near + zero_point
    to_x = between(q, low - 1, high + 1, g, 0)
    beyond = to_x if is_counting(to_x) else g - to_x
    to_scale = pick(to_x, lambda: g * (near - v), lambda: g * (np.clip(q, low, high) - zero_point))
    axis = 1 if scale.size > 1 else (0, 1)
    to_scale, beyond = (np.sum(part, axis=axis, keepdims=True) for part in (to_scale, beyond))
    return to_x, (to_scale * factor).reshape(-1), (-beyond * scale * factor).reshape(-1)


@pytest.mark.parametrize(("channels", "axis"), [(1, ()), (3, (0,))])
def test_the_gradient_of_what_learns(channels: int, axis: tuple[int, ...]) -> None:
    kind = "channel" if axis else "tensor"
    overload = getattr(aten, f"_fake_quantize_learnable_per_{kind}_affine_backward").default
    scale, zero_point = torch.full((channels,), 0.5), torch.full((channels,), 2.0)
    agrees(overload, learned, G, INPUT, scale, zero_point, *axis, 0, 6, 0.5)
