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
from ..torch_internals import DisableTorchDispatch, DisableTorchFunction, in_fake_mode, is_fake
from .model_run import Watch

REPEATS = 15
CACHE = 2**19
"""Elements that fill the cache of a processor's core: 2 MiB of float32."""


class _Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def is_timed(tensor: torch.Tensor) -> bool:
    """Return whether the host's clock tells how long calls on such tensors take: on fake ones nothing is computed."""
    return tensor.device.type == "cpu" and not is_fake(type(tensor)) and not in_fake_mode()


def entry_costs(registry: FormulaRegistry, cold: bool = False) -> Costs:
    """Measure what a function, an operator and a module call cost around the handlers, with the smallest of tensors.

    It is the time that an observer's stopwatch shows for such a call, less the time of the same call unobserved; if
    ``cold``, after other work, which has filled the processor's cache.
    """
    x, module, filler = torch.ones(()), _Returns(), torch.zeros(CACHE if cold else 0)

    def operator() -> None:
        with DisableTorchFunction():
            torch.neg(x)

    def median(call: Callable[[], Any], now: Callable[[], float]) -> float:
        taken = []
        for _ in range(REPEATS):
            if cold:
                with DisableTorchFunction(), DisableTorchDispatch():
                    filler.add_(1)
            start = now()
            call()
            taken.append(now() - start)
        return statistics.median(taken)

    calls = (lambda: torch.neg(x)), (lambda: F.silu(x)), operator, (lambda: module(x))
    observer = Watch({module: ""}, registry).observer
    with torch.no_grad():
        alone = [median(call, time.perf_counter) for call in calls]
        with observer:
            observed = [median(call, observer.stopwatch.now) for call in calls]
    return Costs(*(max(one - other, 0.0) for one, other in zip(observed, alone, strict=True)))
