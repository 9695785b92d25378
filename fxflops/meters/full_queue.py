"""Measure the device's own working time, without its waiting for the host.

A device with an empty queue waits until the host starts the next kernel. The time between two events includes this wait, although
it is not the kernel's time. So the stream is first made to wait. While it waits, the host queues the first event, the work and the
second event. Then the device runs all three back to back::

    hold(seconds)   event   work   event
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from ..torch_internals import DisableTorchFunction, device_sleep
from .accelerator import Accelerator

PROBE_CYCLES = 2_000_000
"""The length in cycles of a wait that measures how long one cycle takes: about a millisecond."""
PROBES = 5
LONGEST = 0.01
"""The maximum seconds that the device is made to wait for one piece of work. The host may take much longer to start a kernel's
first run, which is not worth waiting for."""
MARGIN, FACTOR = 40e-6, 1.5
"""The device is made to wait for FACTOR times the seconds that the host took to start the same work before, plus MARGIN. Recording
the two events takes the host about 16 us."""


class FullQueue:
    """A stream that the host can make wait; ``event_seconds`` is the time between two events without work in between."""

    def __init__(self, accelerator: Accelerator, sleep: Any) -> None:
        self.accelerator = accelerator
        self._sleep = sleep
        self._cycles_per_second = 0.0
        self._calibrate()

    @classmethod
    def of(cls, accelerator: Accelerator | None) -> FullQueue | None:
        """Return the queue of a device; None if torch has no function that makes the device's stream wait. For CUDA, torch has it."""
        sleep = None if accelerator is None else device_sleep(accelerator.device)
        return None if accelerator is None or sleep is None else cls(accelerator, sleep)

    def hold(self, host_seconds: float) -> float:
        """Make the device wait until the host has probably started some work. Return the seconds for which the device waits.

        ``host_seconds`` is the time that the host took to start the same work before.
        """
        seconds = min(FACTOR * host_seconds + MARGIN, LONGEST)
        self.wait(seconds)
        return seconds

    def wait(self, seconds: float) -> None:
        """Make the device wait for ``seconds``."""
        with DisableTorchFunction():
            self._sleep(int(seconds * self._cycles_per_second))

    def seconds_between(self, start: torch.Event, end: torch.Event) -> float:
        """Return the device's seconds for the work between two events. Both events must be finished."""
        return max(start.elapsed_time(end) / 1000 - self.event_seconds, 0.0)

    def _calibrate(self) -> None:
        """Measure the time of one cycle, and the time between two adjacent events."""
        sleep_seconds, event_seconds = [], []
        for _ in range(PROBES):
            events = [self.accelerator.event() for _ in range(3)]
            self.accelerator.record(events[0])
            with DisableTorchFunction():
                self._sleep(PROBE_CYCLES)
            self.accelerator.record(events[1])
            self.accelerator.record(events[2])
            self.accelerator.synchronize()
            sleep_seconds.append(events[0].elapsed_time(events[1]) / 1000)
            event_seconds.append(events[1].elapsed_time(events[2]) / 1000)
        self._cycles_per_second = PROBE_CYCLES / statistics.median(sleep_seconds)
        self.event_seconds = statistics.median(event_seconds)
