"""Fake quantization on counting numbers: there and back again, and the range that follows the input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.test_quantized import dequantize, quantize, ranged
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
    """For each channel: its range, old + c * (new - old) of both ends, scale and zero point."""
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
