"""Attention against softmax(q k' / sqrt(d)) v on arrays of counting numbers.

Its gradients are computed from the weights that the forward pass saved. They also give torch's values, and are compared
with FlopCounterMode, which counts five products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from fxflops.records import Cost, Spec
from fxflops.records.tensors import spec_of
from tests.ops.textbook import computes, tally_of
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten
B, H, N, S, D = 2, 3, 4, 5, 6
Q, K = Spec((B, H, N, D)), Spec((B, H, S, D))
LSE = Spec((B, H, N))
GRADIENTS = Q, K, K


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
    """ViT-B/16: (2*64-1 + 1 + 3) per score less 1 per row, (2*197-1) per output."""
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


def test_flex_attention_is_attention():
    q, k, v = qkv(v=6)
    mask = (4, 5, *[torch.ones(1, 1, 1)] * 8, 128, 128, None)
    cost = cost_by_name("higher_order::flex_attention", *map(spec_of, (q, k, v, None, mask)), out=(Spec((2, 3, 4, 6)),))
    assert cost == textbook(6, 4, 5, 6, 6)


def gradients(g, q, k, v, weights, dropped=None, bias=False):
    """``weights`` are the softmax weights saved by the forward; ``dropped`` is the scaled dropout mask that multiplied them."""
    used = weights if dropped is None else weights * dropped
    to_weights = g @ v.swapaxes(-1, -2)
    to_weights = to_weights if dropped is None else to_weights * dropped
    to_scores = weights * (to_weights - (weights * to_weights).sum(axis=-1, keepdims=True))
    # The scale multiplies the gradients of q and k, not the scores' gradient, as in torch's plain products and FlashAttention-2.
    parts = to_scores @ k * D**-0.5, to_scores.swapaxes(-1, -2) @ q * D**-0.5, used.swapaxes(-1, -2) @ g
    return (*parts, to_scores.sum(axis=(0, 1))) if bias else parts


def tensors() -> Any:
    q, k, v, g = (torch.randn(B, H, rows, D, dtype=torch.double) for rows in (N, S, S, N))
    return g, q, k, v


def test_gradients_are_what_autograd_computes() -> None:
    g, q, k, v = tensors()
    bias = torch.randn(N, S, dtype=torch.double)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v, bias)]
    F.scaled_dot_product_attention(q, k, v, bias).backward(g)
    weights = (q @ k.transpose(-1, -2) * D**-0.5 + bias).softmax(-1)
    computes(lambda *args: gradients(*args, bias=True), tuple(leaf.grad for leaf in leaves), g, q, k, v, weights)


def backward(dropout: bool = False, bias: bool = False) -> Cost:
    weights = torch.rand(B, H, N, S)
    tally = tally_of(lambda *args: gradients(*args, bias=bias), *tensors(), weights, weights if dropout else None)
    if dropout:  # the forward multiplied its weights by the mask
        tally.muls -= B * H * N * S
    products = B * H * N * S * D
    return Cost(4 * products, tally.muls, tally.adds, tally.others)


def test_gradients_on_a_cpu() -> None:
    name = "_scaled_dot_product_flash_attention_for_cpu"
    g, q, k, v = tensors()
    overload = getattr(aten, f"{name}_backward").default
    out, logsumexp = getattr(aten, name)(q, k, v)
    assert cost_of(overload, g, q, k, v, out, logsumexp, 0.0, False) == backward()
    args = Q, Q, K, K, Q, LSE
    assert cost_by_name(f"aten::{name}_backward", *args, 0.1, False, out=GRADIENTS) == backward(dropout=True)


@pytest.mark.parametrize("dropout", [False, True])
def test_gradients_on_cuda(dropout: bool) -> None:
    p, saved = 0.1 * dropout, (Q, LSE)
    wanted = backward(dropout)
    start = Q, Q, K, K
    name = "aten::_scaled_dot_product_flash_attention_backward"
    assert cost_by_name(name, *start, *saved, None, None, N, S, p, False, out=GRADIENTS) == wanted
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    without = (True, True, True, False)
    assert cost_by_name(name, *start, None, *saved, None, None, p, without, False, out=GRADIENTS) == wanted
    bias, with_bias = Spec((N, S)), (True, True, True, True)
    found = cost_by_name(name, *start, bias, *saved, None, None, p, with_bias, out=(*GRADIENTS, bias))
    assert found == backward(dropout, bias=True)
    name = "aten::_scaled_dot_product_fused_attention_overrideable_backward"
    sizes = None, None, N, S, p, False
    assert cost_by_name(name, *start, bias, without, *saved, *sizes, out=GRADIENTS) == wanted
    assert cost_by_name(name, *start, bias, with_bias, *saved, *sizes, out=(*GRADIENTS, bias)) == found


def test_gradients_of_flex_attention_without_its_score_mod() -> None:
    args = Q, K, K, Q, LSE, Q, None, None, None, (), 1.0, {}
    assert cost_by_name("higher_order::flex_attention_backward", *args, out=GRADIENTS) == backward()


def test_flop_counter_mode_has_one_product_more() -> None:
    """FlopCounterMode also counts the scores, which the kernels recompute."""
    g, q, k, v = (tensor.to("meta") for tensor in tensors())
    sizes = None, None, N, S, 0.0, False, None, None
    with FlopCounterMode(display=False) as counter:
        aten._scaled_dot_product_flash_attention_backward(g, q, k, v, q, q[..., 0], *sizes)
    ours = cost_by_name("aten::_scaled_dot_product_flash_attention_backward", Q, Q, K, K, Q, LSE, *sizes, out=GRADIENTS)
    assert ours.macs / 4 == counter.get_total_flops() / 2 / 5


def test_gradients_of_grouped_heads_add_up_in_the_key() -> None:
    """6 query heads share 2 key heads, so each key's gradient also sums over 3 heads."""
    q, k = Spec((B, 6, N, D)), Spec((B, 2, S, D))
    each = Spec((B, 6, S, D))
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    grouped = cost_by_name(name, q, q, k, k, q, LSE, 0.0, False, out=(q, k, k))
    apart = cost_by_name(name, q, q, each, each, q, LSE, 0.0, False, out=(q, each, each))
    assert grouped.muls == apart.muls
    assert grouped.adds - apart.adds == 2 * B * (6 - 2) * S * D


