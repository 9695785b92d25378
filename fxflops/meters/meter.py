"""Meters: each reads one quantity, time or memory, around each node of a run, in a pass of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .live_storages import LiveStorages

Bytes = tuple[int, int, int]
"""Bytes allocated before a node, after it, and at the peak within it."""


class Meter(Protocol):
    """Callbacks before and after each node, and once at the end of a pass.

    In a backward pass a node may come in several pieces. With ``frees``, freeing the values that a node was the last to
    use is part of the node.
    """

    frees: bool = False

    def before(self, name: str) -> None: ...

    def after(self, name: str, value: Any) -> None: ...

    def finish(self) -> None:
        return


class Clock(Meter):
    """Seconds per node by the host's clock, for devices whose calls return when the work is done."""

    frees = True

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds: dict[str, float] = {}

    def before(self, name: str) -> None:
        self._start = self.now()

    def after(self, name: str, value: Any) -> None:
        end = self.now()
        self.seconds[name] = self.seconds.get(name, 0.0) + end - self._start


class CudaClock(Meter):
    """Seconds per node by CUDA events in stream order, and by the host's clock (``host``).

    The device is synchronized once, in ``finish``.
    """

    frees = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self.host = Clock()
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def before(self, name: str) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._events.append((name, start, end))
        start.record(torch.cuda.current_stream(self.device))
        self.host.before(name)

    def after(self, name: str, value: Any) -> None:
        self.host.after(name, value)
        self._events[-1][2].record(torch.cuda.current_stream(self.device))

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)
        for name, start, end in self._events:
            self.seconds[name] = self.seconds.get(name, 0.0) + start.elapsed_time(end) / 1000


class StorageMemory(Meter):
    """Bytes before, after and at the peak of each node, from live storages (CPU, meta)."""

    def __init__(self, storages: LiveStorages) -> None:
        self.storages = storages
        self.bytes: dict[str, Bytes] = {}

    def before(self, name: str) -> None:
        self.storages.reset_peak()
        self._before = self.storages.live

    def after(self, name: str, value: Any) -> None:
        self.storages.add_all(value)
        self.bytes[name] = _span(self.bytes.get(name), (self._before, self.storages.live, self.storages.peak))


class CudaMemory(Meter):
    """Bytes before, after and at the peak of each node, from the CUDA caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: dict[str, Bytes] = {}

    def before(self, name: str) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def after(self, name: str, value: Any) -> None:
        allocated, peak = torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device)
        self.bytes[name] = _span(self.bytes.get(name), (self._before, allocated, peak))


def _span(known: Bytes | None, now: Bytes) -> Bytes:
    """Return bytes before, after and at the peak of a node's pieces together."""
    return now if known is None else (known[0], now[1], max(known[2], now[2]))
