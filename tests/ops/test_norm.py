"""Normalizations against (x - mean) / std * weight + bias on arrays of counting numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.oracle import Tally, cost_of, numbers, tallying

aten = torch.ops.aten


def textbook(*shape: int, weight: bool = True, bias: bool = True) -> Tally:
    x, mean, std, w, b = (numbers(*shape) for _ in range(5))
    with tallying() as tally:
        x = (x - mean) / std
        if weight:
            x = x * w
        if bias:
            x + b
    return tally


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm1d(4), (3, 4)),
        (nn.BatchNorm2d(4), (2, 4, 3, 3)),
        (nn.BatchNorm2d(4).eval(), (2, 4, 3, 3)),
        (nn.BatchNorm3d(4, track_running_stats=False), (2, 4, 3, 2, 2)),
        (nn.InstanceNorm1d(4, affine=True), (2, 4, 5)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 5, 5)),
        (nn.InstanceNorm3d(4, affine=True), (2, 4, 5, 2, 2)),
        (nn.LayerNorm(6), (2, 5, 6)),
        (nn.LayerNorm((5, 6)), (2, 5, 6)),
        (nn.GroupNorm(2, 4), (2, 4, 3, 3)),
        (nn.SyncBatchNorm(4).eval(), (2, 4, 3, 3)),
    ],
)
def test_normalizing_with_weight_and_bias(module, shape):
    assert textbook(*shape) == cost_of(module, torch.zeros(shape))
    assert textbook(*shape).flops == 4 * torch.zeros(shape).numel()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
        (nn.InstanceNorm2d(4), (2, 4, 3, 3)),
        (nn.LayerNorm(6, elementwise_affine=False), (2, 6)),
        (nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    ],
)
def test_normalizing_only(module, shape):
    assert textbook(*shape, weight=False, bias=False) == cost_of(module, torch.zeros(shape))


def test_layer_norm_in_every_spelling():
    x, weight, bias = torch.zeros(2, 5, 6), torch.zeros(6), torch.zeros(6)
    assert textbook(2, 5, 6, weight=False, bias=False) == cost_of(F.layer_norm, x, (6,))
    assert textbook(2, 5, 6, bias=False) == cost_of(F.layer_norm, x, (6,), weight)
    assert textbook(2, 5, 6, bias=False) == cost_of(nn.LayerNorm(6, bias=False), x)
    assert textbook(2, 5, 6) == cost_of(torch.layer_norm, x, (6,), weight, bias)
    assert textbook(2, 5, 6) == cost_of(aten.native_layer_norm.default, x, (6,), weight, bias, 1e-5)


def test_batch_norm_in_every_spelling():
    x, mean, var, weight, bias = torch.zeros(2, 4, 3, 3), *(torch.zeros(4) for _ in range(4))
    native = aten._native_batch_norm_legit_no_training.default
    assert textbook(2, 4, 3, 3) == cost_of(F.batch_norm, x, mean, var, weight, bias)
    assert textbook(2, 4, 3, 3, weight=False, bias=False) == cost_of(F.batch_norm, x, mean, var)
    assert textbook(2, 4, 3, 3) == cost_of(torch.batch_norm, x, weight, bias, mean, var, False, 0.1, 1e-5, False)
    assert textbook(2, 4, 3, 3) == cost_of(native, x, weight, bias, mean, var, 0.1, 1e-5)
    assert textbook(2, 4, 3, 3) == cost_of(aten.native_batch_norm.default, x, weight, bias, mean, var, True, 0.1, 1e-5)


def test_instance_and_group_norm_in_every_spelling():
    x, weight, bias = torch.zeros(2, 4, 3, 3), torch.zeros(4), torch.zeros(4)
    native = aten.native_group_norm.default
    assert textbook(2, 4, 3, 3) == cost_of(F.instance_norm, x, weight=weight, bias=bias)
    assert textbook(2, 4, 3, 3) == cost_of(torch.instance_norm, x, weight, bias, None, None, True, 0.1, 1e-5, False)
    assert textbook(2, 4, 3, 3) == cost_of(F.group_norm, x, 2, weight, bias)
    assert textbook(2, 4, 3, 3) == cost_of(native, x, weight, bias, 2, 4, 9, 2, 1e-5)


def test_rms_norm_divides_and_scales():
    x, weight = torch.zeros(2, 5, 6), torch.zeros(6)
    a, rms, w = (numbers(2, 5, 6) for _ in range(3))
    with tallying() as tally:
        a / rms * w
    assert tally == cost_of(nn.RMSNorm(6), x)
    assert tally == cost_of(F.rms_norm, x, (6,), weight)
    assert tally == cost_of(aten.rms_norm.default, x, (6,), weight)
    with tallying() as tally:
        a / rms
    assert tally == cost_of(F.rms_norm, x, (6,))


def test_local_response_norm_of_five_channels():
    shape, size = (2, 8, 3, 3), 5
    x, window, k, alpha = numbers(*shape), numbers(size, *shape), numbers(1), numbers(1)
    squares = numbers(size, *shape)
    with tallying() as tally:
        window[0] * window[0]
        total = squares.sum(axis=0)
        x / (k + alpha * total) ** 0.75
    assert tally == cost_of(nn.LocalResponseNorm(size), torch.zeros(shape))
    assert tally == cost_of(F.local_response_norm, torch.zeros(shape), size)