def test_gradients_with_another_width_of_values() -> None:
    v = torch.randn(B, H, S, 7)
    g = torch.randn(B, H, N, 7)
    _, q, k, _ = tensors()
    weights = torch.rand(B, H, N, S)
    tally = tally_of(gradients, g, q.detach(), k, v, weights)
    args = Spec(g.shape), Q, K, Spec(v.shape), Spec(g.shape), LSE
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    assert tally == cost_by_name(name, *args, 0.0, False, out=(Q, K, Spec(v.shape)))


class Attends(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.settings)


def backward_flops(device: str, shapes: tuple[Spec, Spec, Spec], attention: str = "dense", **settings: Any) -> Any:
    """The FLOPs that `count` gives the backward pass: of torch's plain products on meta, of the kernel torch chooses on a CPU."""
    q, k, v = (torch.zeros(shape, device=device, requires_grad=True) for shape in shapes)
    settings["enable_gqa"] = q.shape[1] != k.shape[1]
    report = fxflops.count(Attends(**settings), (q, k, v), backward=True, attention=attention)
    assert report.complete
    return report.total_backward_flops


SIZES = st.integers(1, 9)


@settings(deadline=None)  # a count may take long on a busy machine
@given(batch=SIZES, kv_heads=SIZES, group=st.integers(1, 3), n=SIZES, s=SIZES, d=SIZES, dropout=st.booleans())
def test_gradients_cost_the_same_by_every_kernel_and_by_plain_products(
    batch: int, kv_heads: int, group: int, n: int, s: int, d: int, dropout: bool
) -> None:
    """The oracle is what torch dispatches without a fused kernel: products, softmax_backward, multiplies by the scale."""
    heads, p = kv_heads * group, 0.1 * dropout
    q, k, rows = Spec((batch, heads, n, d)), Spec((batch, kv_heads, s, d)), Spec((batch, heads, n))
    out, sizes, no_bias = (q, k, k), (None, None, n, s, p, False), (True, True, True, False)
    start = q, q, k, k
    calls = {
        "_scaled_dot_product_flash_attention_for_cpu_backward": (*start, q, rows, p, False),
        "_scaled_dot_product_flash_attention_backward": (*start, q, rows, *sizes),
        "_scaled_dot_product_efficient_attention_backward": (*start, None, q, rows, None, None, p, no_bias, False),
        "_scaled_dot_product_cudnn_attention_backward": (*start, q, rows, None, None, None, *sizes),
        "_cudnn_attention_backward": (*start, q, rows, None, None, None, *sizes),
        "_scaled_dot_product_fused_attention_overrideable_backward": (*start, None, no_bias, q, rows, *sizes),
    }
    costs = {name: cost_by_name(f"aten::{name}", *args, out=out).flops for name, args in calls.items()}
    q_last, k_last = Spec((batch, n, heads, d)), Spec((batch, s, kv_heads, d))
    out_last, start_last = (q_last, k_last, k_last), (q_last, q_last, k_last, k_last)
    calls = {
        "_flash_attention_backward": (*start_last, q_last, rows, *sizes, None, None),
        "_efficient_attention_backward": (*start_last, None, q_last, None, None, n, s, rows, p, None, None, 0, False),
    }
    costs |= {name: cost_by_name(f"aten::{name}", *args, out=out_last).flops for name, args in calls.items()}
    if not dropout:
        args = q, k, k, q, rows, q, None, None, None, (), 1.0, {}
        costs["flex_attention_backward"] = cost_by_name("higher_order::flex_attention_backward", *args, out=out).flops
    assert costs == dict.fromkeys(costs, backward_flops("meta", out, dropout_p=p))


