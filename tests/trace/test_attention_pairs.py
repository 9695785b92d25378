"""attention="exact": the pairs that a mask leaves, counted one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fxflops

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


def test_what_was_not_read_is_missing() -> None:
    dense = fxflops.count(Attends(CASES["bool mask"][0]), (Q, K))
    assert dense.complete
    assert next(m.why for m in dense.recount(attention="exact").missing).startswith("the attention mask was not read")
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
    """What one mask leaves out the other keeps: together they keep every pair once."""
    assert fxflops.count(TwoMasks(), (Q, K), attention="exact").total_macs == BATCH * HEADS * N * S * 2 * D
