"""Gradients of attention from its weights, against torch's values, on counting numbers, and FlopCounterMode's five products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fxflops.records import Cost, Spec
from tests.ops.textbook import computes, tally_of
from tests.oracle import cost_by_name, cost_of

aten = torch.ops.aten
B, H, N, S, D = 2, 3, 4, 5, 6
Q, K = Spec((B, H, N, D)), Spec((B, H, S, D))
LSE = Spec((B, H, N))
GRADIENTS = Q, K, K


def attention(g, q, k, v, weights, dropped=None, bias=False):
    """``weights`` are the softmax's, as the forward saved them; ``dropped`` the mask, scaled, that multiplied them."""
    used = weights if dropped is None else weights * dropped
    to_weights = g @ v.swapaxes(-1, -2)
    to_weights = to_weights if dropped is None else to_weights * dropped
    to_scores = weights * (to_weights - (weights * to_weights).sum(axis=-1, keepdims=True))
    scaled = to_scores * D**-0.5
    parts = scaled @ k, scaled.swapaxes(-1, -2) @ q, used.swapaxes(-1, -2) @ g
    return (*parts, to_scores.sum(axis=(0, 1))) if bias else parts


def tensors() -> Any:
    q, k, v, g = (torch.randn(B, H, rows, D, dtype=torch.double) for rows in (N, S, S, N))
    return g, q, k, v


def test_it_is_what_autograd_computes() -> None:
    g, q, k, v = tensors()
    bias = torch.randn(N, S, dtype=torch.double)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v, bias)]
    F.scaled_dot_product_attention(q, k, v, bias).backward(g)
    weights = (q @ k.transpose(-1, -2) * D**-0.5 + bias).softmax(-1)
    computes(lambda *args: attention(*args, bias=True), tuple(leaf.grad for leaf in leaves), g, q, k, v, weights)


def expected(dropout: bool = False, bias: bool = False) -> Cost:
    weights = torch.rand(B, H, N, S)
    tally = tally_of(lambda *args: attention(*args, bias=bias), *tensors(), weights, weights if dropout else None)
    if dropout:  # its weights were multiplied by the mask in the forward
        tally.muls -= B * H * N * S
    products = B * H * N * S * D
    return Cost(4 * products, tally.muls, tally.adds, tally.others)


def test_on_a_cpu() -> None:
    name = "_scaled_dot_product_flash_attention_for_cpu"
    g, q, k, v = tensors()
    overload = getattr(aten, f"{name}_backward").default
    out, logsumexp = getattr(aten, name)(q, k, v)
    assert cost_of(overload, g, q, k, v, out, logsumexp, 0.0, False) == expected()
    args = Q, Q, K, K, Q, LSE
    assert cost_by_name(f"aten::{name}_backward", *args, 0.1, False, out=GRADIENTS) == expected(dropout=True)


@pytest.mark.parametrize("dropout", [False, True])
def test_on_cuda(dropout: bool) -> None:
    p, saved = 0.1 * dropout, (Q, LSE)
    wanted = expected(dropout)
    start = Q, Q, K, K
    name = "aten::_scaled_dot_product_flash_attention_backward"
    assert cost_by_name(name, *start, *saved, None, None, N, S, p, False, out=GRADIENTS) == wanted
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    without = (True, True, True, False)
    assert cost_by_name(name, *start, None, *saved, None, None, p, without, False, out=GRADIENTS) == wanted
    bias, with_bias = Spec((N, S)), (True, True, True, True)
    found = cost_by_name(name, *start, bias, *saved, None, None, p, with_bias, out=(*GRADIENTS, bias))
    assert found == expected(dropout, bias=True)
    of_each = Spec((*Q[:-1], S))  # of each pair its own: nothing is added up
    assert cost_by_name(name, *start, of_each, *saved, None, None, p, with_bias, out=(*GRADIENTS, of_each)) == wanted
    name = "aten::_scaled_dot_product_fused_attention_overrideable_backward"
    sizes = None, None, N, S, p, False
    assert cost_by_name(name, *start, bias, without, *saved, *sizes, out=GRADIENTS) == wanted
    assert cost_by_name(name, *start, bias, with_bias, *saved, *sizes, out=(*GRADIENTS, bias)) == found


def test_flex_attention_without_its_score_mod() -> None:
    args = Q, K, K, Q, LSE, Q, None, None, None, (), 1.0, {}
    assert cost_by_name("higher_order::flex_attention_backward", *args, out=GRADIENTS) == expected()


def test_flop_counter_mode_has_one_product_more() -> None:
    """It counts the scores that the kernels compute again."""
    g, q, k, v = (tensor.to("meta") for tensor in tensors())
    sizes = None, None, N, S, 0.0, False, None, None
    with FlopCounterMode(display=False) as counter:
        aten._scaled_dot_product_flash_attention_backward(g, q, k, v, q, q[..., 0], *sizes)
    ours = cost_by_name("aten::_scaled_dot_product_flash_attention_backward", Q, Q, K, K, Q, LSE, *sizes, out=GRADIENTS)
    assert ours.macs / 4 == counter.get_total_flops() / 2 / 5


def test_grouped_heads_add_up_in_the_key() -> None:
    """6 heads of queries to 2 of keys: each key's gradient sums over 3 heads too."""
    q, k = Spec((B, 6, N, D)), Spec((B, 2, S, D))
    each = Spec((B, 6, S, D))
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    grouped = cost_by_name(name, q, q, k, k, q, LSE, 0.0, False, out=(q, k, k))
    apart = cost_by_name(name, q, q, each, each, q, LSE, 0.0, False, out=(q, each, each))
    assert grouped.muls == apart.muls
    assert grouped.adds - apart.adds == 2 * B * (6 - 2) * S * D


def test_another_width_of_values() -> None:
    v = torch.randn(B, H, S, 7)
    g = torch.randn(B, H, N, 7)
    _, q, k, _ = tensors()
    weights = torch.rand(B, H, N, S)
    tally = tally_of(attention, g, q.detach(), k, v, weights)
    args = Spec(g.shape), Q, K, Spec(v.shape), Spec(g.shape), LSE
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    assert tally == cost_by_name(name, *args, 0.0, False, out=(Q, K, Spec(v.shape)))
