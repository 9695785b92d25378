"""A warning points at the user's line that called fxflops, however deep inside fxflops it is raised."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops

X = torch.zeros(3)
UNUSED: Any = {torch.relu: lambda x, *, out: 1}
"""A formula for a spelling of relu that no call below uses, so it raises a warning."""


def by_count() -> None:
    fxflops.count(nn.ReLU(), X, formulas=UNUSED)


def by_analyze() -> None:
    fxflops.analyze(nn.ReLU(), X, formulas=UNUSED, repeats=0)


def by_recount() -> None:
    fxflops.count(nn.ReLU(), X).recount(formulas=UNUSED)


def by_propagate() -> None:
    fxflops.TorchFLOPsByFX(nn.ReLU(), formulas=UNUSED).propagate(X)


def by_report_of_profile() -> None:
    with fxflops.profile(nn.ReLU(), formulas=UNUSED) as p:
        nn.functional.relu(X)
    p.report  # noqa: B018


def by_mfu() -> None:
    fxflops.count(nn.Linear(3, 3), X).mfu("H100")


def by_hfu() -> None:
    fxflops.count(nn.Linear(3, 3), X).hfu("H100")


@pytest.mark.parametrize("call", [by_count, by_analyze, by_recount, by_propagate, by_report_of_profile, by_mfu, by_hfu])
def test_a_warning_points_at_the_line_that_called(call: Callable[[], None]) -> None:
    lines, first = inspect.getsourcelines(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert caught
    for warning in caught:
        assert warning.filename == __file__
        assert first < warning.lineno < first + len(lines)
