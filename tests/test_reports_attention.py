"""Reports of attention: written with ``@``, as one fused call, in nn.MultiheadAttention and in whole transformers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.test_reports import Case, check, every_way, f, of

b, h, n, s, d, v = 2, 3, 5, 7, 11, 13  # batch, heads, queries, keys, width of a head, width of a value
SCORES = b * h * n * s


def with_operators(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, value = m.qkv(x).unflatten(-1, (3, h, d)).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(d)
    return m.project((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def with_einsum(m: Any, q: torch.Tensor, k: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhnd,bhsd->bhns", q, k).softmax(-1)
    return torch.einsum("bhns,bhsv->bnhv", scores, value)


def linear_attention(m: Any, q: torch.Tensor, k: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ value)


def windowed(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Windows of 2 x 2 of a 4 x 6 image, as in a Swin transformer."""
    windows = x.view(b, 2, 2, 3, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, d)
    return F.scaled_dot_product_attention(windows, windows, windows)


def sdpa(**options: Any) -> nn.Module:
    return of(lambda m, q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, mask, **options))


def qkv(*batch: int) -> tuple[torch.Tensor, ...]:
    return f(*batch, n, d), f(*batch, s, d), f(*batch, s, v)


def masked(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *qkv(b, h), mask


FUSED = SCORES * (d + v)  # every query meets every key: d for the score, v for the value
ROWS = b * h * n
# Per score: d multiplies, d-1 adds, 1 scale, an exp and a divide. Per row of scores: s-1 adds. Per output: s multiplies, s-1 adds.
FUSED_FLOPS = SCORES * (2 * d - 1 + 1 + 2) + ROWS * (s - 1) + ROWS * v * (2 * s - 1)
KEPT = torch.ones(n, s, dtype=torch.bool).tril()

CASES = [
    # FastBERT#14, Lite-Mono#113, thop#197, thop#213, calflops#26, ptflops#77, mmcv#886, torchinfo#126: both products count.
    Case(
        "operators",
        of(with_operators, qkv=nn.Linear(d, 3 * h * d), project=nn.Linear(h * d, d)),
        f(b, n, d),
        macs=b * n * d * (3 * h * d) + 2 * (b * h * n * n * d) + b * n * (h * d) * d,
    ),
    Case("einsum", of(with_einsum), qkv(b, h), macs=FUSED),
    Case(
        "einsum-flops",
        of(lambda m, q, k: torch.einsum("nd,sd->ns", q, k)),
        (f(n, d), f(s, d)),
        macs=n * s * d,
        flops=n * s * (2 * d - 1),
    ),
    Case("bmm", of(lambda m, q, k, v: torch.bmm(torch.bmm(q, k.mT), v)), qkv(b * h), macs=FUSED),
    Case("method-matmul", of(lambda m, q, k, v: q.matmul(k.mT).matmul(v)), qkv(b, h), macs=FUSED),
    Case(
        "linear-attention",
        of(linear_attention),
        (f(b, h, n, d), f(b, h, n, d), f(b, h, n, v)),
        macs=2 * b * h * n * d * v,
    ),
    Case("windows", of(windowed), f(b, 4 * 6, d), macs=(b * 2 * 3) * (4 * 4) * (d + d)),
    # pytorch#195460, VMamba#296, calflops#48, torch_flops#11, #23: the fused call counts as those products, whatever the mask.
    Case("fused", sdpa(), qkv(b, h), macs=FUSED, flops=FUSED_FLOPS),
    Case(
        "fused-by-name",
        of(lambda m, q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v)),
        qkv(b, h),
        macs=FUSED,
        flops=FUSED_FLOPS,
    ),
    Case("fused-bool-mask", sdpa(), masked(KEPT), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case("fused-float-mask", sdpa(), masked(f(n, s)), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case("fused-mask-of-batch", sdpa(), masked(f(b, 1, n, s)), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case("fused-mask-of-heads", sdpa(), masked(f(1, h, n, s)), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case("fused-mask-of-all", sdpa(), masked(f(b, h, n, s)), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case(
        "fused-mask-of-keys",
        sdpa(),
        masked(torch.ones(b, 1, 1, s, dtype=torch.bool)),
        macs=FUSED,
        flops=FUSED_FLOPS + SCORES,
    ),
    Case("fused-causal", sdpa(is_causal=True), qkv(b, h), macs=FUSED, flops=FUSED_FLOPS + SCORES),
    Case("fused-scaled", sdpa(scale=0.5), qkv(b, h), macs=FUSED, flops=FUSED_FLOPS),
    Case("fused-dropout", sdpa(dropout_p=0.1), qkv(b, h), macs=FUSED),
    Case("fused-one-head", sdpa(), qkv(b), macs=b * n * s * (d + v)),
    Case("fused-unbatched", sdpa(), qkv(), macs=n * s * (d + v)),
    Case("fused-half", sdpa(), tuple(t.bfloat16() for t in qkv(b, h)), macs=FUSED, flops=FUSED_FLOPS),
    # Six query heads in groups of three, each sharing one head of keys and values: every query meets its s keys.
    Case(
        "fused-gqa", sdpa(enable_gqa=True), (f(b, 6, n, d), f(b, 2, s, d), f(b, 2, s, v)), macs=b * 6 * n * s * (d + v)
    ),
    Case(
        "fused-mqa-expanded",
        of(lambda m, q, k, v: F.scaled_dot_product_attention(q, k.expand(b, h, s, d), v.expand(b, h, s, v.shape[-1]))),
        (f(b, h, n, d), f(b, 1, s, d), f(b, 1, s, v)),
        macs=FUSED,
    ),
    # calflops#48: twice the sequence length is four times the attention.
    Case("fused-twice-as-long", sdpa(), (f(b, h, 2 * n, d), f(b, h, 2 * s, d), f(b, h, 2 * s, v)), macs=4 * FUSED),
]


@every_way(CASES)
def test_attention(case: Case, way: str) -> None:
    check(case, way)
