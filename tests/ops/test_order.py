"""Sorts, and ops that search by sorting, in compares worked out by hand."""

from __future__ import annotations

import torch

from fxflops.records import Cost
from tests.oracle import cost_of


def test_sorting_is_counted_as_comparing() -> None:
    rows, k, log2 = 3, 8, 3
    x = torch.rand(rows, k)
    for name in ("sort", "argsort", "mode"):
        assert cost_of(getattr(torch, name), x) == Cost(others=rows * k * log2)
    assert cost_of(torch.sort, x.T, dim=0) == cost_of(torch.msort, x.T) == Cost(others=rows * k * log2)
    assert cost_of(torch.topk, x, 2) == Cost(others=rows * k * log2)
    assert cost_of("kthvalue", x, 2) == Cost(others=rows * k * log2)
    assert cost_of(torch.median, x, 1) == Cost(others=rows * k * log2)
    assert cost_of(torch.median, x) == cost_of(torch.unique, x) == Cost(others=24 * 5)
    assert cost_of(torch.quantile, x, 0.5, 1) == Cost(muls=rows, adds=2 * rows, others=rows * k * log2)


def test_unique() -> None:
    assert cost_of(torch.unique, torch.zeros(4, 2)) == cost_of("unique", torch.zeros(8)) == Cost(others=8 * 3)
    assert cost_of(torch.unique, torch.zeros(4, 2), dim=0) == Cost(others=(4 * 2) * 2)
    assert cost_of(torch.ops.aten.unique_dim.default, torch.zeros(4, 2), 0) == Cost(others=(4 * 2) * 2)
    assert cost_of(torch.ops.aten._unique2.default, torch.zeros(8)) == Cost(others=8 * 3)
    assert cost_of(torch.unique_consecutive, torch.zeros(8)) == Cost(others=7)
    assert cost_of("unique_consecutive", torch.zeros(4, 2), dim=0) == Cost(others=3 * 2)
    consecutive = cost_of(torch.ops.aten.unique_dim_consecutive.default, torch.zeros(4, 2), 0)
    assert consecutive == cost_of(torch.unique_consecutive, torch.zeros(4, 2), dim=0) == Cost(others=3 * 2)
