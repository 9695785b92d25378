"""What the rules of layers answer for plain calls, as the kernel does, and that they are silent where it raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.test_shapes import META, lying_at, run

ROWS, WEIGHT = lying_at((4, 3)), lying_at((5, 3))
IMAGE, KERNEL = lying_at((1, 2, 5, 5)), lying_at((2, 3, 2, 2))
LAST = lying_at((1, 4, 6, 6), (144, 1, 24, 4))


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
    """Of dtypes that a real kernel refuses, and of an image without a batch."""
    assert run(target, args, {})[1] is None
