"""Compare the compiled model with the eager model: both latencies, the speed-up, the graph breaks, and the gain per module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..meters.timing import Timing
from ..records import FORWARD, prefixes
from ..render.columns import COMPILED
from ..render.data import CompiledRun
from ..render.exports import Rows, View
from ..run.outcome import Break, Compiled, CompiledKernel, Recompilation

OUTSIDE = "(no kernel)"
"""The row for the compiled model's time outside kernels: guards, and Python code around and between the graphs."""
MATTERS = 0.01
"""A module that takes less than this share of the latency is not listed in :attr:`CompiledView.losers`."""
LONGEST = 1.2
"""If the sum of the kernels' times is more than this factor times the latency, other work disturbed the measurement."""


class ModuleGain(NamedTuple):
    """The eager and compiled times of a module with its submodules, in seconds. ``own_*`` are the times without submodules."""

    seconds: float
    compiled_seconds: float
    own_seconds: float
    own_compiled_seconds: float

    @property
    def gain(self) -> float | None:
        """Eager seconds divided by compiled seconds; None if the eager or the compiled time is 0."""
        return self.seconds / self.compiled_seconds if self.seconds and self.compiled_seconds else None


@dataclass(frozen=True, slots=True, repr=False)
class CompiledView(View):
    """The run of a compiled model. Times are in seconds. A time that was not measured is None; ``missing`` says why.

    ``speedup`` is the forward's eager latency divided by the forward's compiled latency. ``by_module`` needs a report from
    ``analyze(..., kernels=True)``.
    """

    run: Compiled
    eager: Timing | None
    own: Mapping[str, float]
    """The eager time of each module's own operations in seconds, by the module's path."""
    provenance: str = field(default="", compare=False)
    eager_backward: Timing | None = None

    @property
    def timing(self) -> Timing | None:
        """The latency, its spread, and the number of timed runs."""
        return self.run.latency

    @property
    def latency(self) -> float | None:
        """Median time of the compiled model's forward pass, in seconds."""
        return None if self.run.latency is None else self.run.latency.median

    @property
    def backward_latency(self) -> float | None:
        """Median time of the compiled model's backward pass, in seconds."""
        return None if self.run.backward_latency is None else self.run.backward_latency.median

    @property
    def speedup(self) -> float | None:
        return None if self.run.latency is None or self.eager is None else self.eager.median / self.run.latency.median

    @property
    def backward_speedup(self) -> float | None:
        """The eager latency of the backward pass divided by the compiled latency of the backward pass."""
        if self.run.backward_latency is None or self.eager_backward is None:
            return None
        return self.eager_backward.median / self.run.backward_latency.median

    @property
    def graphs(self) -> int:
        """The number of compiled graphs that one run calls."""
        return self.run.graphs

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The graph breaks. Graph breaks are the places in the model's code where a graph ends before the forward ends. Each has torch's reason."""
        return self.run.breaks

    @property
    def recompilations(self) -> tuple[Recompilation, ...]:
        """The times that the model's code was compiled again after the first compilation, each with the guard that failed."""
        return self.run.recompilations

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """The kernels that one run calls, in run order. Each kernel has its time in seconds and the modules whose work it does."""
        return self.run.kernels

    @property
    def missing(self) -> str:
        return self.run.missing

    def by_module(self) -> Rows[ModuleGain]:
        """Return each module's eager and compiled time, by path. "" is the model; ``(no kernel)`` is the time outside kernels.

        If a kernel fuses operations of several modules, the kernel's time is divided among the modules in proportion to their eager times.
        So these modules show the same gain. Raises InputError, with the reason, if the kernels are not known.
        """
        if not self.run.kernels:
            raise InputError(
                f"the compiled model's kernels are unknown: {self.run.missing or self.run.kernels_missing}"
            )
        compiled = _shares(self.run.kernels, self.own)
        sums: dict[str, tuple[float, float]] = {}
        for path in {**self.own, **compiled}:
            eager, in_kernels = self.own.get(path, 0.0), compiled.get(path, 0.0)
            for above in prefixes(path):
                eager_sum, compiled_sum = sums.get(above, (0.0, 0.0))
                sums[above] = eager_sum + eager, compiled_sum + in_kernels
        rows = {path: ModuleGain(*sums[path], self.own.get(path, 0.0), compiled.get(path, 0.0)) for path in sums}
        outside = max((self.latency or 0.0) - sum(kernel.seconds for kernel in self.run.kernels), 0.0)
        rows[OUTSIDE] = ModuleGain(0.0, outside, 0.0, outside)
        return Rows(
            rows,
            "modules, compiled",
            COMPILED,
            lambda path, row: [(path, *row, row.gain and round(row.gain, 2))],
            self.provenance,
        )

    @property
    def unsteady(self) -> bool:
        """True if the times of the kernels add up to much more than the latency. The times of single modules are then unreliable."""
        return sum(kernel.seconds for kernel in self.run.kernels) > LONGEST * (self.latency or 0.0)

    @property
    def losers(self) -> list[str]:
        """The modules whose own operations are not faster when compiled, slowest first. The list is empty if this is unknown."""
        if not self.run.kernels or self.unsteady:
            return []
        rows, least = self.by_module(), MATTERS * (self.latency or 0.0)
        lost = {p: row.own_compiled_seconds for p, row in rows.items() if row.own_compiled_seconds >= row.own_seconds}
        return sorted((p for p in lost if p != OUTSIDE and lost[p] > least), key=lambda path: -lost[path])

    @property
    def shown(self) -> CompiledRun:
        """The data that the summary shows."""
        losers = [path or "(root)" for path in self.losers]
        return CompiledRun(self.run, self.speedup, losers, self.unsteady, self.backward_speedup)

    def _text(self) -> str:
        from ..render.summary import compiled_lines

        return compiled_lines(self.shown)


def compiled_view(counted_run: CountedRun) -> CompiledView | None:
    """Return the comparison of the compiled model with the eager model; None if no compiled model was run."""
    run = counted_run.run
    if run.compiled is None:
        return None
    eager_seconds = {path: row.own.seconds or 0.0 for path, row in counted_run.modules(FORWARD).items()}
    return CompiledView(run.compiled, run.latency, eager_seconds, counted_run.provenance, run.backward_latency)


def _shares(kernels: tuple[CompiledKernel, ...], own: Mapping[str, float]) -> dict[str, float]:
    """Return the time that each module's own operations take in kernels, in seconds.

    A kernel's time is split among the kernel's modules by weight. A module's weight is its eager time divided by its number of
    kernels.
    """
    parts = Counter(path for kernel in kernels for path in kernel.paths)
    seconds: dict[str, float] = {}
    for kernel in kernels:
        weights = [own.get(path, 0.0) / parts[path] for path in kernel.paths]
        for path, weight in zip(kernel.paths, weights, strict=True):
            share = weight / sum(weights) if sum(weights) else 1 / len(weights)
            seconds[path] = seconds.get(path, 0.0) + kernel.seconds * share
    return seconds
