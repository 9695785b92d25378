"""Attention against softmax(q k' / sqrt(d)) v on arrays of counting numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fxflops.records import Spec, spec_of
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def textbook(heads: int, n: int, s: int, d: int, v: int, *, masked: bool = False, dropout: bool = False) -> Tally:
    q, k, values = numbers(heads, n, d), numbers(heads, s, d), numbers(heads, s, v)
    scale, mask, kept = numbers(1), numbers(n, s), numbers(heads, n, s)
    with tallying() as tally:
        scores = q @ k.transpose(0, 2, 1) * scale
        if masked:
            scores = scores + mask
        exps = np.exp(scores)
        weights = exps / np.sum(exps, axis=-1, keepdims=True)
        if dropout:
            weights = weights * kept
        weights @ values
    return tally


def qkv(*, batch=2, heads=3, kv_heads=3, n=4, s=5, d=6, v=7):
    return torch.zeros(batch, heads, n, d), torch.zeros(batch, kv_heads, s, d), torch.zeros(batch, kv_heads, s, v)


def test_attention_is_softmax_of_scaled_scores_times_values(torch_macs):
    given = qkv()
    cost = cost_of(F.scaled_dot_product_attention, *given)
    assert textbook(2 * 3, 4, 5, 6, 7) == cost
    assert cost.macs == torch_macs(F.scaled_dot_product_attention, *given) == (2 * 3) * (4 * 5) * (6 + 7)


def test_a_mask_and_dropout_are_one_more_per_score():
    q, k, v = qkv()
    mask = torch.zeros(4, 5)
    assert textbook(6, 4, 5, 6, 7, masked=True) == cost_of(F.scaled_dot_product_attention, q, k, v, mask)
    assert textbook(6, 4, 5, 6, 7, masked=True) == cost_of(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    assert textbook(6, 4, 5, 6, 7, dropout=True) == cost_of(F.scaled_dot_product_attention, q, k, v, dropout_p=0.1)


def test_every_query_head_of_a_group_is_counted():
    q, k, v = qkv(heads=6, kv_heads=2)
    assert textbook(2 * 6, 4, 5, 6, 7) == cost_of(F.scaled_dot_product_attention, q, k, v, enable_gqa=True)


def test_batch_dims_broadcast():
    q, k, v = qkv(batch=1)
    k, v = k.expand(4, -1, -1, -1), v.expand(4, -1, -1, -1)
    assert textbook(4 * 3, 4, 5, 6, 7) == cost_of(F.scaled_dot_product_attention, q, k, v)
    assert textbook(1, 4, 5, 6, 7) == cost_of(F.scaled_dot_product_attention, q[0, 0], k[0, 0], v[0, 0])


def test_torch_flops_number():
    """ViT-B/16's: (2*64-1 + 1 + 3) per score less 1 per row, (2*197-1) per output."""
    q, k, v = qkv(batch=1, heads=12, kv_heads=12, n=197, s=197, d=64, v=64)
    per_head = 197 * (197 * (127 + 1 + 3) - 1) + 197 * 64 * (2 * 197 - 1)
    assert cost_of(F.scaled_dot_product_attention, q, k, v).flops == 12 * per_head


@pytest.mark.parametrize("masked", [False, True])
def test_every_kernel_counts_the_same(masked):
    q, k, v = (tensor.to("meta") for tensor in qkv(v=6))
    mask = torch.zeros(2, 3, 4, 5, device="meta") if masked else None
    expected = textbook(6, 4, 5, 6, 6, masked=masked)
    assert expected == cost_of(aten.scaled_dot_product_attention.default, q, k, v, mask)
    assert expected == cost_of(aten._scaled_dot_product_attention_math.default, q, k, v, mask)
    assert expected == cost_of(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, attn_mask=mask)
    assert expected == cost_of(aten._scaled_dot_product_efficient_attention.default, q, k, v, mask, False)
    assert expected == cost_of(aten._scaled_dot_product_flash_attention.default, q, k, v, 0.0, masked)


def test_kernels_with_the_heads_last():
    q, k, v = (tensor.transpose(1, 2).to("meta") for tensor in qkv(v=6))
    flash, efficient = aten._flash_attention_forward.default, aten._efficient_attention_forward.default
    assert textbook(6, 4, 5, 6, 6) == cost_of(flash, q, k, v, None, None, 4, 5, 0.0, False, False)
    assert textbook(6, 4, 5, 6, 6, masked=True) == cost_of(efficient, q, k, v, None, None, None, None, None, 0.0, 1)


def test_flex_attention_is_attention():
    q, k, v = qkv(v=6)
    mask = (4, 5, *[torch.ones(1, 1, 1)] * 8, 128, 128, None)
    cost = cost_by_name("higher_order::flex_attention", *map(spec_of, (q, k, v, None, mask)), out=(Spec((2, 3, 4, 6)),))
    assert cost == textbook(6, 4, 5, 6, 6)


def test_packed_sequences_count_as_the_longest():
    """Two sequences in one: at most 4 queries and 5 keys each."""
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
