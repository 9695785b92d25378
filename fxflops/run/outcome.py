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
    """The device, modes and versions of a run, its date, and the name the model was requested by.

    ``einsum`` is opt_einsum's strategy for ordering products, "" if it is not used. ``compiled`` says that the model is under
    ``torch.compile``, although the run executed it as written. ``date`` is in UTC; ``processor`` is the host's; ``threads`` is
    torch's number of threads; ``asked`` is the name the model was requested by: "timm:resnet18".
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
        """The origin of the run's figures on one line: the requested name, versions, date and machine."""
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
    """A kernel call in the compiled model: its name and seconds, and the modules whose operations it computes."""

    name: str
    seconds: float
    paths: tuple[str, ...]


class Break(NamedTuple):
    """A place where the compiler ended a graph, ``file:line``, and torch's reason, "" if torch has no record of it."""

    reason: str
    where: str


class Recompilation(NamedTuple):
    """A recompilation of code: the guard that failed, and ``file:line`` of the guard or the code.

    ``reason`` is "" if torch has no record of it.
    """

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled model's own times, with its forward's breaks and recompilations.

    ``graphs`` is the number of graphs that a run calls; ``compiling`` is the seconds of the runs that compiled it, None if it
    was already compiled for these inputs. ``missing`` says why ``latency`` is missing, ``kernels_missing`` why ``kernels`` are.
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

    ``calls``, ``scopes`` and ``history`` (of live storages) come from the model itself, ``nodes`` from its graph, if it has
    one. ``peak`` is in bytes and includes parameters, buffers and inputs; ``source`` is as in :class:`Memory`.

    For a block under ``profile``: ``steps`` are its steps; ``instruments`` is the seconds spent observing, which no other time
    includes; ``device_busy`` is the seconds in which its accelerator worked; ``interrupted`` is a note about other processes,
    empty if there is none to report; ``workers`` are the numbers of workers of the DataLoaders it read; ``lines`` is where the
    host's time went in the user's code, None if not sampled. ``captured`` is the number of calls that did not run but were
    captured into a graph of the device.

    ``compiled`` has the times of a model that is compiled as a whole. ``peak`` and ``params`` are None if a trace lacks them.
    ``trace_reason`` says why the model was not traced symbolically, or not at all, or not counted on meta, or what ended a
    profiled block. ``aliases`` maps further paths of ``modules`` to their first path.
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
        """The bytes alive at the peak by category; "other" are the allocator's bytes beyond the known storages."""
        if self.peak is None:
            return Memory({}, self.source, Place())
        bytes_by_category = dict.fromkeys(CATEGORIES, 0)
        for tensor in self.history.at_peak:
            bytes_by_category[tensor.category] += tensor.bytes
        shown = {category: nbytes for category, nbytes in bytes_by_category.items() if nbytes or category in ALWAYS}
        other = self.peak - sum(bytes_by_category.values())
        return Memory(shown | ({"other": other} if other else {}), self.source, self.history.peak_in)
