"""Measure training time in laps, with pauses between them: by the clock, or by a device's events."""

from __future__ import annotations

import torch

from ..meters.event_stopwatch import clock_of, seconds_of


class LapClock:
    """A sum of laps, each from :meth:`start` to :meth:`lap`; time between a lap and the next start is excluded.

    On an accelerator a lap runs between two events of its stream, so nothing waits for the device before :meth:`take`.
    """

    def __init__(self, device: torch.device) -> None:
        self._now = clock_of(device)().now
        self._start: float | None = None
        self._laps: list[float] = []

    def start(self) -> None:
        """Begin a lap; an unfinished one is discarded."""
        self._start = self._now()

    def lap(self) -> None:
        """End the lap, if one has begun."""
        if self._start is not None:
            self._laps.append(self._now() - self._start)
            self._start = None

    def take(self) -> float:
        """Return the seconds of all laps since the last call, once the device has finished their work."""
        laps, self._laps = self._laps, []
        return sum(seconds_of(lap) or 0.0 for lap in laps)  # a captured lap did not run
