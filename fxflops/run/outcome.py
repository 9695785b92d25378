"""The record of a run: its calls, memory, nodes and environment, before anything is counted."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, cached_property
from typing import NamedTuple

import torch
import torch.backends.opt_einsum as optimizer

from .. import __version__
from ..meters.accelerator import accelerator_of
from ..meters.history import CATEGORIES, History, Place, Remembered
from ..meters.nodes import Node
from ..meters.timing import Timing
from ..model.inventory import Module, Params
from ..records import Call, Scope, Step
from .compiled import Compiled

ALWAYS = ("params", "buffers", "inputs", "activations")
"""The categories of memory that are shown even if they are 0."""


class Environment(NamedTuple):
    """The device, modes and versions of a run, and when and for whom it was made.

    ``einsum`` is the strategy by which opt_einsum orders products, "" if it is not used. ``compiled`` tells that the
    model is under ``torch.compile``; it ran as it is written all the same. ``date`` is in UTC; ``processor`` is the host's,
    ``threads`` are those of torch; ``asked`` is the name under which the model was asked for: "timm:resnet18".
    """

    device: str
    mode: str
    grad: str
    torch: str
    einsum: str = ""
    compiled: bool = False
    fxflops: str = ""
    date: str = ""
    processor: str = ""
    threads: int = 0
    asked: str = ""

    @property
    def provenance(self) -> str:
        """The origin of the run's figures on one line: the name that was asked for, versions, date and machine."""
        versions = [
            f"{name} {version}" for name, version in (("fxflops", self.fxflops), ("torch", self.torch)) if version
        ]
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return " · ".join(filter(None, [self.asked, *versions, self.date, self.device, self.processor, threads]))


class Memory(dict[str, int]):
    """Bytes at the peak by category.

    ``source`` is "allocator", "storages" or "predicted"; ``at`` is the module in which the peak occurred, ``phase`` the
    phase of the call.
    """

    def __init__(self, categories: Mapping[str, int], source: str, place: Place) -> None:
        super().__init__(categories)
        self.source = source
        self.at, self.phase = place


@dataclass(frozen=True)
class Run:
    """The record of one run of a model.

    ``calls``, ``scopes`` and ``history`` (of live storages) are those of the model itself; ``nodes`` are those of its
    graph, if it has one. ``peak`` is in bytes, parameters, buffers and inputs included; ``source`` is that of
    :class:`Memory`. ``steps`` are those of a block under ``profile``, ``instruments`` the seconds that observing it took,
    which are in no other time, ``interrupted`` the words on other work that ran meanwhile. ``compiled`` has the times of a
    model that is compiled as a whole. ``peak`` and ``params`` are None where a trace does not tell them. ``trace_reason``
    says why the model was not traced symbolically, or not counted on meta.
    """

    model: str
    inputs: str
    calls: tuple[Call, ...]
    scopes: tuple[Scope, ...]
    peak: int | None
    history: History | Remembered
    source: str
    modules: tuple[Module, ...]
    params: Params | None
    environment: Environment
    trace: str
    trace_reason: str = ""
    nodes: tuple[Node, ...] = ()
    latency: Timing | None = None
    backward_latency: Timing | None = None
    steps: tuple[Step, ...] = ()
    instruments: float | None = None
    interrupted: str = ""
    compiled: Compiled | None = None

    @cached_property
    def memory(self) -> Memory:
        """The bytes alive at the peak by category; "other" are those of the allocator beyond the known storages."""
        if self.peak is None:
            return Memory({}, self.source, Place())
        held = dict.fromkeys(CATEGORIES, 0)
        for tensor in self.history.at_peak:
            held[tensor.category] += tensor.bytes
        found = {category: nbytes for category, nbytes in held.items() if nbytes or category in ALWAYS}
        other = self.peak - sum(held.values())
        return Memory(found | ({"other": other} if other else {}), self.source, self.history.peak_in)


def environment_of(device: torch.device, mode: str, compiled: bool) -> Environment:
    """Return the environment of a run made now."""
    accelerator = accelerator_of(device)
    hardware = accelerator.name if accelerator else _cores() if device.type == "cpu" else ""
    place = f"{device} ({hardware})" if hardware else str(device)
    grad = "grad" if torch.is_grad_enabled() else "no_grad"
    strategy = str(optimizer.strategy) if optimizer.is_available() and optimizer.enabled else ""
    return Environment(
        place,
        mode,
        grad,
        torch.__version__,
        strategy,
        compiled,
        __version__,
        _now(),
        _processor(),
        torch.get_num_threads(),
    )


def environment_of_trace(device: str) -> Environment:
    """Return the environment of a run on ``device`` that a trace tells of."""
    return Environment(device, "", "", "", fxflops=__version__, date=_now())


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def _processor() -> str:
    """Return the name of the processor; its architecture where the system does not tell more."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _cores() -> str:
    """Return the number of cores in words, with torch's threads if there is not one for each core."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    return f"{cores} cores" if threads == cores else f"{cores} cores, {threads} thread{'s' * (threads > 1)}"
