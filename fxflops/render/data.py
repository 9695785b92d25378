"""The plain data that renderers take. A value that was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting.steps import StepTime
from ..counting.uncounted import Missing

NO_OPS: Mapping[str, int] = {}


class TreeRow(NamedTuple):
    """One module. Its numbers are those of its subtree; ``own_*`` are those of its own calls, outside its children.

    ``name`` is its name in the parent ("" for the root), ``children`` are in run order, ``own_ops`` is the number of its
    own calls by operator, and ``missing`` is the number of calls in the subtree that have no formula.
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
    own_ops: Mapping[str, int] = NO_OPS
    missing: int = 0
    seconds: float | None = None
    own_seconds: float | None = None
    bytes_peak: int | None = None
    children: tuple[TreeRow, ...] = ()

    @property
    def own_missing(self) -> int:
        return self.missing - sum(child.missing for child in self.children)

    @property
    def was_called(self) -> bool:
        """True if the module or one inside it was called: a ModuleList is never called, its items are."""
        return self.calls > 0 or any(child.was_called for child in self.children)

    def walk(self) -> Iterator[TreeRow]:
        """Yield this row and all rows below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class OperatorShare(NamedTuple):
    """The cost of all calls of one operator."""

    name: str
    calls: int
    flops: int
    seconds: float | None = None


class CompiledRun(NamedTuple):
    """The compiled model's own run.

    ``latency`` is as in :class:`Summary`; ``speedup`` is the eager latency over it; ``graphs`` is their number, ``compiling``
    the seconds that it took to compile, if it was not compiled before; ``breaks`` and ``recompilations`` are reasons and
    places in the author's code; ``losers`` are the modules that did not gain, which cannot be told if the kernels' times are
    ``unsteady``; ``missing`` says why there is no latency.
    """

    latency: tuple[float, float, float, int, str] | None
    speedup: float | None
    graphs: int
    compiling: float | None = None
    breaks: Sequence[tuple[str, str]] = ()
    recompilations: Sequence[tuple[str, str]] = ()
    losers: Sequence[str] = ()
    unsteady: bool = False
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """The data of the one-screen summary.

    ``setting`` is the run in words ("cpu (2 cores) · eval · no_grad · symbolic trace"); ``latency`` is the median, lowest
    and highest seconds of the forward, the number of repeats and why it is unsteady, ``backward_latency`` the same of the backward pass;
    ``seconds`` are those of the forward's modules in all, ``nodes_seconds`` those of the graph's nodes;
    ``compiled_run`` is that of a model that was given compiled; ``steps`` are the times of a profiled block,
    ``instruments`` the seconds of observing it; ``unsteady`` says why times are not to be relied on;
    ``memory`` is the bytes at the peak by category; ``modules`` are the rows of the top level; ``remarks`` are sentences
    on calls; ``forward_missing`` are the calls of the forward without formula; ``paste`` are the lines to paste that count what is missing; ``compiled`` is True for a compiled model, or
    one with a compiled part, which was counted and timed eagerly.
    """

    title: str
    inputs: str
    setting: str
    macs: int
    flops: int
    convention: str
    attention: str
    counted_calls: int
    calls: int
    int_ops: int = 0
    backward_flops: int | None = None
    recompute_flops: int | None = None
    optimizer_flops: int | None = None
    gradient_flops: int | None = None
    params_total: int | None = 0
    params_trainable: int = 0
    params_frozen: int = 0
    buffers: int = 0
    params_bytes: int = 0
    remarks: Sequence[str] = ()
    latency: tuple[float, float, float, int, str] | None = None
    nodes_seconds: float | None = None
    seconds: float | None = None
    backward_latency: tuple[float, float, float, int, str] | None = None
    backward_nodes_seconds: float | None = None
    steps: Mapping[str, StepTime] = field(default_factory=dict)
    instruments: float | None = None
    unsteady: str = ""
    bytes_peak: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    peak_at: str = ""
    peak_phase: str = "forward"
    modules: Sequence[TreeRow] = ()
    operators: Sequence[OperatorShare] = ()
    missing: Sequence[Missing] = ()
    forward_missing: int = 0
    paste: str = ""
    compiled: bool = False
    compiled_run: CompiledRun | None = None

    @property
    def complete(self) -> bool:
        return not self.missing and self.counted_calls == self.calls
