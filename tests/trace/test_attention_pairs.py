"""attention="exact": the pairs that a mask keeps, counted one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.flex_attention import flex_attention_backward
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.ops import BASE
from fxflops.ops._masks import causal_pairs, leaves_all
from fxflops.records import Spec
from fxflops.trace.attention_pairs import pairs_left, with_requires_grad

BATCH, HEADS, N, S, D = 2, 3, 5, 7, 4
Q, K = torch.randn(BATCH, HEADS, N, D), torch.randn(BATCH, HEADS, S, D)
KEPT = torch.rand(N, S) > 0.4
FLOATS = torch.zeros(BATCH, 1, N, S).masked_fill(~KEPT, torch.finfo(torch.float32).min)
TRIANGLE = sum(i >= j for i in range(N) for j in range(S))
LOWER_RIGHT = sum(i + S - N >= j for i in range(N) for j in range(S))


def sdpa(**kwargs: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda q, k: F.scaled_dot_product_attention(q, k, k, **kwargs)


def flex(q: torch.Tensor, k: torch.Tensor) -> Any:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, S, device="cpu")
    return flex_attention(q, k, k, block_mask=mask)


CASES = {
    "dense": (sdpa(), N * S),
    "causal": (sdpa(is_causal=True), TRIANGLE),
    "bool mask": (sdpa(attn_mask=KEPT), int(KEPT.sum())),
    "float mask": (sdpa(attn_mask=FLOATS), int(KEPT.sum())),
    "lower right": (sdpa(attn_mask=causal_lower_right(N, S)), LOWER_RIGHT),
    "flex": (flex, TRIANGLE),
}


class Attends(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        return self.run(q, k)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("run", [fxflops.analyze, fxflops.count])
@pytest.mark.parametrize("name", CASES)
def test_pairs_that_are_left(name: str, run: Any) -> None:
    attend, pairs = CASES[name]
    exact = run(Attends(attend), (Q, K), attention="exact")
    dense = exact.recount(attention="dense")
    assert exact.complete
    assert exact.total_macs == BATCH * HEADS * pairs * 2 * D
    assert dense.total_macs == BATCH * HEADS * N * S * 2 * D
    assert dense.total_flops - exact.total_flops >= (N * S - pairs) * BATCH * HEADS * 4 * D
    assert dense.recount(attention="exact").total_flops == exact.total_flops
    assert "attention exact" in str(exact)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("attention", ["dense", "exact"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_have_the_pairs_of_each_part(layout: torch.layout, attention: str) -> None:
    parts = [torch.randn(HEADS, n, D) for n in (N, S)]
    nested = torch.nested.nested_tensor(parts)
    if layout is torch.jagged:  # the ragged dimension must be the first one
        nested = torch.nested.nested_tensor([part.transpose(0, 1) for part in parts], layout=layout).transpose(1, 2)
    model = Attends(sdpa())
    with fxflops.profile(model, attention=attention) as profiled:
        model(nested, nested)
    reports = [run(model, (nested, nested), attention=attention) for run in (fxflops.count, fxflops.analyze)]
    apart = [fxflops.count(model, (part[None],) * 2) for part in parts]
    for report in (*reports, profiled.report):
        assert report.complete
        assert report.total_macs == HEADS * (N * N + S * S) * 2 * D
        assert report.total_flops == sum(each.total_flops for each in apart)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in CASES if name != "flex"])
def test_of_gradients_too_only_those_of_the_pairs_left(name: str) -> None:
    """Each of the backward's 4 products takes D multiply-accumulates per pair."""
    attend, pairs = CASES[name]
    q, k = (tensor.clone().requires_grad_() for tensor in (Q, K))
    exact = fxflops.count(Attends(attend), (q, k), attention="exact", backward=True)
    assert exact.complete
    assert exact.total_backward_macs == BATCH * HEADS * pairs * 4 * D
    dense = exact.recount(attention="dense")
    assert dense.total_backward_macs == BATCH * HEADS * N * S * 4 * D
    assert dense.recount(attention="exact").total_backward_flops == exact.total_backward_flops


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_gradients_by_plain_products_too(device: str) -> None:
    """On a CPU, no fused kernel computes the gradients of attention with dropout. A model on meta is counted for a CPU too."""
    attend = sdpa(is_causal=True, dropout_p=0.5)
    q, k = (torch.empty(tensor.shape, device=device, requires_grad=True) for tensor in (Q, K))
    exact = fxflops.count(Attends(attend), (q, k), attention="exact", backward=True)
    assert "attention_backward" not in {call.op for call in exact.calls}
    assert exact.complete
    assert exact.total_backward_macs == BATCH * HEADS * TRIANGLE * 4 * D
    dense = exact.recount(attention="dense")
    assert dense.total_backward_macs == BATCH * HEADS * N * S * 4 * D
    # Each pair that is left out saves 8 D operations of the products, plus some of the softmax and the dropout.
    less = (dense.total_backward_flops - exact.total_backward_flops) / (BATCH * HEADS * (N * S - TRIANGLE))
    assert 8 * D < less <= 8 * D + 6


