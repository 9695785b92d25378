"""Everything that one analysis leaves behind, before it is counted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from .inventory import Inventory, Module, Params
from .ledger import CATEGORIES, Place
from .own_run import Measured
from .records import spec_of, specs_in

ALWAYS = ("params", "buffers", "inputs", "activations")
"""The categories of memory that are said also where they are 0."""


class Environment(NamedTuple):
    """Where and how the run was made."""

    device: str
    mode: str
    grad: str
    torch: str


class Memory(dict[str, int]):
    """Bytes at the peak by category; ``source`` is "allocator", "storages" or "predicted", ``at`` the module of the peak
    and ``phase`` that of the call in it."""

    def __init__(self, categories: Mapping[str, int], source: str, place: Place) -> None:
        super().__init__(categories)
        self.source = source
        self.at, self.phase = place


@dataclass(frozen=True)
class Run:
    """Everything a run leaves behind that a report is made of. ``trace_reason`` is why it was not traced symbolically."""

    model: str
    inputs: str
    measured: Measured
    modules: tuple[Module, ...]
    params: Params
    environment: Environment
    trace: str
    trace_reason: str = ""

    @cached_property
    def memory(self) -> Memory:
        return _memory(self.measured)


def outcome_of(
    inventory: Inventory,
    inputs: Any,
    measured: Measured,
    *,
    name: str,
    device: torch.device,
    mode: str,
    trace: str,
    why: str = "",
) -> Run:
    """All that is kept of an analysis on ``inputs`` of the model that consists of this; ``name`` is what it is called."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _cores()
    place = f"{device} ({hardware})" if device.type in ("cpu", "cuda") else str(device)
    grad = "grad" if torch.is_grad_enabled() else "no_grad"
    environment = Environment(place, mode, grad, torch.__version__)
    shapes = " ".join(map(repr, specs_in(spec_of(inputs))))
    return Run(name, shapes, measured, *inventory.contents, environment, trace, why)


def _memory(measured: Measured) -> Memory:
    """What was alive at the peak by category; "other" is what the allocator held beyond it."""
    held = dict.fromkeys(CATEGORIES, 0)
    for tensor in measured.history.at_peak:
        held[tensor.category] += tensor.bytes
    found = {category: nbytes for category, nbytes in held.items() if nbytes or category in ALWAYS}
    other = measured.peak - sum(held.values())
    return Memory(found | ({"other": other} if other else {}), measured.source, measured.history.peak_in)


def _cores() -> str:
    """The processor in words; the threads of torch where they are not one for each core."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    used = "" if threads == cores else f", {threads} thread{'s' * (threads > 1)}"
    return f"{cores} cores{used}"
