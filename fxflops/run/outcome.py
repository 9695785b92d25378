"""The record of a run: everything that it leaves behind, before it is counted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.backends.opt_einsum as optimizer

from ..meters.live_storages import CATEGORIES, History, Place, Remembered
from ..meters.nodes import Node, Timing
from ..model.inventory import Module, Params
from ..records import Call, Scope

ALWAYS = ("params", "buffers", "inputs", "activations")
"""The categories of memory that are said also where they are 0."""


class Environment(NamedTuple):
    """Where and how the run was made. ``einsum`` is the strategy by which opt_einsum orders products, "" where it does not;
    what was ``compiled`` ran as it is written all the same."""

    device: str
    mode: str
    grad: str
    torch: str
    einsum: str = ""
    compiled: bool = False


class Memory(dict[str, int]):
    """Bytes at the peak by category; ``source`` is "allocator", "storages" or "predicted", ``at`` the module of the peak
    and ``phase`` that of the call in it."""

    def __init__(self, categories: Mapping[str, int], source: str, place: Place) -> None:
        super().__init__(categories)
        self.source = source
        self.at, self.phase = place


@dataclass(frozen=True)
class Run:
    """Everything that one run of a model left behind.

    ``calls`` and ``scopes`` are of the model's own run, and so is ``history``, of the storages alive in it; ``nodes`` are of
    its graph, where it has one. ``peak`` is in bytes, with the state (parameters, buffers, inputs) in it, read from ``source``.
    ``steps`` are the model's calls by name, where it was called several times. ``trace_reason`` is why it was not traced
    symbolically, or not counted on meta.
    """

    model: str
    inputs: str
    calls: tuple[Call, ...]
    scopes: tuple[Scope, ...]
    peak: int
    history: History | Remembered
    source: str
    modules: tuple[Module, ...]
    params: Params
    environment: Environment
    trace: str
    trace_reason: str = ""
    nodes: tuple[Node, ...] = ()
    latency: Timing | None = None
    backward_latency: Timing | None = None
    steps: tuple[tuple[str, range], ...] = ()

    @cached_property
    def memory(self) -> Memory:
        """What was alive at the peak by category; "other" is what the allocator held beyond it."""
        held = dict.fromkeys(CATEGORIES, 0)
        for tensor in self.history.at_peak:
            held[tensor.category] += tensor.bytes
        found = {category: nbytes for category, nbytes in held.items() if nbytes or category in ALWAYS}
        other = self.peak - sum(held.values())
        return Memory(found | ({"other": other} if other else {}), self.source, self.history.peak_in)


def environment_of(device: torch.device, mode: str, compiled: bool) -> Environment:
    """The machine and the modes as they are now."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _cores()
    place = f"{device} ({hardware})" if device.type in ("cpu", "cuda") else str(device)
    grad = "grad" if torch.is_grad_enabled() else "no_grad"
    strategy = str(optimizer.strategy) if optimizer.is_available() and optimizer.enabled else ""
    return Environment(place, mode, grad, torch.__version__, strategy, compiled)


def _cores() -> str:
    """The processor in words; the threads of torch where they are not one for each core."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    used = "" if threads == cores else f", {threads} thread{'s' * (threads > 1)}"
    return f"{cores} cores{used}"
