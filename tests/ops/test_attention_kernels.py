"""The attention kernels for packed sequences count like those in test_attention.py."""

from __future__ import annotations

import pytest
import torch

from fxflops.records import Spec
from tests.ops.test_attention import GRADIENTS, LSE, B, D, H, K, N, Q, S, backward, qkv, textbook
from tests.oracle import cost_by_name, cost_of

aten = torch.ops.aten
QUERY, KEY = Spec((B, N, H, D)), Spec((B, S, H, D))
START = QUERY, QUERY, KEY, KEY
PACKED = Spec((B * N, H, D)), Spec((B * N, H, D)), Spec((B * S, H, D)), Spec((B * S, H, D))
STARTS = Spec((B + 1,), torch.int32)


def test_kernels_with_the_heads_last():
    q, k, v = (tensor.transpose(1, 2).to("meta") for tensor in qkv(v=6))
    flash, efficient = aten._flash_attention_forward.default, aten._efficient_attention_forward.default
    assert textbook(6, 4, 5, 6, 6) == cost_of(flash, q, k, v, None, None, 4, 5, 0.0, False, False)
    assert textbook(6, 4, 5, 6, 6, masked=True) == cost_of(efficient, q, k, v, None, None, None, None, None, 0.0, 1)


def test_packed_sequences_count_as_the_longest():
    """Two sequences in one tensor: at most 4 queries and 5 keys each."""
    q, k, v = (torch.zeros(length, 3, 6, device="meta") for length in (7, 9, 9))
    starts = torch.tensor([0, 4, 7], dtype=torch.int32).to("meta")
    flash = aten._flash_attention_forward.default
    assert textbook(2 * 3, 4, 5, 6, 6) == cost_of(flash, q, k, v, starts, starts, 4, 5, 0.0, False, False)


def test_cudnn_kernel_with_and_without_packed_sequences():
    kernel, q, k = "aten::_cudnn_attention_forward", Spec((2, 3, 4, 6)), Spec((2, 3, 5, 6))
    cost = cost_by_name(kernel, q, k, k, None, None, None, 4, 5, False, 0.0, True, out=(q,))
    assert textbook(2 * 3, 4, 5, 6, 6, masked=True) == cost
    packed, starts = Spec((7, 3, 6)), Spec((3,))
    cost = cost_by_name(kernel, packed, packed, packed, None, starts, starts, 4, 5, False, out=(packed,))
    assert textbook(2 * 3, 4, 5, 6, 6) == cost


@pytest.mark.parametrize("dropout", [False, True])
def test_gradients_with_the_heads_last(dropout: bool) -> None:
    p, wanted = 0.1 * dropout, backward(dropout)
    flash, efficient = "aten::_flash_attention_backward", "aten::_efficient_attention_backward"
    rest = p, False, None, None
    assert cost_by_name(flash, *START, QUERY, LSE, None, None, N, S, *rest, out=START[1:]) == wanted
    out = *START[1:], None
    sizes = N, S, LSE, p, None, None, 0
    assert cost_by_name(efficient, *START, None, QUERY, None, None, *sizes, False, out=out) == wanted
    bias = Spec((N, S))
    found = cost_by_name(efficient, *START, bias, QUERY, None, None, *sizes, True, out=(*START[1:], bias))
    assert found == backward(dropout, bias=True)


def test_gradients_of_packed_sequences_count_as_the_longest() -> None:
    flash, efficient = "aten::_flash_attention_backward", "aten::_efficient_attention_backward"
    saved = PACKED[0], LSE
    given = *PACKED, *saved, STARTS, STARTS, N, S, 0.0, False, None, None
    assert cost_by_name(flash, *given, out=PACKED[1:]) == backward()
    args = *PACKED, None, PACKED[0], STARTS, STARTS, N, S, LSE, 0.0, None, None, 0, False
    assert cost_by_name(efficient, *args, out=(*PACKED[1:], None)) == backward()


def test_gradients_of_cudnn() -> None:
    saved = LSE, None, None, None
    for name in ("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward"):
        args = Q, Q, K, K, Q, *saved, None, None, N, S, 0.0, False
        assert cost_by_name(f"aten::{name}", *args, out=GRADIENTS) == backward()
    args = *PACKED, PACKED[0], *saved, STARTS, STARTS, N, S, 0.0, False
    assert cost_by_name("aten::_cudnn_attention_backward", *args, out=PACKED[1:]) == backward()
