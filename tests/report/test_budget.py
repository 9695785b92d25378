"""Budgets: both sides of each limit, with full numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxflops
from fxflops.report.budget import Budget, above, budgets_of

# 3 rows, 4 to 2 with a bias: 24 MACs; 24 multiplies, 18 adds and 6 biases.
REPORT = fxflops.count(nn.Linear(4, 2), torch.ones(3, 4))


def test_each_limit_is_its_own_budget() -> None:
    found = budgets_of(REPORT, max_flops=48, max_macs=23, max_params=10, max_memory=10**6)
    assert [(each.name, each.value, each.kept) for each in found] == [
        ("FLOPs", 48, True),
        ("MACs", 24, False),
        ("params", 10, True),
        ("memory", REPORT.max_memory, True),
    ]
    assert budgets_of(REPORT) == ()


def test_a_line_has_the_numbers_in_full() -> None:
    assert str(Budget("FLOPs", 8_227_340_288, 4_200_000_000)) == (
        "OVER  FLOPs   8,227,340,288 (8.23 G) of 4,200,000,000 (4.20 G)  195.9%"
    )
    assert str(Budget("memory", 1024, 2048)) == "ok    memory  1,024 B (1.00 KiB) of 2,048 B (2.00 KiB)  50.0%"
    assert str(Budget("params", 26_910_624, 100)).endswith("of 100  269,106x")
    assert str(Budget("params", 114_480, 114_432)).endswith("100.042%")
    assert str(Budget("time", 0.02, 0.05)) == "ok    time    20.00 ms of 50.00 ms  40.0%"


def test_an_earlier_report_gives_the_limits() -> None:
    assert above(REPORT, 0) == {
        "max_flops": REPORT.total_flops,
        "max_macs": REPORT.total_macs,
        "max_params": REPORT.total_params,
        "max_memory": REPORT.max_memory,
    }
    assert above(REPORT, 50)["max_macs"] == 1.5 * REPORT.total_macs
    timed = fxflops.analyze(torch.nn.Linear(2, 2), torch.ones(1, 2), repeats=1)
    assert "max_memory" not in above(timed, 0)


def test_the_line_of_a_lower_bound_says_so() -> None:
    assert str(Budget("FLOPs", 10, 20, is_bound=True)) == "ok    FLOPs   >= 10 of 20  50.0%"


def test_a_time_that_was_not_measured() -> None:
    with pytest.raises(fxflops.InputError, match="cannot check the limit for time"):
        budgets_of(REPORT, max_time=1.0)
