"""What is read around each node of a run: the clock, or memory; one quantity per pass, so that none slows another."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from .errors import InputError
from .units import size

Bytes = tuple[int, int, int]
"""Allocated before and after a node, and at the peak within it."""


class Meter(Protocol):
    """Called before and after each node, which in a backward pass may come in several pieces; ``finish`` once at the end
    of the pass."""

    def before(self, name: str) -> None: ...

    def after(self, name: str, value: Any) -> None: ...

    def finish(self) -> None: ...


class Clock:
    """Seconds per node by the host's clock: for devices whose calls return when the work is done."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds: dict[str, float] = {}

    def before(self, name: str) -> None:
        self._start = self.now()

    def after(self, name: str, value: Any) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - self._start

    def finish(self) -> None:
        pass


class CudaClock:
    """Seconds per node by CUDA events in stream order; the device is waited for once, in ``finish``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def before(self, name: str) -> None:
        self._events.append((name, self._event(), self._event()))
        self._events[-1][1].record(torch.cuda.current_stream(self.device))

    def after(self, name: str, value: Any) -> None:
        self._events[-1][2].record(torch.cuda.current_stream(self.device))

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)
        for name, start, end in self._events:
            self.seconds[name] = self.seconds.get(name, 0.0) + start.elapsed_time(end) / 1000

    @staticmethod
    def _event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)


class Ledger:
    """Bytes of the tensor storages that are alive: what an allocator would report, for devices that keep no such book.

    Each storage is entered once, however many views share it, and leaves when Python frees it. Temporaries inside one
    kernel are not seen. ``peak`` is the largest ``live`` since the last ``reset_peak``. Above ``cap`` bytes it raises
    InputError: better that than to run out of memory.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = (), cap: int | None = None) -> None:
        self.live = 0
        self.peak = 0
        self.cap = cap
        self._entries: dict[int, tuple[weakref.ref[Any], int]] = {}
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """Enter the tensor's storage, if it is not there yet (or has been resized since). Sparse tensors have none."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, nbytes = id(storage), storage.nbytes()
        known = self._entries.get(key)
        if known is not None and known[0]() is storage:
            self.live += nbytes - known[1]
            self._entries[key] = (known[0], nbytes)
        else:
            self._entries[key] = (weakref.ref(storage, lambda ref: self._leave(key, ref)), nbytes)
            self.live += nbytes
        self.peak = max(self.peak, self.live)
        if self.cap is not None and self.live > self.cap:
            raise InputError(
                f"the run needs values, so it is made on the real tensors, and they have passed the cap of "
                f"{size(self.cap)}: give a smaller input, or analyze(model, args), which has no cap"
            )

    def add_all(self, value: Any) -> None:
        """Enter every tensor in a value of tuples, lists and dicts."""
        with torch._C.DisableTorchFunction():
            self._add_all(value)

    def _add_all(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.add(value)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._add_all(item)
        elif isinstance(value, dict):
            self._add_all(list(value.values()))

    def reset_peak(self) -> None:
        self.peak = self.live

    def _leave(self, key: int, ref: weakref.ref[Any]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry[0] is ref:
            self.live -= entry[1]
            del self._entries[key]


class StorageMemory:
    """Bytes before, after and at the peak of each node, from live storages (CPU, meta)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.bytes: dict[str, Bytes] = {}

    def before(self, name: str) -> None:
        self.ledger.reset_peak()
        self._before = self.ledger.live

    def after(self, name: str, value: Any) -> None:
        self.ledger.add_all(value)
        self.bytes[name] = _span(self.bytes.get(name), (self._before, self.ledger.live, self.ledger.peak))

    def finish(self) -> None:
        pass


class CudaMemory:
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

    def finish(self) -> None:
        pass


def _span(known: Bytes | None, now: Bytes) -> Bytes:
    """Before, after and peak of a node's pieces together."""
    return now if known is None else (known[0], now[1], max(known[2], now[2]))
