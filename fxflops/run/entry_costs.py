"""Measure the overhead of observation that our handlers cannot time: torch's entry into a mode or a hook, and its return."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..meters.accelerator import accelerator_of
from ..meters.stopwatch import Costs
from ..ops import FormulaRegistry
from ..records import BACKWARD
from ..torch_internals import DisableTorchDispatch, DisableTorchFunction, is_on_fake
from ..trace.autograd_owners import AutogradOwners
from ..trace.compiler import unseen
from ..trace.instruments import Instruments
from ..trace.observe import Observer
from ..trace.profiled_world import ProfiledWorld

REPEATS = 4
"""How often a call is timed in a row. In a row, because a call after other calls takes longer, and most calls of a model are alike."""
ROUNDS, MOST_ROUNDS = 2, 6
"""How often each call is timed REPEATS times. There are more rounds than ROUNDS while the shortest times of a call's two best rounds are
not alike."""
ALIKE = 1.25
"""The factor within which two times are alike. If a time is alike another, other processes have disturbed neither of them."""
CHAIN = 4
"""The number of operations that each backward pass differentiates."""
CACHE = 2**19
"""The number of float32 elements that fill the cache of a processor core: 2 MiB."""


class _Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def is_timed(tensor: torch.Tensor | None) -> bool:
    """Return whether calls on such tensors can be timed. Calls on fake and meta tensors compute nothing, so they cannot."""
    if is_on_fake([tensor]):
        return False
    return tensor is None or tensor.device.type == "cpu" or accelerator_of(tensor.device) is not None


def measured_entry_costs(registry: FormulaRegistry) -> tuple[Costs, Costs]:
    """Measure the overhead around our handlers for a function, an operator, a module call and a gradient, on 0-d tensors.

    The overhead is the shortest time of an observed call by the observer's stopwatch, minus the shortest time of the same call
    without an observer. Shortest times exclude disturbances. The first costs are with a warm cache, the second with a cold cache.
    """
    module = _Returns()
    observer = Observer({module: ""}, registry, Instruments(ProfiledWorld(), owners=AutogradOwners()))
    with unseen(), torch.inference_mode(False), torch.no_grad():
        return _measured(observer, module, 0), _measured(observer, module, CACHE)


def _measured(observer: Any, module: nn.Module, cache: int) -> Costs:
    x, filler = torch.ones((), device="cpu"), torch.zeros(cache, device="cpu")

    def operator(tensor: torch.Tensor) -> None:
        with DisableTorchFunction():
            torch.neg(tensor)

    def chain() -> torch.Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            for _ in range(CHAIN):
                y = torch.neg(y)
        return y

    def timed(call: Callable[[Any], Any], make_input: Callable[[], Any], now: Callable[[], float]) -> float:
        value = make_input()
        if cache:
            with DisableTorchFunction(), DisableTorchDispatch():
                filler.add_(1)
        start = now()
        call(value)
        return now() - start

    calls: list[tuple[Callable[[Any], Any], Callable[[], Any]]] = [
        (torch.neg, lambda: x),
        (nn.functional.silu, lambda: x),
        (operator, lambda: x),
        (module, lambda: x),
        (torch.autograd.backward, chain),
    ]

    def shortest(now: Callable[[], float]) -> tuple[list[float], int]:
        """Return the shortest time of each call, and how often each call ran. A short disturbance is over in a later round."""
        seconds: list[list[float]] = [[] for _ in calls]
        rounds = 0
        while rounds < ROUNDS or (rounds < MOST_ROUNDS and not all(map(_two_shortest_alike, seconds))):
            rounds += 1
            for times, call in zip(seconds, calls, strict=True):
                times.append(min(timed(*call, now) for _ in range(REPEATS)))
        return [min(times) for times in seconds], rounds * REPEATS

    unobserved, _ = shortest(time.perf_counter)
    before = len(observer.calls)
    with observer:
        observed, runs = shortest(observer.stopwatch.now)
    costs = Costs(*(max(one - other, 0.0) for one, other in zip(observed, unobserved, strict=True)))
    gradients_per_pass = sum(call.phase == BACKWARD for call in observer.calls[before:]) / runs
    return costs._replace(gradient=costs.gradient / gradients_per_pass)


def _two_shortest_alike(seconds: list[float]) -> bool:
    shortest, second, *_ = sorted(seconds)
    return second <= ALIKE * shortest
