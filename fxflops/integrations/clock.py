"""Measure training time in laps, with pauses between the laps. The time comes from the clock or from a device's events."""

from __future__ import annotations

import torch

from ..meters.event_stopwatch import seconds_of, stopwatch_maker


class LapClock:
    """A stopwatch that adds up laps. A lap lasts from :meth:`start` to :meth:`lap`; the time until the next start is excluded.

    On an accelerator, a lap is the time between two events in the device's stream. So only :meth:`take` waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._now = stopwatch_maker(device)().now
        self._start: float | None = None
        self._laps: list[float] = []

    def start(self) -> None:
        """Begin a lap, and discard a lap that has not ended."""
        self._start = self._now()

    def lap(self) -> None:
        """End the current lap, if there is one."""
        if self._start is not None:
            self._laps.append(self._now() - self._start)
            self._start = None

    def take(self) -> float:
        """Wait until the device has finished the work of all laps since the last call, and return the total seconds of these laps."""
        laps, self._laps = self._laps, []
        return sum(
            seconds_of(lap) or 0.0 for lap in laps
        )  # a lap that was captured into a CUDA graph did not run, so it has no time
