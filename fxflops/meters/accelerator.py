"""The accelerator that a model is on (cuda, xpu, mps ...): its events, allocator and name, by ``torch.accelerator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from ..torch_internals import DisableTorchFunction
from ..units import size

HOSTS = frozenset({"cpu", "meta"})
"""Device types that are not accelerators. Asking torch takes longer, since it looks for drivers."""


class Accelerator:
    """A device that works asynchronously to the host, with its measurements of time and memory.

    ``has_statistics``: its allocator records a peak. On mps it does not, so live storages are measured there.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self.has_statistics = hasattr(self._module, "max_memory_allocated")

    @property
    def name(self) -> str:
        """The name of the hardware; "" if the device's module has none."""
        return str(self._module.get_device_name(self.device)) if hasattr(self._module, "get_device_name") else ""

    @property
    def activity(self) -> ProfilerActivity | None:
        """The device's activity in torch.profiler; None if the profiler does not see its kernels."""
        return ProfilerActivity.__members__.get(self.device.type.upper())

    def event(self) -> torch.Event:
        """Return a new timing event, hidden from function modes: the observer would make more events for it."""
        with DisableTorchFunction():
            return torch.Event(self.device, enable_timing=True)

    def record(self, event: torch.Event) -> None:
        """Record the event on the current stream, after the work queued so far."""
        with DisableTorchFunction():
            # Finding the stream by the device, not by its index, takes 4 us more.
            event.record(torch.accelerator.current_stream(self.device.index))

    @property
    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph: its work does not run, and its events cannot be read."""
        ask = getattr(self._module, "is_current_stream_capturing", None)
        return ask is not None and bool(ask())

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.accelerator.synchronize(self.device)

    @property
    def live(self) -> int:
        """The bytes of live tensors."""
        return int(self._statistic("memory_allocated")(self.device))

    @property
    def peak(self) -> int:
        """The most bytes of live tensors since :meth:`reset_peak`."""
        return int(self._statistic("max_memory_allocated")(self.device))

    def reset_peak(self) -> None:
        """Set the peak to the bytes alive now."""
        self._statistic("reset_peak_memory_stats")(self.device)

    @property
    def held(self) -> str:
        """The bytes of live tensors, as text."""
        return f"{size(self.live)} were allocated on {self.device}"

    @property
    def total_memory(self) -> int:
        """The bytes of memory that the device has."""
        return int(self._module.get_device_properties(self.device).total_memory)

    def _statistic(self, name: str) -> Any:
        """Return a function of the allocator; up to torch 2.8 only the device's own module has it."""
        return getattr(torch.accelerator, name, None) or getattr(self._module, name)


def accelerator_of(device: torch.device | str) -> Accelerator | None:
    """Return the Accelerator of a device; None for the CPU, meta, and a device that is not in this machine."""
    kind, _, index = str(device).partition(":")
    if kind in HOSTS:
        return None
    # Checked first: current_accelerator() of torch 2.6 raises if there is none.
    if int(index or 0) >= torch.accelerator.device_count():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None or current.type != kind else Accelerator(torch.device(device))


def waiter(device: torch.device | str) -> Callable[[], None]:
    """Return a function that waits until a device has finished its work; on the CPU work is finished when a call returns."""
    accelerator = accelerator_of(device)
    return (lambda: None) if accelerator is None else accelerator.synchronize
