"""The plain data that the rendering functions take. A value that was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting.collectives import Collective
from ..counting.rollup import OperatorRow
from ..counting.steps import StepTime
from ..counting.uncounted import Missing
from ..meters.code_lines import CodeLine
from ..meters.timing import Timing
from ..records import OUTSIDE, UNSEEN, Params
from ..run.outcome import Compiled

LITTLE = 0.0005
"""If work outside the model has at most this share of the cost, names do not mention it."""


class TreeRow(NamedTuple):
    """The row of a module. The numbers of a row include all modules below the row's module. Numbers named ``own_*`` cover only the calls
    outside the module's children.

    ``name`` is the module's name in its parent, "" for the root. ``children`` are in run order. ``own_ops`` names the module's own work: its
    largest operators, with their numbers of own calls. ``own_counting`` has all own operators that count; it does not depend on times.
    ``missing`` is the number of calls, in the module and below it, that have no formula. ``frozen`` is the number of parameters that do not
    require gradients. ``inputs`` and ``output`` are the shapes in the module's first call.
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
    own_counting: frozenset[tuple[str, int]] = frozenset()
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
        """True if the module or a module inside it was called. A ModuleList itself is never called, only its items are."""
        return self.calls > 0 or any(child.was_called for child in self.children)

    def walk(self) -> Iterator[TreeRow]:
        """Yield this row and all rows below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class GraphNode(NamedTuple):
    """A node of a model's graph: a call of a leaf module or function, or an input or output of the model.

    ``kind`` is "input", "module", "function" or "output". ``path`` is the path of the module that the node calls or is part of. ``op`` has
    the names of the node's operators. ``op`` is "" for a node without operators, e.g. an index into a tuple. ``out`` is the node's result
    as text; "" if unknown. ``inputs`` are the names of the nodes whose values this node uses. ``costs`` has the known costs among "flops",
    "macs", "time" (in seconds) and "memory" (bytes at the node's peak).
    """

    name: str
    path: str
    kind: str
    op: str
    out: str
    inputs: tuple[str, ...]
    costs: Mapping[str, float]


class CompiledRun(NamedTuple):
    """The run of a compiled model, compared with the eager run.

    ``speedup`` is the eager latency divided by the compiled latency. ``losers`` are the modules that compiling did not make faster.
    ``losers`` are unknown if the kernels' times are ``unsteady``.
    """

    run: Compiled
    speedup: float | None
    losers: Sequence[str]
    unsteady: bool
    backward_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The data of the one-screen summary.

    - ``setting`` describes the run, e.g. "cpu (2 cores) · eval · no_grad · symbolic trace".
    - ``unit`` is the unit that the convention counts: "FLOPs", or for some tools "MACs" or "mult-adds".
    - ``attention`` is the rule for counting attention; "" for a model without attention.
    - ``root`` is the module tree of the forward, and ``latency`` is the time of the forward.
    - ``nodes_seconds`` is the sum of the times of the graph's nodes; with ``on_accelerator``, only of their work on the device.
    - ``steps`` are the times of the steps in a profiled block. ``instruments`` are the seconds that profiling added to the block.
      ``device_seconds`` are the seconds that the accelerator was busy.
    - ``unsteady`` is the reason why times are unreliable.
    - ``memory`` has the bytes at the peak by category.
    - ``remarks`` are sentences about calls, or about a block in which no model was called.
    - ``paste`` is code that counts the missing ops.
    - ``utilization`` is the share of the device's peak that the model reached; or None if the peak is unknown.
    - ``provenance`` has the versions, the date and the machine.
    - ``compiled`` is True if a part of the model is compiled. If ``compiled`` is True, the model was counted and timed eagerly.
    - ``compiled_run`` is the compiled run, if the user passed a compiled model.
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
        """The row for the work of a profiled block outside its models; None if there was no such work."""
        return next((row for row in self.root.children if row.path == OUTSIDE), None)

    @property
    def is_without_model(self) -> bool:
        """Whether the run is a profiled block in which no model was called. If no model was called, parameters and steps are unknown."""
        return self.instruments is not None and self.steps.keys() <= {OUTSIDE}

    @property
    def forward(self) -> str:
        """The name of the work that ``root`` stands for: "forward" if the work outside the model is negligible, otherwise "forward and
        outside" or "work outside"."""
        outside, root = self.outside, self.root
        pairs = [] if outside is None else [(outside.flops, root.flops), (outside.seconds or 0.0, root.seconds or 0.0)]
        if all(part <= LITTLE * whole for part, whole in pairs):
            return "forward"
        inside = (row for row in self.root.children if row is not self.outside)
        return "forward and outside" if self.root.calls or any(row.was_called for row in inside) else "work outside"

    @property
    def has_backward(self) -> bool:
        """True if a backward pass was counted or timed."""
        known = self.backward_flops, self.backward_latency, *(step.backward or None for step in self.steps.values())
        return any(each is not None for each in known)

    @property
    def rules(self) -> str:
        """The rules that were used for counting, e.g. "convention fxflops, attention dense"."""
        return f"convention {self.convention}" + (f", attention {self.attention}" if self.attention else "")

    @property
    def is_unobserved(self) -> bool:
        """True if the run was only timed, without observing its operations (``profile(detail="steps")`` or ``"modules"``)."""
        return bool(self.missing) and all(item.op == UNSEEN for item in self.missing)

    @property
    def complete(self) -> bool:
        return not self.missing and self.counted_calls == self.calls
