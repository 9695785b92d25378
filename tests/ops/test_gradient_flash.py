"""Gradients by the kernels of packed sequences: as those of test_gradient_attention.py."""

from __future__ import annotations

import pytest
import torch

from fxflops.records import Spec
from tests.ops.test_gradient_attention import GRADIENTS, LSE, B, D, H, K, N, Q, S, expected
from tests.oracle import cost_by_name

QUERY, KEY = Spec((B, N, H, D)), Spec((B, S, H, D))
START = QUERY, QUERY, KEY, KEY
PACKED = Spec((B * N, H, D)), Spec((B * N, H, D)), Spec((B * S, H, D)), Spec((B * S, H, D))
STARTS = Spec((B + 1,), torch.int32)


@pytest.mark.parametrize("dropout", [False, True])
def test_heads_last(dropout: bool) -> None:
    p, wanted = 0.1 * dropout, expected(dropout)
    flash, efficient = "aten::_flash_attention_backward", "aten::_efficient_attention_backward"
    rest = p, False, None, None
    assert cost_by_name(flash, *START, QUERY, LSE, None, None, N, S, *rest, out=START[1:]) == wanted
    out = *START[1:], None
    sizes = N, S, LSE, p, None, None, 0
    assert cost_by_name(efficient, *START, None, QUERY, None, None, *sizes, False, out=out) == wanted
    bias = Spec((N, S))
    found = cost_by_name(efficient, *START, bias, QUERY, None, None, *sizes, True, out=(*START[1:], bias))
    assert found == expected(dropout, bias=True)


def test_packed_sequences_count_as_the_longest() -> None:
    flash, efficient = "aten::_flash_attention_backward", "aten::_efficient_attention_backward"
    saved = PACKED[0], LSE
    given = *PACKED, *saved, STARTS, STARTS, N, S, 0.0, False, None, None
    assert cost_by_name(flash, *given, out=PACKED[1:]) == expected()
    args = *PACKED, None, PACKED[0], STARTS, STARTS, N, S, LSE, 0.0, None, None, 0, False
    assert cost_by_name(efficient, *args, out=(*PACKED[1:], None)) == expected()


def test_cudnn() -> None:
    saved = LSE, None, None, None
    for name in ("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"):
        args = Q, Q, K, K, Q, *saved, None, None, N, S, 0.0, False
        assert cost_by_name(f"aten::{name}", *args, out=GRADIENTS) == expected()
    args = *PACKED, PACKED[0], *saved, STARTS, STARTS, N, S, 0.0, False
    assert cost_by_name("aten::_cudnn_attention_backward", *args, out=PACKED[1:]) == expected()
