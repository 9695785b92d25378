"""What windows leave unread: an element is read if the output has a gradient with respect to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.roofline.traffic import traffic_of

from .test_traffic import Does, traffic

X = torch.rand(1, 3, 17, 20) + 1


def touched(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Autograd's answer. All weights are positive, so the gradient of a touched element is not 0."""
    x = X.double().requires_grad_()
    function(x).sum().backward()
    return int((x.grad != 0).sum())


def windows() -> Iterator[tuple[int, int, int, int]]:
    for k, step, gap in product((1, 2, 3), (1, 2, 4), (1, 2, 3)):
        yield from ((k, step, gap, padding) for padding in range(k // 2 + 1))


@pytest.mark.parametrize("window", [*windows()], ids=str)
def test_a_convolution_reads_what_its_windows_touch(window: tuple[int, int, int, int]) -> None:
    k, step, gap, padding = window
    weight = torch.rand(2, 3, k, k) + 1
    read = touched(lambda x: F.conv2d(x, weight.double(), stride=step, padding=padding, dilation=gap))
    by_function = traffic(lambda x, w: F.conv2d(x, w, None, step, padding, gap), X, weight)
    assert by_function.read == 4 * (read + weight.numel())
    by_module = traffic(nn.Conv2d(3, 2, k, step, padding, gap, bias=False), X)
    assert by_module.read == 4 * (read + weight.numel())


@pytest.mark.parametrize(("k", "step", "ceil"), [*product((1, 2, 3), (1, 2, 4, 5), (False, True))])
def test_a_pool_reads_what_its_windows_touch(k: int, step: int, ceil: bool) -> None:
    read = touched(lambda x: F.avg_pool2d(x, k, step, 0, ceil))
    for pool in (
        nn.AvgPool2d(k, step, ceil_mode=ceil),
        nn.MaxPool2d(k, step, ceil_mode=ceil),
        lambda x: F.avg_pool2d(x, k, step, 0, ceil),
        lambda x: F.max_pool2d(x, (k, k), step, ceil_mode=ceil),
    ):
        assert traffic(pool, X).read == 4 * read


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("size", [(2, 3), (17, 20), (34, 40)])
def test_resampling_reads_what_it_keeps(mode: str, size: tuple[int, int]) -> None:
    read = touched(lambda x: F.interpolate(x, size=size, mode=mode))
    assert traffic(lambda x: F.interpolate(x, size=size, mode=mode), X).read == 4 * read
    assert traffic(nn.Upsample(size=size, mode=mode), X).read == 4 * read


def test_a_strided_1x1_convolution_reads_a_quarter() -> None:
    """It takes 22.6 us on an H100. With the whole input its bound was 23.1 us."""
    layer = nn.Conv2d(256, 512, 1, stride=2, bias=False, device="meta", dtype=torch.bfloat16)
    x = torch.empty(32, 256, 56, 56, device="meta", dtype=torch.bfloat16)
    row = fxflops.count(layer, x).roofline("H100 SXM").rows[0]
    assert row.bytes_read == 2 * (32 * 256 * 28 * 28 + 512 * 256)
    assert row.bound_seconds < 22.6e-6


def backward_of(model: nn.Module, x: torch.Tensor, op: str) -> int:
    calls = fxflops.count(model, x, backward=True).counted
    return next(traffic_of(each).read for each in calls if each.call.op == op)


def test_gradients_read_what_they_are_made_of() -> None:
    grad = 4 * 2 * 17 * 20
    layer = nn.Conv2d(3, 2, 1, bias=False)
    assert backward_of(layer, X, "conv_backward") == grad + 4 * X.numel()  # the weight's gradient only reads the input
    layer.weight.requires_grad_(False)
    assert backward_of(layer, X.clone().requires_grad_(), "conv_backward") == grad + 4 * layer.weight.numel()
    pool = nn.AvgPool2d(2)
    assert backward_of(Does(pool), X.clone().requires_grad_(), "avg_pool_backward") == 4 * 3 * 8 * 10


@pytest.mark.parametrize("rows", [2, 8, 16])
def test_few_rows_meet_few_experts(rows: int) -> None:
    experts = torch.ones(8, 32, 16, dtype=torch.bfloat16)
    ends = torch.arange(1, 9, dtype=torch.int32).clamp(max=rows)

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, experts, offs=ends)

    read, _ = traffic(product, torch.ones(rows, 32, dtype=torch.bfloat16))
    assert read == 2 * (rows * 32 + min(rows, 8) * 32 * 16) + ends.nbytes
