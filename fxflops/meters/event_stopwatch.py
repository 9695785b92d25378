"""Time observed code on an accelerator. The times are measured between events in the device's stream. The events are read after the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import Any, TypeVar

import torch

from ..records import Call, Scope
from .accelerator import Accelerator, accelerator_of
from .stopwatch import Stopwatch

R = TypeVar("R", Call, Scope)
READY = 2
"""The number of events made before the clock starts, so that making them is not timed: one to stop the clock, one to read it."""


@dataclass(slots=True, eq=False)
class Mark:
    """A reading of a clock. ``seconds`` is nan until the clock has caught up with its device.

    ``captured`` is True if the device's stream was being captured into a graph. The work in the stream then does not run.
    """

    clock: Any
    seconds: float
    captured: bool


@dataclass(slots=True, eq=False)
class EventMark(Mark):
    """A reading of a clock by an event. ``ran`` is True if the clock has run since the previous mark.

    While a graph is captured, ``event`` is None, since an event would become part of the graph and could not be read. The clock
    stands still meanwhile.
    """

    event: torch.Event | None
    ran: bool


class Lapse(float):
    """The seconds between two marks. The seconds are known only when the device has finished its work; :func:`seconds_of` then returns them.

    As a number, a Lapse is nan, so ``max(lapse, 0.0)`` returns it unchanged. A Lapse can be added to or subtracted from another
    Lapse or 0.0.
    """

    __slots__ = ("ends", "starts")
    ends: list[Mark]
    starts: list[Mark]

    def __new__(cls, ends: list[Mark], starts: list[Mark]) -> Lapse:
        lapse = super().__new__(cls, nan)
        lapse.ends, lapse.starts = ends, starts
        return lapse

    def __add__(self, other: float) -> Lapse:
        return Lapse([*self.ends, *getattr(other, "ends", ())], [*self.starts, *getattr(other, "starts", ())])

    __radd__ = __add__

    def __iadd__(self, other: float) -> Lapse:  # in place, since a module may add up many calls
        self.ends += getattr(other, "ends", ())
        self.starts += getattr(other, "starts", ())
        return self

    def __sub__(self, other: float) -> Lapse:
        return Lapse([*self.ends, *getattr(other, "starts", ())], [*self.starts, *getattr(other, "ends", ())])


def stopwatch_maker(device: torch.device) -> Callable[[], Stopwatch]:
    """Return a function that makes stopwatches for a device's work. The timed code must not be slowed down by an observer."""
    accelerator = accelerator_of(device)
    return Stopwatch if accelerator is None else lambda: EventStopwatch(accelerator)


def seconds_of(value: float) -> float | None:
    """Return the seconds of a Lapse. The seconds are at least 0, even if streams or threads overlap. Return a plain number unchanged.

    If the whole Lapse was captured into a graph, return None, because its work did not run.
    """
    if not isinstance(value, Lapse):
        return value
    marks = (*value.ends, *value.starts)
    if all(mark.captured for mark in marks):
        return None
    for mark in marks:
        if isnan(mark.seconds):
            mark.clock.catch_up()
    return max(sum(mark.seconds for mark in value.ends) - sum(mark.seconds for mark in value.starts), 0.0)


def captured_calls(calls: Iterable[Call]) -> int:
    """Return the number of calls that were captured into a graph. A call is recognized only as long as its seconds are still a Lapse."""
    return sum(isinstance(call.seconds, Lapse) and seconds_of(call.seconds) is None for call in calls)


class LapseStopwatch(Stopwatch):
    """A stopwatch whose readings are :class:`Lapse` objects. The seconds of a Lapse are known only when the device has finished its work."""

    __slots__ = ()

    def lap(self) -> float:
        self.stop()
        now = self.now()
        self.go()
        return now

    def timed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, float]:
        start = self.now()
        out = self.run(func, args, kwargs)
        return out, self.now() - start


class EventStopwatch(LapseStopwatch):
    """A stopwatch of the device's time. The stopwatch measures from an event recorded when the clock starts to an event recorded when the
    clock stops.

    An EventStopwatch is for code that runs at full speed; :mod:`~fxflops.meters.queue_stopwatch` is for code that an observer slows down.
    If the device waits for the host, the waiting is included. While the device has work queued, the observer's time on the host is not
    included. ``overhead`` is the observer's time on the host.
    """

    __slots__ = ("_accelerator", "_marks", "_ready")

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._ready: list[torch.Event] = []
        self._marks: list[EventMark] = []

    def stop(self, kind: int | None = None) -> bool:
        if self._stopped_at is not None:
            return False
        self._stopped_at = time.perf_counter()
        self._mark(ran=True)
        return True

    def go(self, work: Any = None) -> None:
        if self._stopped_at is not None:
            self._ready += [self._accelerator.event() for _ in range(READY - len(self._ready))]
            self.overhead += time.perf_counter() - self._stopped_at
            self._stopped_at = None
            self._mark(ran=False)

    def now(self) -> float:
        if self._stopped_at is None:
            self._mark(ran=True)
        return Lapse([self._marks[-1]], [])

    def catch_up(self) -> None:
        """Wait for the device, and read the events recorded since the last call of this method."""
        self._accelerator.synchronize()
        for previous, mark in pairwise(self._marks):
            seconds = 0.0
            if mark.ran and previous.event is not None and mark.event is not None:
                seconds = previous.event.elapsed_time(mark.event) / 1000
            mark.seconds = previous.seconds + seconds
        del self._marks[:-1]

    def _mark(self, ran: bool) -> None:
        event = None
        if not self._accelerator.capturing:
            event = self._ready.pop() if self._ready else self._accelerator.event()
            self._accelerator.record(event)
        self._marks.append(EventMark(self, nan if self._marks else 0.0, event is None, event, ran))


def with_seconds(records: Iterable[R]) -> tuple[R, ...]:
    """Return calls or scopes with their seconds as plain numbers."""
    return tuple(
        [
            record
            if (seconds := record.seconds) is None
            or type(seconds) is float  # do not copy these records: they are the majority
            else record._replace(seconds=seconds_of(seconds))
            for record in records
        ]
    )


def without_seconds(records: Iterable[R]) -> tuple[R, ...]:
    """Return calls or scopes without their seconds."""
    return tuple([record if record.seconds is None else record._replace(seconds=None) for record in records])
