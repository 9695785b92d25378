"""The record of a run before counting: its calls, memory, nodes and environment."""

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
    """The device, modes, versions and date of a run, and the requested name of the model.

    ``einsum`` is opt_einsum's strategy for ordering products, "" if opt_einsum is not used. ``compiled`` is True for a model under
    ``torch.compile``, although the run executed the model as written. ``date`` is in UTC; ``processor`` is the host's processor;
    ``threads`` is torch's number of threads; ``asked`` is the requested name of the model, e.g. "timm:resnet18".
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
        """A line on the origin of the run's figures: the requested name of the model, versions, date and machine."""
        versions = [
            f"{name} {version}" for name, version in (("fxflops", self.fxflops), ("torch", self.torch)) if version
        ]
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return " · ".join(filter(None, [self.asked, *versions, self.date, self.device, self.processor, threads]))


class Memory(dict[str, int]):
    """Bytes at peak memory by category.

    ``source`` is "allocator", "storages" or "predicted". ``at`` and ``phase`` are the module and the phase of the call at the peak.
    """

    def __init__(self, categories: Mapping[str, int], source: str, place: Place) -> None:
        super().__init__(categories)
        self.source = source
        self.at, self.phase = place


class CompiledKernel(NamedTuple):
    """A kernel call in the compiled model: the kernel's name, its seconds, and the paths of the modules that it computes."""

    name: str
    seconds: float
    paths: tuple[str, ...]


class Break(NamedTuple):
    """A graph break. ``where`` is its ``file:line``; ``reason`` is torch's reason, or "" if torch has no record of the break."""

    reason: str
    where: str


class Recompilation(NamedTuple):
    """A recompilation. ``reason`` is the guard that failed, and ``where`` is the ``file:line`` of the guard or the code.

    ``reason`` is "" if torch has no record of the guard.
    """

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """The times of a compiled model, and the graph breaks and recompilations of its forward.

    ``graphs`` is the number of graphs that a run calls. ``compiling`` is the number of seconds of the runs that compiled the model,
    None if the model was already compiled for these inputs. ``missing`` is the reason why ``latency`` is missing;
    ``kernels_missing`` is the reason why ``kernels`` are missing.
    """

    latency: Timing | None = None
    backward_latency: Timing | None = None
    compiling: float | None = None
    graphs: int = 0
    breaks: tuple[Break, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    missing: str = ""
    kernels: tuple[CompiledKernel, ...] = ()
    kernels_missing: str = "pass kernels=True to analyze()"


@dataclass(frozen=True)
class RunMemory:
    """The memory of a run: the peak in bytes, and the history of the live storages.

    The peak includes parameters, buffers and inputs; it is None if it is unknown. ``source`` is "allocator", "storages", "predicted"
    or "unknown": how the peak was measured.
    """

    peak: int | None
    history: History | Remembered
    source: str

    @classmethod
    def unknown(cls) -> RunMemory:
        """Return the memory of a run whose storages were not observed."""
        return cls(None, Remembered(0, Place(), (), ()), "unknown")

    @cached_property
    def by_category(self) -> Memory:
        """The bytes alive at the peak by category. "other" is the part of the allocator's bytes that is not in known storages."""
        if self.peak is None:
            return Memory({}, self.source, Place())
        bytes_by_category = dict.fromkeys(CATEGORIES, 0)
        for tensor in self.history.at_peak:
            bytes_by_category[tensor.category] += tensor.bytes
        shown = {category: nbytes for category, nbytes in bytes_by_category.items() if nbytes or category in ALWAYS}
        other = self.peak - sum(bytes_by_category.values())
        return Memory(shown | ({"other": other} if other else {}), self.source, self.history.peak_in)


class BlockFacts(NamedTuple):
    """Facts that only ``profile`` measures, about its block. The defaults mean that nothing is known.

    ``instrument_seconds`` were spent on observing; all other times exclude them. ``device_seconds`` is how long the accelerator
    worked. ``interrupted`` is a note about other processes, "" if there is nothing to note. ``workers`` are the numbers of workers of
    the DataLoaders that the block read. ``lines`` are the lines of the user's code in which the host's time was spent, None if not
    sampled.
    """

    instrument_seconds: float | None = None
    device_seconds: float | None = None
    interrupted: str = ""
    workers: tuple[int, ...] = ()
    lines: tuple[CodeLine, ...] | None = None


@dataclass(frozen=True)
class Run:
    """The record of one run of a model.

    In a report, ``recorded_as`` is ``report.trace``, and ``recorded_why`` is ``report.trace_reason``.

    ``calls``, ``scopes`` and ``memory`` are from a run of the model itself. ``aliases`` maps a module's other paths to its first path.
    ``params`` is None for a torch.profiler trace.

    ``recorded_as`` says how the run was recorded, e.g. "symbolic trace" or "counted on the meta device". ``recorded_why`` is the
    reason why the model was not traced symbolically, not traced at all, or not counted on meta. For a profiled block that raised, it
    is the text of the error.

    ``nodes`` are from the model's graph; they are empty without a graph. ``compiled`` has the times of a model that is compiled as a
    whole. ``steps`` are the steps of a profiled block or of a torch.profiler trace. ``captured_calls`` is the number of calls that did
    not run but were captured into a device graph. ``block`` is empty if the run is not a profiled block.
    """

    model: str
    inputs: str
    calls: tuple[Call, ...]
    scopes: tuple[Scope, ...]
    modules: tuple[Module, ...]
    params: Params | None
    aliases: Mapping[str, str]
    memory: RunMemory
    environment: Environment
    recorded_as: str
    recorded_why: str = ""
    nodes: tuple[Node, ...] = ()
    latency: Timing | None = None
    backward_latency: Timing | None = None
    compiled: Compiled | None = None
    steps: tuple[Step, ...] = ()
    captured_calls: int = 0
    block: BlockFacts = field(default_factory=BlockFacts)
