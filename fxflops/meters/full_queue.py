"""The device's own working time, without waiting for the host.

A device with an empty queue waits until the host starts the next kernel. Between two events this wait counts as the
kernel's time, although it is the host's. So the stream is made to wait first: meanwhile the host queues the first event,
the work and the second event, and then the device runs them back to back::

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
"""The most seconds that the device is made to wait for one piece of work. A kernel's first run can take the host much
longer, and is not worth waiting for."""
MARGIN, FACTOR = 40e-6, 1.5
"""The device is held for FACTOR times the seconds that the host took for the work before, plus MARGIN. Recording the two
events takes the host some 16 us."""


class FullQueue:
    """A stream that the host can keep busy for a while; ``event_seconds`` is the time between two adjacent events."""

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
        """Make the device wait longer than the host will take, if the host took ``host_seconds`` before; return how long."""
        seconds = min(FACTOR * host_seconds + MARGIN, LONGEST)
        self.wait(seconds)
        return seconds

    def wait(self, seconds: float) -> None:
        """Make the device wait for ``seconds``."""
        with DisableTorchFunction():
            self._sleep(int(seconds * self._cycles_per_second))

    def seconds_between(self, start: torch.Event, end: torch.Event) -> float:
        """Return the device's seconds for the work between two events, which must be finished."""
        return max(start.elapsed_time(end) / 1000 - self.event_seconds, 0.0)

    def _calibrate(self) -> None:
        """Measure the time of a cycle, and between two adjacent events."""
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
