"""The accelerator that a model is on (cuda, xpu, mps ...): its events, allocator and name, by ``torch.accelerator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from ..torch_internals import DisableTorchFunction
from ..units import size

HOSTS = frozenset({"cpu", "meta"})
"""Kinds of devices that are no accelerators. To ask torch takes longer: it looks for drivers."""


class Accelerator:
    """A device whose work goes on while the host does other things, and what it tells of time and memory.

    ``has_statistics`` tells whether its allocator knows its peak. That of mps does not: memory there is that of live storages.
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
        """The kernels of the device for torch.profiler; None if it does not see them."""
        return ProfilerActivity.__members__.get(self.device.type.upper())

    def event(self) -> torch.Event:
        """Return a new event that can be timed. No function mode sees it made: the observer would make events of its own."""
        with DisableTorchFunction():
            return torch.Event(self.device, enable_timing=True)

    def record(self, event: torch.Event) -> None:
        """Let the event happen when the current stream has done the work that it was given so far."""
        with DisableTorchFunction():
            # To find the stream by the device, not by its number, takes 4 us more.
            event.record(torch.accelerator.current_stream(self.device.index))

    @property
    def capturing(self) -> bool:
        """Whether the current stream is captured into a graph: what it is given does not run, and no event can be read."""
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
        """The bytes of live tensors in words."""
        return f"{size(self.live)} were allocated on {self.device}"

    @property
    def total_memory(self) -> int:
        """The bytes that the device has."""
        return int(self._module.get_device_properties(self.device).total_memory)

    def _statistic(self, name: str) -> Any:
        """Return a function of the allocator's; up to torch 2.8 the device's own module has it alone."""
        return getattr(torch.accelerator, name, None) or getattr(self._module, name)


def accelerator_of(device: torch.device | str) -> Accelerator | None:
    """Return the accelerator that a device is; None for the CPU, meta, and a device that is not in this machine."""
    kind, _, index = str(device).partition(":")
    if kind in HOSTS:
        return None
    # Asked first: torch 2.6 raises if it is asked for the accelerator where there is none.
    if int(index or 0) >= torch.accelerator.device_count():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None or current.type != kind else Accelerator(torch.device(device))


def waiter(device: torch.device | str) -> Callable[[], None]:
    """Return a function that waits until a device has done its work; on the CPU it is done when a call returns."""
    accelerator = accelerator_of(device)
    return (lambda: None) if accelerator is None else accelerator.synchronize
