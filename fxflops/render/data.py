"""The plain data that renderers take. What was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..counting.uncounted import Missing

NO_OPS: Mapping[str, int] = {}


class TreeRow(NamedTuple):
    """One module. Its numbers are of its whole subtree; ``own_*`` of what is done in it directly, outside its children.

    ``name`` is its name in the parent ("" for the root), ``children`` are in run order, ``own_ops`` tells how often each
    operator was called directly in it, and ``missing`` is the number of calls in the subtree that have no formula.
    """

    name: str
    cls: str
    path: str
    calls: int
    params: int
    macs: int
    flops: int
    own_params: int = 0
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
        """It or anything in it was called; a ModuleList is not called itself, what it holds is."""
        return self.calls > 0 or any(child.was_called for child in self.children)

    def walk(self) -> Iterator[TreeRow]:
        """This row and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class OperatorShare(NamedTuple):
    """What all calls of one operator cost together."""

    name: str
    calls: int
    flops: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the one-screen summary shows.

    ``setting`` is the run in words ("cpu (2 cores) · eval · no_grad · symbolic trace"), ``latency`` the median, lowest
    and highest seconds of the forward and the number of repeats, ``backward_latency`` those of the backward pass, ``memory`` the bytes at the peak by category, ``modules`` the rows of
    the top level, ``remarks`` sentences on calls, ``paste`` the lines that would count what is missing,
    ``compiled`` that the model was, and yet ran as it is written.
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
    params_total: int = 0
    params_trainable: int = 0
    params_frozen: int = 0
    buffers: int = 0
    params_bytes: int = 0
    remarks: Sequence[str] = ()
    latency: tuple[float, float, float, int] | None = None
    nodes_seconds: float | None = None
    backward_latency: tuple[float, float, float, int] | None = None
    backward_nodes_seconds: float | None = None
    bytes_peak: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    peak_at: str = ""
    peak_phase: str = "forward"
    modules: Sequence[TreeRow] = ()
    operators: Sequence[OperatorShare] = ()
    missing: Sequence[Missing] = ()
    paste: str = ""
    compiled: bool = False

    @property
    def complete(self) -> bool:
        return not self.missing and self.counted_calls == self.calls
