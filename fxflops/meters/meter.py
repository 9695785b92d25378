"""Meters: each meter reads either time or memory before and after each node of a run. Each meter needs its own pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from ..records import EMPTY_MAPPING
from .accelerator import Accelerator
from .full_queue import FullQueue
from .live_storages import LiveStorages

Bytes = tuple[int, int, int]
"""Bytes allocated before a node, after it, and at the peak within it."""


class Meter(Protocol):
    """Callbacks before and after each node, and once at the end of a pass.

    In a backward pass a node may run in several pieces. With ``frees``, a node includes freeing the values that no later node uses.
    """

    frees: bool = False

    def before(self, name: str) -> None: ...

    def after(self, name: str, value: Any) -> None: ...

    def finish(self) -> None:
        return


class Clock(Meter):
    """Measure the seconds of each node by the host's clock, for a device on which a call returns only when its work is done."""

    frees = True

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds: dict[str, float] = {}

    def before(self, name: str) -> None:
        self._start = self.now()

    def after(self, name: str, value: Any) -> None:
        end = self.now()
        self.seconds[name] = self.seconds.get(name, 0.0) + end - self._start


class AcceleratorClock(Meter):
    """Seconds per node by events in an accelerator's stream. The device is synchronized once, in ``finish``.

    With a ``queue``, the seconds cover only the time in which the device works. Before each node, the device waits until the host has
    started all work of the node. ``host_seconds`` has the time that the host took to start this work in an earlier pass. Without a queue,
    the seconds include the device's waiting for the host.
    """

    frees = True

    def __init__(
        self,
        accelerator: Accelerator,
        queue: FullQueue | None = None,
        host_seconds: Mapping[str, float] = EMPTY_MAPPING,
    ) -> None:
        self.accelerator = accelerator
        self.seconds: dict[str, float] = {}
        self._queue, self._host_seconds = queue, host_seconds
        self._events: list[tuple[str, torch.Event, torch.Event]] = []

    def before(self, name: str) -> None:
        start, end = self.accelerator.event(), self.accelerator.event()
        self._events.append((name, start, end))
        if self._queue is not None:
            self._queue.hold(self._host_seconds.get(name, 0.0))
        self.accelerator.record(start)

    def after(self, name: str, value: Any) -> None:
        self.accelerator.record(self._events[-1][2])

    def finish(self) -> None:
        self.accelerator.synchronize()
        for name, start, end in self._events:
            taken = start.elapsed_time(end) / 1000 if self._queue is None else self._queue.seconds_between(start, end)
            self.seconds[name] = self.seconds.get(name, 0.0) + taken


class MemoryMeter(Meter):
    """Measure the bytes before, after and at the peak of each node. The bytes are from the allocator or, if it has no statistics, from live
    storages."""

    def __init__(self, memory: Accelerator | LiveStorages) -> None:
        self.memory = memory
        self.bytes: dict[str, Bytes] = {}

    def before(self, name: str) -> None:
        self.memory.reset_peak()
        self._before = self.memory.live

    def after(self, name: str, value: Any) -> None:
        if isinstance(self.memory, LiveStorages):
            self.memory.add_all(value)
        before, _, peak = self.bytes.get(name, (self._before, 0, 0))
        self.bytes[name] = before, self.memory.live, max(peak, self.memory.peak)
