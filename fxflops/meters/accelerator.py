"""The accelerator that a model is on (cuda, xpu, mps ...): its events, its allocator and its name. All are read through ``torch.accelerator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from ..torch_internals import DisableTorchFunction
from ..units import size

HOSTS = frozenset({"cpu", "meta"})
"""Device types that are not accelerators. They are listed here because asking torch would take longer: it looks for drivers."""


class Accelerator:
    """A device that works asynchronously to the host, with its measurements of time and memory.

    ``has_statistics``: the device's allocator records a peak. The allocator of mps does not record a peak, so live storages are
    measured instead.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self.has_statistics = hasattr(self._module, "max_memory_allocated")

    @property
    def name(self) -> str:
        """The name of the hardware; "" if the device's module has no function for it."""
        return str(self._module.get_device_name(self.device)) if hasattr(self._module, "get_device_name") else ""

    @property
    def activity(self) -> ProfilerActivity | None:
        """The device's activity in torch.profiler; None if the profiler does not see its kernels."""
        return ProfilerActivity.__members__.get(self.device.type.upper())

    def event(self) -> torch.Event:
        """Return a new timing event. The event is made without function modes. With function modes on, the observer would see this call and
        make more events for it."""
        with DisableTorchFunction():
            return torch.Event(self.device, enable_timing=True)

    def record(self, event: torch.Event) -> None:
        """Record the event on the current stream, after the work queued so far."""
        with DisableTorchFunction():
            # Pass the device's index: with the device itself, finding the stream takes 4 us longer.
            event.record(torch.accelerator.current_stream(self.device.index))

    @property
    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph. Captured work does not run, and captured events cannot be read."""
        ask = getattr(self._module, "is_current_stream_capturing", None)
        return ask is not None and bool(ask())

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        torch.accelerator.synchronize(self.device)

    @property
    def live(self) -> int:
        """The bytes of live tensors."""
        return int(self._statistic("memory_allocated")(self.device))

    @property
    def peak(self) -> int:
        """The maximum bytes of live tensors since the last :meth:`reset_peak`."""
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
        """Return a function that reads the allocator's statistics. Up to torch 2.8 only the device's own module has such functions."""
        return getattr(torch.accelerator, name, None) or getattr(self._module, name)


def accelerator_of(device: torch.device | str) -> Accelerator | None:
    """Return the Accelerator of a device; None for the CPU, meta, and a device that is not in this machine."""
    kind, _, index = str(device).partition(":")
    if kind in HOSTS:
        return None
    # Check the number of devices first: without a device, current_accelerator() of torch 2.6 raises.
    if int(index or 0) >= torch.accelerator.device_count():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None or current.type != kind else Accelerator(torch.device(device))


def waiter(device: torch.device | str) -> Callable[[], None]:
    """Return a function that waits until a device has finished its work. On the CPU it does nothing: each call finishes its work."""
    accelerator = accelerator_of(device)
    return (lambda: None) if accelerator is None else accelerator.synchronize