@settings(deadline=None)
@given(batch=SIZES, heads=SIZES, n=SIZES, s=SIZES, d=SIZES, each_head=st.booleans())
def test_a_bias_that_learns_costs_the_same(batch: int, heads: int, n: int, s: int, d: int, each_head: bool) -> None:
    q, k, rows = Spec((batch, heads, n, d)), Spec((batch, heads, s, d)), Spec((batch, heads, n))
    bias = Spec((heads, n, s) if each_head else (n, s))
    args = q, q, k, k, bias, q, rows, None, None, 0.0, (True, True, True, True), False
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    mask = torch.zeros(bias, device="meta", requires_grad=True)
    assert cost_by_name(name, *args, out=(q, k, k, bias)).flops == backward_flops("meta", (q, k, k), attn_mask=mask)


CAUSAL, DROPPED, MASKED = {"is_causal": True}, {"dropout_p": 0.1}, {"attn_mask": torch.ones(N, S).tril().bool()}


@pytest.mark.parametrize("attention", ["dense", "exact"])
@pytest.mark.parametrize("settings", [{}, CAUSAL, DROPPED, MASKED], ids=["plain", "causal", "dropout", "mask"])
@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("width", [D, 7])
def test_gradients_cost_the_same_on_a_cpu_by_either_way(
    attention: str, settings: dict[str, Any], kv_heads: int, width: int
) -> None:
    """A mask keeps fewer pairs, but as many gradients are scaled."""
    shapes = Q, Spec((B, kv_heads, S, D)), Spec((B, kv_heads, S, width))
    chosen = backward_flops("cpu", shapes, attention, **settings)
    with sdpa_kernel(SDPBackend.MATH):
        assert chosen == backward_flops("cpu", shapes, attention, **settings)
    if settings is not MASKED:  # a mask on meta has no values
        assert chosen == backward_flops("meta", shapes, attention, **settings)
