"""A stand-in for an accelerator: its tensors are the CPU's, its events, streams, allocator and name are told by this file.

It takes the place of what fxflops asks of torch: ``torch.accelerator``, ``torch.Event`` and the device's module. Its stream
does the work that it is given one after the other, while the host goes on; what computes on the CPU takes no time of it but
the host's. Its allocator counts the storages of what is moved to it, and, while it is on, of what operators make.
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
"""The seconds of one of its cycles."""


class Clock:
    """Seconds that pass only when somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Event:
    """An event of the stand-in's stream, with the rules of torch.Event: it is timed only if it was asked to be, and is over."""

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
        """Return whether the stream is past it."""
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
    """The bytes of the storages that operators make, from when they are made to when nobody holds them.

    One that is made while all modes are off (the ones that a backward pass begins with) is seen by the first operator that
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
    """The stand-in, and what it was asked. ``host`` is the host's clock; :meth:`work` gives the stream work to do.

    Nothing may wait for it, and no event be recorded, while it is ``capturing``. ``synchronized`` is the number of times that
    the host waited for it, ``events`` that of events recorded. With ``sleeps`` its module has ``_sleep``, as torch.cuda has,
    which gives it work for a number of cycles.
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
        """Move a module, or tensors, to the device: their storages are its allocator's from now on."""
        self.memory.take([*value.parameters(), *value.buffers()] if isinstance(value, nn.Module) else value)
        return value

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Capture what the stream is given in this block, as ``torch.cuda.graph`` does."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def work(self, seconds: float) -> None:
        """Give the stream some work, which it begins when it is done with what it has; none of it runs in a capture."""
        if not self.capturing:
            self.busy_until = max(self.busy_until, self.host()) + seconds

    def synchronize(self, device: Any = None) -> None:
        assert device == self.device
        assert not self.capturing
        self.synchronized += 1
        self.done_until = max(self.busy_until, self.host())

    def take_over(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of torch's accelerator."""
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
        """The device's own module, as ``torch.cuda`` is CUDA's."""
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