@pytest.mark.parametrize("keys", [D, D + 1])
def test_gradients_by_plain_products_one_by_one(keys: int) -> None:
    """With as many keys as elements in a head, the gradients of queries, keys and values have the scores' shape."""
    kept = torch.ones(keys, keys, dtype=torch.bool).tril()
    rows, pairs = BATCH * HEADS * keys, BATCH * HEADS * int(kept.sum())
    needs_grad = torch.zeros(keys, keys).masked_fill(~kept, -torch.inf).requires_grad_()
    x = torch.randn(BATCH, 1, keys, D, requires_grad=True)

    def attend(x: torch.Tensor, mask: torch.Tensor) -> Any:
        q = x.expand(-1, HEADS, -1, -1)
        return F.scaled_dot_product_attention(q, q, q, mask, dropout_p=0.5)

    exact = fxflops.count(Attends(attend), (x, needs_grad), attention="exact", backward=True)
    assert exact.complete
    # Adding k kept summands for a row, a key or an element of x takes k - 1 adds. Each query and key is scaled by a number.
    products = {"muls": 4 * pairs * D, "adds": pairs * (D - 1) + 3 * (pairs - rows) * D}
    assert {op: row.total.flops for op, row in exact.by_operator("backward").items() if row.total.flops} == {
        "matmul": sum(products.values()),
        "mul": pairs + 2 * rows * D,
        "softmax_backward": 2 * pairs + pairs + (pairs - rows),
        "sum": (pairs - keys * keys) + (rows - rows // HEADS) * D,
        "add": 2 * rows * D,
    }


@pytest.mark.parametrize("run", [fxflops.analyze, fxflops.count])
@pytest.mark.parametrize("name", ["dense", "causal", "bool mask", "float mask"])
def test_of_what_checkpoint_computes_again_too(name: str, run: Any) -> None:
    """Checkpoint stops the recomputed attention halfway, by an exception inside the call."""
    attend, pairs = CASES[name]
    q, k = (tensor.clone().requires_grad_() for tensor in (Q, K))
    again = Attends(lambda q, k: checkpoint(attend, q, k, use_reentrant=False))
    exact = run(again, (q, k), attention="exact", backward=True)
    assert exact.complete
    assert exact.by_module("recompute")[""].total.macs == exact.total_macs == BATCH * HEADS * pairs * 2 * D
    assert exact.total_backward_macs == BATCH * HEADS * pairs * 4 * D


def test_of_gradients_in_a_profiled_block_too() -> None:
    q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
    with fxflops.profile() as profiled:
        F.scaled_dot_product_attention(q, k, k, is_causal=True, dropout_p=0.5).sum().backward()
    assert profiled.report.total_backward_macs == BATCH * HEADS * N * S * 4 * D
    assert profiled.report.recount(attention="exact").total_backward_macs == BATCH * HEADS * TRIANGLE * 4 * D


def test_of_gradients_of_flex_attention_which_has_none_on_a_cpu() -> None:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, S, device="cpu").as_tuple()
    args = (Q, K, K, Q, Q[..., 0], Q, None, None, None, mask, 0.5, {})
    entry = BASE.find(flex_attention_backward)
    assert entry is not None
    assert pairs_left(entry, flex_attention_backward, args, {}, (Q, K, K, ())) == BATCH * HEADS * TRIANGLE


def test_what_was_not_read_is_missing() -> None:
    # A bias computed from the queries has no values in a count.
    dense = fxflops.count(Attends(lambda q, k: F.scaled_dot_product_attention(q, k, k, (q @ k.mT).abs())), (Q, K))
    assert dense.complete
    assert next(m.why for m in dense.recount(attention="exact").missing).startswith(
        "the values of the attention mask are unknown"
    )
    with pytest.raises(fxflops.InputError, match="'dense', 'exact'"):
        fxflops.count(Attends(sdpa()), (Q, K), attention="causal")


class TwoMasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", KEPT)
        self.register_buffer("left_out", ~KEPT)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        return sdpa(attn_mask=self.kept)(q, k) + sdpa(attn_mask=self.left_out)(q, k)


def test_each_call_has_the_pairs_of_its_own_mask() -> None:
    """Each mask keeps what the other leaves out, so together they keep every pair once."""
    assert fxflops.count(TwoMasks(), (Q, K), attention="exact").total_macs == BATCH * HEADS * N * S * 2 * D


