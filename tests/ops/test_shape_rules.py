"""Shape rules answer plain calls like the kernel, however they are spelled. They have no answer where the kernel raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.draws import META
from tests.ops.test_shapes import lying_at, run

ROWS, WEIGHT = lying_at((4, 3)), lying_at((5, 3))
IMAGE, KERNEL = lying_at((1, 2, 5, 5)), lying_at((2, 3, 2, 2))
LAST = lying_at((1, 4, 6, 6), (144, 1, 24, 4))
X, ROW = lying_at((3, 4)), lying_at((4,))
PIXELS, MASK = lying_at((2, 4, 3, 3), (36, 1, 12, 4)), lying_at((3, 4), dtype=torch.bool)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (F.linear, (ROWS, WEIGHT, lying_at((5,)))),
        (F.conv2d, (IMAGE, lying_at((3, 2, 3, 3)), None, 1, "valid")),
        (F.conv2d, (IMAGE, lying_at((3, 2, 3, 3)), lying_at((3,)), 1, "same")),
        (F.conv_transpose2d, (IMAGE, KERNEL, lying_at((3,)), 2, 0, 1)),
        (nn.BatchNorm1d, (nn.BatchNorm1d(4, device=META), lying_at((2, 4, 3)))),
        (nn.BatchNorm1d, (nn.BatchNorm1d(4, device=META), lying_at((2, 4)))),
        (nn.BatchNorm2d, (nn.BatchNorm2d(4, device=META), LAST)),
        (nn.LayerNorm, (nn.LayerNorm(6, device=META), LAST)),
        (F.layer_norm, (ROWS, (3,), lying_at((3,)), lying_at((3,)))),
        (torch.sin, (X,)),
        (torch.sin, (lying_at((1, 4, 6), (96, 1, 4)),)),
        (torch.Tensor.sin_, (X,)),
        (torch.relu_, (X,)),
        (torch.Tensor.__iadd__, (X, ROW)),
        (torch.Tensor.pow_, (X, 2)),
        (torch.eq, (X, ROW)),
        (torch.Tensor.__ge__, (X, 0.5)),
        (torch.where, (MASK, X, ROW)),
        (torch.add, (PIXELS, PIXELS)),
        (nn.ReLU, (nn.ReLU(), lying_at((1, 4, 6, 6), (144, 1, 24, 4)))),
        (nn.ReLU, (nn.ReLU(), lying_at((1, 3, 4), (12, 1, 3)))),
        (F.softmax, (X, -1)),
        (torch.cat, ([lying_at((3, 4)), lying_at((3, 2))], 1)),
        (F.avg_pool2d, (lying_at((1, 2, 4, 4)), 2)),
        (torch.max_pool2d, (lying_at((1, 2, 4, 4)), 1, 2, 0, 1, True)),
        (torch.Tensor.sum, (lying_at((3, 4)), 1)),
    ],
)
def test_a_plain_call_is_answered(target: Any, args: tuple[Any, ...]) -> None:
    out, rule = run(target, args, {})
    assert rule == out is not None


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (F.linear, (ROWS, WEIGHT, lying_at((6,)))),
        (F.conv_transpose2d, (IMAGE, KERNEL, None, 1, 0, 1)),
        (F.conv_transpose2d, (IMAGE, KERNEL, lying_at((2,)))),
        (F.layer_norm, (ROWS, (3,), lying_at((4,)))),
        (nn.BatchNorm1d, (nn.BatchNorm1d(4, device=META), lying_at((2, 4, 3, 3)))),
    ],
)
def test_no_answer_where_the_kernel_raises(target: Any, args: tuple[Any, ...]) -> None:
    assert run(target, args, {}) == (None, None)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (F.linear, (ROWS, WEIGHT, lying_at((5,), dtype=torch.float64))),
        (F.conv_transpose2d, (IMAGE, lying_at((2, 3, 2, 2), dtype=torch.float64))),
        (F.conv_transpose2d, (IMAGE[0], KERNEL)),
    ],
)
def test_the_kernel_is_asked(target: Any, args: tuple[Any, ...]) -> None:
    """The rule has no answer for dtypes that a real kernel refuses, or for an image without a batch."""
    assert run(target, args, {})[1] is None


@pytest.mark.parametrize(
    "args", [(MASK, X, lying_at((3,))), (lying_at((2,), dtype=torch.bool), X, X)], ids=["x", "mask"]
)
def test_no_answer_where_sizes_do_not_fit(args: tuple[Any, ...]) -> None:
    assert run(torch.where, args, {}) == (None, None)
