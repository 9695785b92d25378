"""The record of a run: its calls, memory, nodes and environment, before anything is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..meters.code_lines import CodeLine
from ..meters.history import CATEGORIES, History, Place, Remembered
from ..meters.nodes import Node
from ..meters.timing import Timing
from ..records import Call, Module, Params, Scope, Step

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


class CompiledKernel(NamedTuple):
    """A kernel's call in the compiled model: its name and seconds, and the modules whose operations it computes."""

    name: str
    seconds: float
    paths: tuple[str, ...]


class Break(NamedTuple):
    """A place where the compiler ended a graph, ``file:line``, and torch's reason, "" if torch has no record of it."""

    reason: str
    where: str


class Recompilation(NamedTuple):
    """A compilation of code that had been compiled before: the guard that failed, and ``file:line`` of it or the code.

    ``reason`` is "" if torch has no record of it.
    """

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled model's own times, with its forward's breaks and recompilations.

    ``graphs`` are those that one run calls; ``compiling`` is the seconds of the runs that compiled it, None if it had been
    compiled for these inputs before. ``missing`` says why it has no ``latency``, ``kernels_missing`` why no ``kernels``.
    """

    latency: Timing | None = None
    backward_latency: Timing | None = None
    compiling: float | None = None
    graphs: int = 0
    breaks: tuple[Break, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    missing: str = ""
    kernels: tuple[CompiledKernel, ...] = ()
    kernels_missing: str = "they were not asked for: analyze(..., kernels=True)"


@dataclass(frozen=True)
class Run:
    """The record of one run of a model.

    ``calls``, ``scopes`` and ``history`` (of live storages) are those of the model itself; ``nodes`` are those of its
    graph, if it has one. ``peak`` is in bytes, parameters, buffers and inputs included; ``source`` is that of
    :class:`Memory`. ``steps`` are those of a block under ``profile``, ``instruments`` the seconds that observing it took,
    which are in no other time, ``device_busy`` those for which its accelerator worked, ``interrupted`` the words on other work that ran meanwhile. ``workers`` are the numbers of
    workers of the DataLoaders that were read in it, ``lines`` where its host's time went in the user's code, None if they were not sampled. ``captured`` is the number of calls that did not run, but were
    captured into a graph of the device. ``compiled`` has the times of a
    model that is compiled as a whole. ``peak`` and ``params`` are None where a trace does not tell them. ``trace_reason``
    says why the model was not traced symbolically, or not at all, or not counted on meta, or what ended a profiled block.
    ``aliases`` are further paths of ``modules``, each with the first.
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
    aliases: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    latency: Timing | None = None
    backward_latency: Timing | None = None
    steps: tuple[Step, ...] = ()
    instruments: float | None = None
    device_busy: float | None = None
    interrupted: str = ""
    captured: int = 0
    workers: tuple[int, ...] = ()
    lines: tuple[CodeLine, ...] | None = None
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
