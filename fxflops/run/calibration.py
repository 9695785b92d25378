"""What observing costs beyond the observer's own handlers: torch's way into a mode or a hook, and out of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..meters.stopwatch import Costs
from ..ops import FormulaRegistry
from ..torch_internals import DisableTorchFunction
from .model_run import Watch

REPEATS = 25


class _Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def entry_costs(registry: FormulaRegistry) -> Costs:
    """Measure what a function, an operator and a module call cost around the handlers, with the smallest of tensors.

    It is the time that an observer's stopwatch shows for such a call, less the time of the same call unobserved.
    """
    x, module = torch.ones(()), _Returns()

    def operator() -> None:
        with DisableTorchFunction():
            torch.neg(x)

    calls = (lambda: torch.neg(x)), (lambda: F.silu(x)), operator, (lambda: module(x))
    observer = Watch({module: ""}, registry).observer
    with torch.no_grad():
        alone = [_median(call, time.perf_counter) for call in calls]
        with observer:
            observed = [_median(call, observer.stopwatch.now) for call in calls]
    return Costs(*(max(one - other, 0.0) for one, other in zip(observed, alone, strict=True)))


def _median(call: Callable[[], Any], now: Callable[[], float]) -> float:
    taken = []
    for _ in range(REPEATS):
        start = now()
        call()
        taken.append(now() - start)
    return statistics.median(taken)
