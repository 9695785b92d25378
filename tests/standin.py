"""A stand-in for an accelerator. Its tensors are CPU tensors; its events, streams, allocator and name are defined here.

It replaces the parts of torch that fxflops uses: ``torch.accelerator``, ``torch.Event`` and the device's module. Its stream runs
its work in order while the host continues. Computation on the CPU takes host time, not stream time. Its allocator counts the
storages of tensors moved to it and, while its mode is on, of tensors that operators return.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxflops.meters import accelerator

NAME = "Stand-in 80GB"
GB = 10**9
CYCLE = 1e-9
"""Seconds per cycle."""


class Clock:
    """A clock that only moves when it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Event:
    """An event of the stand-in's stream. As with torch.Event, timing must be enabled and the event must be over."""

    standin: StandIn

    def __init__(self, device: Any = None, *, enable_timing: bool = False) -> None:
        assert torch.device(device).type == "cpu"
        self.enable_timing = enable_timing
        self.at: float | None = None

    def record(self, stream: Any = None) -> None:
        assert stream in (None, self.standin.stream)
        assert not self.standin.capturing, "the event becomes part of the user's graph"
        self.at = max(self.standin.busy_until, self.standin.host())
        self.standin.events += 1

    def query(self) -> bool:
        """Return whether the stream has passed the event."""
        return self.at is None or self.at <= self.standin.host()

    def elapsed_time(self, other: Event) -> float:
        if not (self.enable_timing and other.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'")
        if self.at is None or other.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time")
        if max(self.at, other.at) > max(self.standin.done_until, self.standin.host()):
            raise RuntimeError("device not ready")
        return (other.at - self.at) * 1000


class Allocator(TorchDispatchMode):
    """Count the bytes of storages that operators make, until nothing holds them.

    A storage made while all modes are off (e.g. the gradient that a backward pass starts with) is seen when an operator first
    returns it or a view of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.capacity = 80 * GB
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.take(out)
        return out

    def take(self, value: Any) -> None:
        for tensor in torch.utils._pytree.tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                known = self._known.get(id(storage))
                if known is None or known() is not storage:
                    self._enter(storage, storage.nbytes())

    def _enter(self, storage: Any, nbytes: int) -> None:
        if self.live + nbytes > self.capacity:
            raise torch.OutOfMemoryError(f"stand-in out of memory. Tried to allocate {nbytes} bytes.")
        key = id(storage)

        def leave(ref: Any) -> None:
            self.live -= nbytes
            if self._known.get(key) is ref:
                del self._known[key]

        self._known[key] = weakref.ref(storage, leave)
        self.live += nbytes
        self.peak = max(self.peak, self.live)


class StandIn:
    """The stand-in and its counters. ``host`` is the host's clock; :meth:`work` queues work on the stream.

    While it is ``capturing``, nothing may wait for it or record an event. ``synchronized`` counts how often the host waited for it,
    ``events`` how many events were recorded. With ``sleeps`` its module has a ``_sleep``, like torch.cuda, which queues work for a
    number of cycles.
    """

    device = torch.device("cpu")

    def __init__(self, host: Callable[[], float] = time.perf_counter) -> None:
        self.host = host
        self.busy_until = self.done_until = -1.0
        self.synchronized = self.events = 0
        self.sleeps = self.capturing = False
        self.stream = SimpleNamespace(device=self.device)
        self.memory = Allocator()

    def to(self, value: Any) -> Any:
        """Move a module or tensors to the device: its allocator counts their storages from now on."""
        self.memory.take([*value.parameters(), *value.buffers()] if isinstance(value, nn.Module) else value)
        return value

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Capture the work queued in this block instead of running it, like ``torch.cuda.graph``."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def work(self, seconds: float) -> None:
        """Queue work on the stream, after the work it already has. Nothing runs during a capture."""
        if not self.capturing:
            self.busy_until = max(self.busy_until, self.host()) + seconds

    def synchronize(self, device: Any = None) -> None:
        assert device == self.device
        assert not self.capturing
        self.synchronized += 1
        self.done_until = max(self.busy_until, self.host())

    def take_over(self, patch: pytest.MonkeyPatch) -> None:
        """Replace torch's accelerator."""
        event = type("Event", (Event,), {"standin": self})
        patch.setattr(torch, "Event", event)
        patch.setattr(accelerator, "HOSTS", {"meta"})
        for name, function in {
            "current_accelerator": lambda check_available=False: self.device,
            "device_count": lambda: 1,
            "current_stream": lambda device=None: self.stream,
            "synchronize": self.synchronize,
            "memory_allocated": lambda device=None: self.memory.live,
            "max_memory_allocated": lambda device=None: self.memory.peak,
            "reset_peak_memory_stats": self._reset,
        }.items():
            patch.setattr(torch.accelerator, name, function, raising=False)
        patch.setattr(torch, "get_device_module", lambda device=None: self.module)

    @property
    def module(self) -> Any:
        """The device's module, as ``torch.cuda`` is for CUDA."""
        sleep = {"_sleep": lambda cycles: self.work(cycles * CYCLE)} if self.sleeps else {}
        return SimpleNamespace(
            **sleep,
            device=lambda device: nullcontext(),
            is_current_stream_capturing=lambda: self.capturing,
            get_device_name=lambda device=None: NAME,
            get_device_properties=lambda device=None: SimpleNamespace(name=NAME, total_memory=80 * GB),
            memory_allocated=torch.accelerator.memory_allocated,
            max_memory_allocated=torch.accelerator.max_memory_allocated,
            reset_peak_memory_stats=torch.accelerator.reset_peak_memory_stats,
        )

    def _reset(self, device: Any = None) -> None:
        self.memory.peak = self.memory.live