@pytest.mark.parametrize("given", [{}, {"attn_mask": None, "is_causal": False}, {"custom_mask_type": 0}])
def test_nothing_given_leaves_all_pairs(given: dict[str, Any]) -> None:
    entry = BASE.find(F.scaled_dot_product_attention)
    assert entry is not None
    assert leaves_all(entry, F.scaled_dot_product_attention, (Q, K, K), given)
    for told in ({"is_causal": True}, {"attn_mask": Spec((N, S))}, {"custom_mask_type": 2}, {"cum_seq_q": Spec((3,))}):
        assert not leaves_all(entry, F.scaled_dot_product_attention, (Q, K, K), {**given, **told})


@pytest.mark.parametrize(
    ("corner", "kept"), [(0, lambda i, j, n, s: True), (1, lambda i, j, n, s: i >= j), (2, lambda i, j, n, s: i + s - n >= j)]
)  # fmt: skip
def test_sequences_side_by_side(corner: int, kept: Callable[[int, int, int, int], bool]) -> None:
    """Packed sequences: 2 queries and 4 keys, then 3 and 1. Each query only meets its own sequence's keys."""
    q, k = torch.randn(1, 5, HEADS, D), torch.randn(1, 5, HEADS, D)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 5], dtype=torch.int32)
    efficient = BASE.find(torch.ops.aten._efficient_attention_forward.default)
    assert efficient is not None
    pairs = sum(kept(i, j, n, s) for n, s in ((2, 4), (3, 1)) for i in range(n) for j in range(s))
    assert (
        pairs_left(
            efficient,
            torch.ops.aten._efficient_attention_forward.default,
            (q, k, k, None, *starts, 3, 4, 0.0, corner),
            {},
            q,
        )
        == HEADS * pairs
    )


def test_whether_a_gradient_is_asked_for_is_known_of_tensors_alone() -> None:
    learning, frozen = torch.ones(2, requires_grad=True), torch.ones(3)
    specs = with_requires_grad((learning, 3, None, frozen), (Spec((2,)), 3, None, Spec((3,))))
    assert specs == ((2,), 3, None, (3,))
    assert [spec.facts for spec in specs if isinstance(spec, Spec)] == [
        {"requires_grad": True},
        {"requires_grad": False},
    ]


def masked_by_scores(q: torch.Tensor, k: torch.Tensor) -> Any:
    return F.scaled_dot_product_attention(q, k, k, q @ k.transpose(-1, -2) > 0)


def test_a_mask_that_has_no_values_is_read_in_a_run_that_computes() -> None:
    counted = fxflops.count(Attends(masked_by_scores), (Q, K), attention="exact")
    scores = BATCH * HEADS * N * S * D
    assert counted.trace == "counted on real tensors"
    assert counted.total_macs == scores + 2 * D * int((Q @ K.transpose(-1, -2) > 0).sum())
    there = fxflops.analyze(Attends(masked_by_scores), (Q.to("meta"), K.to("meta")), attention="exact", repeats=0)
    assert [missing.op for missing in there.missing] == ["attention"]
    assert there.recount(attention="dense").total_macs == scores + BATCH * HEADS * N * S * 2 * D


KERNELS = {
    "_scaled_dot_product_flash_attention_backward": False,
    "_scaled_dot_product_cudnn_attention_backward": False,
    "_scaled_dot_product_efficient_attention_backward": False,
    "_flash_attention_backward": True,
    "_efficient_attention_backward": True,
    "_flash_attention_forward": True,
    "_efficient_attention_forward": True,
}
"""CUDA kernels, and whether their tensors are [batch, length, heads, width]. All but two have a ``max_q``."""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_the_layout_of_a_kernel_s_tensors_is_its_own(name: str, causal: bool) -> None:
    target = getattr(torch.ops.aten, name).default
    entry = BASE.get(f"aten::{name}")
    assert entry is not None
    q, k = (tensor.transpose(1, 2) if KERNELS[name] else tensor for tensor in (Q, K))
    given: dict[str, Any] = {"query": q, "key": k, "value": k, "is_causal": causal}
    if "efficient" in name and KERNELS[name]:
        given["custom_mask_type"] = int(given.pop("is_causal"))
    out = q if name.endswith("forward") else (q, k, k)
    left = TRIANGLE if causal else N * S
    lengths = {"max_q": N, "max_k": S} if "efficient_attention" not in name else {}
    assert pairs_left(entry, target, (), {**given, **lengths}, out) == BATCH * HEADS * left
    specs = {
        key: Spec(tuple(value.shape)) if isinstance(value, torch.Tensor) else value for key, value in given.items()
    }
    made = Spec(tuple(q.shape)) if name.endswith("forward") else (Spec(tuple(q.shape)), *2 * [Spec(tuple(k.shape))])
    assert causal_pairs(entry, target, (), {**specs, **lengths}, made) == (BATCH * HEADS * left if causal else None)
