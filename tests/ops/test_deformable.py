"""Multi-scale deformable attention, by the names of its functions, against the paper's plain reference in torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from tests.library_stand_ins import library

MMCV = "mmcv.ops.multi_scale_deform_attn:MultiScaleDeformableAttnFunction.apply"
EXTENSION = "MultiScaleDeformableAttention"


@pytest.fixture(scope="module")
def mmcv() -> Iterator[Any]:
    parameters = (
        "value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step"
    )
    with library({MMCV: parameters}) as find:
        yield lambda *args: find(MMCV).apply(*args)


def plain(value: torch.Tensor, levels: list[tuple[int, int]], locations: torch.Tensor, weights: torch.Tensor) -> Any:
    """``ms_deform_attn_core_pytorch`` of https://github.com/fundamentalvision/Deformable-DETR, ``models/ops/functions``."""
    b, _, h, d = value.shape
    _, q, _, l, p, _ = locations.shape  # noqa: E741
    places, samples, start = 2 * locations - 1, [], 0
    for level, (height, width) in enumerate(levels):
        part = value[:, start : start + height * width].flatten(2).transpose(1, 2).reshape(b * h, d, height, width)
        grid = places[:, :, :, level].transpose(1, 2).flatten(0, 1)
        samples.append(F.grid_sample(part, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        start += height * width
    weights = weights.transpose(1, 2).reshape(b * h, 1, q, l * p)
    out = (torch.stack(samples, dim=-2).flatten(-2) * weights).sum(-1).view(b, h * d, q)
    return out.transpose(1, 2).contiguous()


class Model(nn.Module):
    def __init__(self, call: Any, b: int, q: int, h: int, d: int, p: int, levels: list[tuple[int, int]]) -> None:
        super().__init__()
        self.call, self.levels = call, levels
        self.value = nn.Parameter(torch.randn(b, sum(i * j for i, j in levels), h, d))
        self.locations = nn.Parameter(torch.rand(b, q, h, len(levels), p, 2))
        self.weights = nn.Parameter(torch.rand(b, q, h, len(levels), p))

    def forward(self) -> Any:
        value, locations, weights = self.value * 1, self.locations * 1, self.weights * 1
        if self.call is plain:
            return self.call(value, self.levels, locations, weights)
        shapes = torch.tensor(self.levels)
        starts = torch.cat((shapes.new_zeros((1,)), shapes.prod(1).cumsum(0)[:-1]))
        return self.call(value, shapes, starts, locations, weights, 64)


def counted(call: Any, *shape: Any) -> dict[str, tuple[int, int]]:
    report = fxflops.count(Model(call, *shape), backward=True)
    assert report.complete
    return {
        phase: tuple(
            sum(getattr(each, what) for each in report.counted if each.call.phase == phase)
            for what in ("flops", "macs")
        )
        for phase in ("forward", "backward")
    }  # type: ignore[return-value]


SHAPES = [
    (1, 1, 1, 1, 1, [(2, 2)]),
    (2, 3, 2, 4, 2, [(4, 4)]),
    (1, 5, 4, 3, 3, [(4, 6)]),
    (3, 2, 1, 8, 4, [(5, 5)]),
    (2, 6, 2, 2, 1, [(3, 8)]),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_counts_as_the_plain_reference(mmcv: Any, shape: Any) -> None:
    kernel, reference = counted(mmcv, *shape), counted(plain, *shape)
    b, q, h, d, p, levels = shape
    assert kernel["forward"][0] == reference["forward"][0]
    assert kernel["backward"][0] == reference["backward"][0]
    # The kernel's weighted sums count as multiply-accumulates.
    assert kernel["forward"][1] == reference["forward"][1] + b * q * h * d * p * len(levels)


def test_levels_add_up(mmcv: Any) -> None:
    """Two levels sample twice and add up twice as many samples."""
    two, reference = (counted(call, 2, 3, 2, 4, 2, [(4, 4), (2, 2)]) for call in (mmcv, plain))
    assert two["forward"][0] == reference["forward"][0]


def test_the_extension_that_a_models_own_function_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """C functions without a signature, called in the forward and backward of an autograd.Function of the model."""
    from types import ModuleType

    kernels = ModuleType(EXTENSION)
    vars(kernels).update(ms_deform_attn_forward=max, ms_deform_attn_backward=min)  # both are written in C
    monkeypatch.setitem(sys.modules, EXTENSION, kernels)

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, shapes: Any, starts: Any, places: Any, weights: Any, step: int) -> Any:
            ctx.save_for_backward(value, shapes, starts, places, weights)
            return kernels.ms_deform_attn_forward(value, shapes, starts, places, weights, step)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            of_value, of_places, of_weights = kernels.ms_deform_attn_backward(*ctx.saved_tensors, grad.contiguous(), 64)
            return of_value, None, None, of_places, of_weights, None

    shape = SHAPES[1]
    assert counted(Own.apply, *shape)["forward"][0] == counted(plain, *shape)["forward"][0]
    assert counted(Own.apply, *shape)["backward"][0] == counted(plain, *shape)["backward"][0]
    assert kernels.ms_deform_attn_forward is max
