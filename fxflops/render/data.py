"""The plain data for renderers. A value that was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting.collectives import Collective
from ..counting.rollup import OperatorRow
from ..counting.steps import OUTSIDE, StepTime
from ..counting.uncounted import Missing
from ..meters.code_lines import CodeLine
from ..meters.timing import Timing
from ..records import Params
from ..run.outcome import Compiled

LITTLE = 0.0005
"""A name does not mention work outside the model up to this share."""


class TreeRow(NamedTuple):
    """One module. Numbers include its subtree; ``own_*`` cover only its own calls, outside its children.

    ``name`` is its name in the parent ("" for the root), ``children`` are in run order, ``own_ops`` counts its own calls by
    operator, ``missing`` the calls in the subtree that have no formula, ``frozen`` the ``params`` that require no gradients;
    ``inputs`` and ``output`` are the shapes of its first call.
    """

    name: str
    cls: str
    path: str
    calls: int
    params: int | None
    macs: int
    flops: int
    own_params: int | None = 0
    own_macs: int = 0
    own_flops: int = 0
    own_ops: Mapping[str, int] = {}
    missing: int = 0
    seconds: float | None = None
    own_seconds: float | None = None
    bytes_peak: int | None = None
    inputs: str = ""
    output: str = ""
    frozen: int = 0
    children: tuple[TreeRow, ...] = ()

    @property
    def own_missing(self) -> int:
        return self.missing - sum(child.missing for child in self.children)

    @property
    def was_called(self) -> bool:
        """True if the module or one inside it was called: a ModuleList itself is never called, only its items."""
        return self.calls > 0 or any(child.was_called for child in self.children)

    def walk(self) -> Iterator[TreeRow]:
        """Yield this row and all rows below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class GraphNode(NamedTuple):
    """A node of a model's graph: a call of a leaf module or function, or an input or output of the model.

    ``kind`` is "input", "module", "function" or "output"; ``path`` is the module that it calls or belongs to; ``op`` names its
    operators ("" for e.g. an index into a tuple); ``out`` is its result as text, "" if unknown; ``inputs`` are the names of the
    nodes whose values it takes. ``costs`` has its "flops", "macs", "time" (in seconds) and "memory" (bytes at the peak within
    the node), as far as known.
    """

    name: str
    path: str
    kind: str
    op: str
    out: str
    inputs: tuple[str, ...]
    costs: Mapping[str, float]


class CompiledRun(NamedTuple):
    """The compiled model's own run, and its gain: ``speedup`` is the eager latency divided by the compiled latency; ``losers``
    are the modules that did not get faster, unknown if the kernels' times are ``unsteady``."""

    run: Compiled
    speedup: float | None
    losers: Sequence[str]
    unsteady: bool
    backward_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The data of the one-screen summary.

    ``setting`` describes the run ("cpu (2 cores) · eval · no_grad · symbolic trace"); ``unit`` is what the convention counts:
    "FLOPs", or for some tools "MACs" or "mult-adds"; ``root`` is the module tree of the forward, ``latency`` its time,
    ``nodes_seconds`` the sum of the graph nodes' times (with ``on_accelerator``, device work only); ``steps`` are the times of a
    profiled block, ``instruments`` the seconds of observing it, ``device_seconds`` the seconds that its accelerator was busy;
    ``unsteady`` says why times are unreliable; ``memory`` is the bytes at the peak by category; ``remarks`` are sentences on calls,
    or on a block that recorded no call of its models; ``paste`` is code that counts the missing ops; ``utilization`` is the share of
    the device's peak that the model reached, if the peak is known; ``attention`` is "" for a model without attention;
    ``provenance`` has the versions, the date and the machine; ``compiled`` is True for a model with a compiled part, which was
    counted and timed eagerly; ``compiled_run`` is the compiled run of a model that was passed compiled.
    """

    title: str
    inputs: str
    setting: str
    root: TreeRow
    convention: str
    attention: str
    counted_calls: int
    calls: int
    int_ops: int = 0
    backward_flops: int | None = None
    recompute_flops: int | None = None
    optimizer_flops: int | None = None
    gradient_flops: int | None = None
    params: Params | None = None
    remarks: Sequence[str] = ()
    latency: Timing | None = None
    nodes_seconds: float | None = None
    backward_latency: Timing | None = None
    backward_nodes_seconds: float | None = None
    on_accelerator: bool = False
    steps: Mapping[str, StepTime] = field(default_factory=dict)
    workers: Sequence[int] = ()
    lines: Sequence[CodeLine] | None = None
    active_params: float | None = None
    macs_at_zero: float = 0.0
    instruments: float | None = None
    device_seconds: float | None = None
    unsteady: str = ""
    collectives: Sequence[Collective] = ()
    bytes_peak: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    peak_at: str = ""
    peak_phase: str = "forward"
    operators: Sequence[OperatorRow] = ()
    missing: Sequence[Missing] = ()
    paste: str = ""
    utilization: float | None = None
    provenance: str = ""
    compiled: bool = False
    compiled_run: CompiledRun | None = None
    unit: str = "FLOPs"

    @property
    def outside(self) -> TreeRow | None:
        """The row for work that a profiled block did outside its models; None if there was none."""
        return next((row for row in self.root.children if row.path == OUTSIDE), None)

    @property
    def forward(self) -> str:
        """The name of the work that ``root`` sums up: just "forward" if the work outside the model is negligible."""
        outside, root = self.outside, self.root
        pairs = [] if outside is None else [(outside.flops, root.flops), (outside.seconds or 0.0, root.seconds or 0.0)]
        if all(part <= LITTLE * whole for part, whole in pairs):
            return "forward"
        inside = (row for row in self.root.children if row is not self.outside)
        return "forward and outside" if self.root.calls or any(row.was_called for row in inside) else "work outside"

    @property
    def has_backward(self) -> bool:
        """Whether a backward pass was counted or timed."""
        known = self.backward_flops, self.backward_latency, *(step.backward or None for step in self.steps.values())
        return any(each is not None for each in known)

    @property
    def rules(self) -> str:
        """The rules of counting: "convention fxflops, attention dense"."""
        return f"convention {self.convention}" + (f", attention {self.attention}" if self.attention else "")

    @property
    def complete(self) -> bool:
        return not self.missing and self.counted_calls == self.calls
