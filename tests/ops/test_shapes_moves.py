"""What the rules of pooling, resizing, padding and reductions answer for plain calls: sizes worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxflops.ops.shapes_moves import adaptive_avg_pool2d, amax, avg_pool2d, interpolate, max_pool2d, mean, pad, stack
from fxflops.records import Spec
from tests.ops.test_shapes import lying_at, run

X, ROW = Spec((1, 2, 4, 4), torch.float32), Spec((3, 4), torch.float32)


@pytest.mark.parametrize(
    ("rule", "args", "sizes"),
    [
        (interpolate, (X, (5, 6)), (1, 2, 5, 6)),
        (interpolate, (X, 5), (1, 2, 5, 5)),
        (interpolate, (X, None, 2.0), (1, 2, 8, 8)),
        (interpolate, (X, None, (2.0, 0.25)), (1, 2, 8, 1)),
        (interpolate, (X, (5, 6), None, "nearest", None, True), None),
        (pad, (ROW, [1, 2]), (3, 7)),
        (pad, (ROW, [1, 0, 0, 2]), (5, 5)),
        (pad, (ROW, [1]), None),
        (pad, (ROW, [1, -5]), None),
        (avg_pool2d, (X, 4), (1, 2, 1, 1)),
        (avg_pool2d, (X, (3, 2), 1), (1, 2, 2, 3)),
        (avg_pool2d, (X, 5), None),
        (max_pool2d, (X, 1, 2, 0, 1, True), (1, 2, 2, 2)),
        (max_pool2d, (X, 1, 3, 0, 1, True), (1, 2, 2, 2)),
        (max_pool2d, (X, 2, 3, 1, 1, True), (1, 2, 2, 2)),
        (adaptive_avg_pool2d, (X, (1, None)), (1, 2, 1, 4)),
        (adaptive_avg_pool2d, (Spec((1, 2, 4, 4), torch.int64), 1), None),
        (adaptive_avg_pool2d, (Spec((0, 2, 4, 4), torch.float32), 1), None),
        (amax, (ROW, 1), (3,)),
        (amax, (ROW, (0, 1), True), (1, 1)),
        (amax, (Spec((3, 4), torch.int64), 1), None),
        (amax, (ROW, 2), None),
        (mean, (ROW,), ()),
        (mean, (ROW, -2, True), (1, 4)),
        (mean, (ROW, (0, 0)), None),
        (stack, ((ROW, ROW), 1), (3, 2, 4)),
        (stack, ((ROW, ROW), -3), (2, 3, 4)),
        (stack, ((ROW, X),), None),
    ],
)
def test_sizes(rule: Any, args: tuple[Any, ...], sizes: tuple[int, ...] | None) -> None:
    told = rule(*args)
    assert (told if told is None else tuple(told)) == sizes


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.cat, ([lying_at((3, 4)), lying_at((3, 2))], 1)),
        (F.avg_pool2d, (lying_at((1, 2, 4, 4)), 2)),
        (torch.max_pool2d, (lying_at((1, 2, 4, 4)), 1, 2, 0, 1, True)),
        (torch.Tensor.sum, (lying_at((3, 4)), 1)),
    ],
)
def test_a_plain_call_is_answered(target: Any, args: tuple[Any, ...]) -> None:
    out, rule = run(target, args, {})
    assert rule == out is not None
