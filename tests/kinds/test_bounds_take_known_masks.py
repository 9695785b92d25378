"""A roofline bound uses only the query-key pairs that arguments and masks keep, whatever ``attention=`` counts.

The oracle adds up the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxflops
from fxflops import Report

B, H, N, D = 2, 4, 48, 16
LOWEST = torch.finfo(torch.float32).min


def tril(device: Any = None) -> Tensor:
    return torch.ones(N, N, dtype=torch.bool, device=device).tril()


def window(device: Any = None) -> Tensor:
    i = torch.arange(N, device=device)
    apart = i[:, None] - i[None]
    return (apart >= 0) & (apart < 8)


def padding(device: Any = None) -> Tensor:
    lengths = torch.tensor([N, 11], device=device)
    return (torch.arange(N, device=device)[None] < lengths[:, None])[:, None, None]


MASKS: dict[str, Callable[..., Tensor]] = {
    "causal": tril,
    "window": window,
    "padding": padding,
    "window and padding": lambda device=None: window(device) & padding(device),
    "expanded": lambda device=None: padding(device).expand(B, H, N, N),
    "added infinity": lambda device=None: torch.full((N, N), float("-inf"), device=device).triu(1),
    "added least number": lambda device=None: torch.where(window(device), 0.0, LOWEST),
    "nothing left": lambda device=None: torch.zeros(N, N, dtype=torch.bool, device=device),
}


class Given(nn.Module):
    def forward(self, q: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


class Made(nn.Module):
    def __init__(self, make: Callable[..., Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.make(q.device))


class Held(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.mask)


def pairs_of(mask: Tensor) -> int:
    """Return the number of pairs that a mask keeps, over all batches and heads."""
    left = mask if mask.dtype is torch.bool else mask > LOWEST
    return int(left.expand(B, H, N, N).sum())


def of_attention(report: Report, phase: str = "forward") -> list[int]:
    """Return the FLOPs of each attention call in the bound."""
    return [row.flops for row in report.roofline("H100 SXM", phase).rows if "attention" in row.op]


def check(report: Report, *pairs: int) -> None:
    """Check the FLOPs in the bounds: two products of length D for each pair, plus at most six elementwise operations per pair."""
    found = of_attention(report)
    assert len(found) == len(pairs)
    for flops, left in zip(found, pairs, strict=True):
        assert 4 * D * left - 2 * B * H * N * D <= flops <= (4 * D + 6) * left


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("attention", ["dense", "exact"])
def test_a_mask_with_values_is_read(name: str, attention: str) -> None:
    make, q = MASKS[name], torch.randn(B, H, N, D)
    pairs = pairs_of(make())
    counted = [(Given(), (q, make())), (Made(make), (q,)), (Held(make()), (q,))]
    for model, args in counted:
        report = fxflops.count(model, args, attention=attention)
        check(report, pairs)
        assert report.total_macs == 2 * D * (pairs if attention == "exact" else B * H * N * N)
        analyzed = fxflops.analyze(model, args, attention=attention, repeats=0)
        assert of_attention(analyzed) == of_attention(report)


@pytest.mark.parametrize("name", ["window", "padding", "added infinity"])
def test_so_it_is_in_the_backward_pass(name: str) -> None:
    make, q = MASKS[name], torch.randn(B, H, N, D, requires_grad=True)
    dense, exact = (fxflops.count(Made(make), q, backward=True, attention=how) for how in ("dense", "exact"))
    for phase in ("forward", "backward"):
        assert dense.roofline("H100 SXM", phase).rows == exact.roofline("H100 SXM", phase).rows
    rows = of_attention(dense, "backward")
    assert sum(rows) <= (8 * D + 8) * pairs_of(make()) + 2 * B * H * N * D


def test_calls_alike_have_masks_of_their_own() -> None:
    """The mask read for one call must not be reused for the next call, nor after the mask was written to in between."""

    class Layers(nn.Module):
        def forward(self, q: Tensor, masks: list[Tensor]) -> Tensor:
            for mask in masks:
                q = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            written = masks[0].clone()
            q = F.scaled_dot_product_attention(q, q, q, attn_mask=written)
            written[:, : N // 2] = False
            return F.scaled_dot_product_attention(q, q, q, attn_mask=written)

    masks = [tril(), window(), tril()]
    later = tril()
    later[:, : N // 2] = False
    report = fxflops.count(Layers(), (torch.randn(B, H, N, D), masks))
    check(report, *map(pairs_of, [*masks, tril(), later]))


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(N, N))

    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias * 2)


class Written(nn.Module):
    """A mask whose stored values are stale, because a call on meta writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((N, N), float("-inf")))

    def forward(self, q: Tensor) -> Tensor:
        self.mask.copy_(q[0, 0] @ q[0, 0].T)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.mask)


@pytest.mark.parametrize("model", [Learned(), Written()], ids=["learned", "written"])
def test_one_without_values_may_leave_nothing_and_the_bound_says_so(model: nn.Module) -> None:
    q = torch.randn(B, H, N, D)
    report = fxflops.count(model, q)
    bound = report.roofline("H100 SXM")
    assert (of_attention(report), bound.unread) == ([0], 1)
    assert bound.total.bytes > 0
    assert "mask without values" in str(bound)
    assert report.total_macs >= 2 * D * B * H * N * N
    # Once the mask is read, or counted exactly, the bound is larger.
    exact = fxflops.count(model, q, attention="exact").roofline("H100 SXM")
    assert exact.unread == 0
    assert exact.total.flops > bound.total.flops
    assert "mask without" not in str(exact)
    # A prediction assumes all pairs if the mask is unknown.
    assert report.predict("H100 SXM").seconds >= bound.bound_seconds
