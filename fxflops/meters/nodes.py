"""Measurements of a graph's nodes: seconds, bytes, and the kernels that ran on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .timing import Timing


class Kernel(NamedTuple):
    """A kernel that ran for a node. A kernel has a name (on a CPU, the operator's name), the number of calls, and their total seconds."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph as it ran. ``calls`` is the range of the Calls that the node makes.

    ``opcode`` is the fx opcode, ``target`` is the node's printable target, and ``function`` is the name of the function that the node
    calls. ``path`` and ``module`` are the path and the class name of the node's module. ``inputs`` has the names of its input nodes.
    ``bytes_*`` are the bytes that are allocated on the device before the node, after the node, and at the peak within the node.
    ``backward_*`` are for the node's part of the backward pass. On an accelerator, ``timing`` is the time in which the device works
    (:mod:`~fxflops.meters.full_queue`). ``host_timing`` is the time that the host takes to start this work. Fields that were not measured
    are None.
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
    inputs: tuple[str, ...] = ()

    @property
    def launch_bound(self) -> bool:
        """True if the device waited for the host, because the host took at least as long to start the work as the device took for the work itself."""
        return self.timing is not None and self.host_timing is not None and self.host_timing[0] >= self.timing.median
