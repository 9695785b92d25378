"""The device's own time of work, without its waiting for the host.

A device that has nothing left to do waits until the host starts the next kernel. Between two events that time counts as
the kernel's, although it is the host's. So the stream is given something to wait for first: while it waits, the host puts
the first event, the work and the second event in its queue, and then the device runs them one right after the other::

    hold(seconds)   event   work   event
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from ..torch_internals import DisableTorchFunction, device_sleep
from .accelerator import Accelerator

PROBE_CYCLES = 2_000_000
"""Cycles of the wait that measures how long one cycle takes: about a millisecond."""
PROBES = 5
LONGEST = 0.01
"""Seconds that the device is made to wait for one piece of work at most. The first run of a kernel can take the host much
longer, and is not worth waiting for."""
MARGIN, FACTOR = 40e-6, 1.5
"""The device is held for so many seconds longer, and so many times as long, as the host took for the work before. To record
the two events takes the host some 16 us."""


class FullQueue:
    """A stream that the host can keep busy for a while; ``event_seconds`` is what two events take with nothing between."""

    def __init__(self, accelerator: Accelerator, sleep: Any) -> None:
        self.accelerator = accelerator
        self._sleep = sleep
        self._cycles_per_second = 0.0
        self._calibrate()

    @classmethod
    def of(cls, accelerator: Accelerator | None) -> FullQueue | None:
        """Return the queue of a device; None if torch has no function that makes its stream wait (it has one for CUDA)."""
        sleep = None if accelerator is None else device_sleep(accelerator.device)
        return None if accelerator is None or sleep is None else cls(accelerator, sleep)

    def hold(self, host_seconds: float) -> float:
        """Keep the device waiting for longer than the host takes, if it took ``host_seconds`` before; return how long."""
        seconds = min(FACTOR * host_seconds + MARGIN, LONGEST)
        self.wait(seconds)
        return seconds

    def wait(self, seconds: float) -> None:
        """Keep the device waiting for so long."""
        with DisableTorchFunction():
            self._sleep(int(seconds * self._cycles_per_second))

    def seconds_between(self, start: torch.Event, end: torch.Event) -> float:
        """Return what the work between two events took the device, which must be done with it."""
        return max(start.elapsed_time(end) / 1000 - self.event_seconds, 0.0)

    def _calibrate(self) -> None:
        """Measure how long a cycle takes, and two events with nothing between them."""
        taken, empty = [], []
        for _ in range(PROBES):
            events = [self.accelerator.event() for _ in range(3)]
            self.accelerator.record(events[0])
            with DisableTorchFunction():
                self._sleep(PROBE_CYCLES)
            self.accelerator.record(events[1])
            self.accelerator.record(events[2])
            self.accelerator.synchronize()
            taken.append(events[0].elapsed_time(events[1]) / 1000)
            empty.append(events[1].elapsed_time(events[2]) / 1000)
        self._cycles_per_second = PROBE_CYCLES / statistics.median(taken)
        self.event_seconds = statistics.median(empty)
