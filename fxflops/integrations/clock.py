"""The time that training takes, in laps between which other things may happen: by the clock, or by a device's events."""

from __future__ import annotations

import torch

from ..meters.event_stopwatch import clock_of, seconds_of


class LapClock:
    """A sum of laps, each from :meth:`start` to :meth:`lap`; what lies between a lap and the next start is not in it.

    On an accelerator a lap is between two events of its stream, so that nothing waits for the device before :meth:`take`.
    """

    def __init__(self, device: torch.device) -> None:
        self._now = clock_of(device)().now
        self._start: float | None = None
        self._laps: list[float] = []

    def start(self) -> None:
        """Begin a lap; one that has begun is discarded."""
        self._start = self._now()

    def lap(self) -> None:
        """End the lap, if one has begun."""
        if self._start is not None:
            self._laps.append(self._now() - self._start)
            self._start = None

    def take(self) -> float:
        """Return the seconds of all laps since the last call, after the device has done their work."""
        laps, self._laps = self._laps, []
        return sum(seconds_of(lap) or 0.0 for lap in laps)  # a captured lap did not run
