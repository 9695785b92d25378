"""What was measured of a graph's nodes: their seconds, their bytes, and what ran on the device for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of the same work run ``repeats`` times: the median, the fastest and the slowest."""

    median: float
    low: float
    high: float
    repeats: int


class Kernel(NamedTuple):
    """What ran on the device for a node: the kernel's name (on a CPU the operator's), how often, and its seconds."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph as it ran: ``calls`` are the positions of the Calls of the model's own run that it does.

    ``opcode`` is the fx opcode, ``target`` its printable target, ``function`` the name of the function it calls,
    ``module`` the class name of the module it stands in.
    What no meter read is None. Bytes are allocated on the device: before and after the node, and the peak within it.
    ``backward_*`` are of its part of the backward pass. On CUDA ``timing`` is the device's, from event to event, and
    ``host_timing`` what it took to start the work.
    """

    name: str
    opcode: str
    target: str
    function: str
    path: str
    module: str
    calls: range
    timing: Timing | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    bytes_peak: int | None = None
    backward_timing: Timing | None = None
    backward_bytes_after: int | None = None
    backward_bytes_peak: int | None = None
    host_timing: Timing | None = None
    kernels: tuple[Kernel, ...] = ()

    @property
    def launch_bound(self) -> bool:
        """Whether the device waited for the host: what it did took no longer than to start it."""
        return self.timing is not None and self.host_timing is not None and self.host_timing[0] >= self.timing.median
