"""That each spelling of a plain call has its rule, and lies as the kernel has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.test_shapes import lying_at, run

X, ROW = lying_at((3, 4)), lying_at((4,))
LAST, MASK = lying_at((2, 4, 3, 3), (36, 1, 12, 4)), lying_at((3, 4), dtype=torch.bool)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.sin, (X,)),
        (torch.sin, (lying_at((1, 4, 6), (96, 1, 4)),)),
        (torch.Tensor.sin_, (X,)),
        (torch.relu_, (X,)),
        (torch.Tensor.__iadd__, (X, ROW)),
        (torch.Tensor.pow_, (X, 2)),
        (torch.eq, (X, ROW)),
        (torch.Tensor.__ge__, (X, 0.5)),
        (torch.where, (MASK, X, ROW)),
        (torch.add, (LAST, LAST)),
        (nn.ReLU, (nn.ReLU(), lying_at((1, 4, 6, 6), (144, 1, 24, 4)))),
        (nn.ReLU, (nn.ReLU(), lying_at((1, 3, 4), (12, 1, 3)))),
        (F.softmax, (X, -1)),
    ],
)
def test_a_plain_call_is_answered(target: Any, args: tuple[Any, ...]) -> None:
    out, rule = run(target, args, {})
    assert rule == out is not None


@pytest.mark.parametrize(
    "args", [(MASK, X, lying_at((3,))), (lying_at((2,), dtype=torch.bool), X, X)], ids=["x", "mask"]
)
def test_no_answer_where_sizes_do_not_fit(args: tuple[Any, ...]) -> None:
    assert run(torch.where, args, {}) == (None, None)
