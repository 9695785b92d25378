"""The time that training takes, in laps between which other things may happen: by the clock, or by a device's events."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..meters.accelerator import Accelerator, accelerator_of


class LapClock:
    """A sum of laps, each from :meth:`start` to :meth:`lap`; what lies between a lap and the next start is not in it.

    On an accelerator a lap is between two events of its stream, so that nothing waits for the device before :meth:`take`.
    """

    def __init__(self, device: torch.device) -> None:
        self._accelerator: Accelerator | None = accelerator_of(device)
        self._start: Any = None
        self._laps: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    def start(self) -> None:
        """Begin a lap; one that has begun is discarded."""
        self._start = self._now()

    def lap(self) -> None:
        """End the lap, if one has begun."""
        if self._start is None:
            return
        start, self._start = self._start, None
        if self._accelerator is None:
            self._seconds += self._now() - start
        else:
            self._laps.append((start, self._now()))

    def take(self) -> float:
        """Return the seconds of all laps since the last call, after the device has done their work."""
        if self._accelerator is not None and self._laps:
            self._accelerator.synchronize()
            self._seconds = sum(start.elapsed_time(end) for start, end in self._laps) / 1e3
            self._laps = []
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _now(self) -> Any:
        if self._accelerator is None:
            return time.perf_counter()
        event = self._accelerator.event()
        self._accelerator.record(event)
        return event
