"""Measure the time that observed code would take on an accelerator without the observer. Host and device are timed separately.

Observing slows the host down. The time between events on the device then includes the time in which the device waits for the host. So the
host is timed by its own clock, which excludes the observer. The device is timed by two events around each piece of work. Before the first
event the device waits until the host has started that work (:mod:`~fxflops.meters.full_queue`). Both times together give the time
without the observer::

    host     | starts a | starts b |               | starts c |
    device              |------- a -------|--- b ---|          |--- c ---|

A piece of work begins when the host has started it and the device has finished all earlier work. All times are differences between
marks. A mark is reached when two things have happened: the host has reached it, and the device has finished all work started before the mark.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import torch

from .accelerator import accelerator_of
from .event_stopwatch import Lapse, LapseStopwatch, Mark, stopwatch_maker
from .full_queue import FullQueue
from .stopwatch import Stopwatch

FIRST_HOLD = 50e-6
"""The seconds for which the device is made to wait (held) before work of a new kind."""
NEARLY, CLEARLY = 0.9, 1.2
"""Factors that decide whether a call waited for the device. Its seconds must be at least NEARLY times the seconds for which the device
was held, and the device must have been held for at least CLEARLY times the seconds of the fastest call of this kind. Both must also be
true of the previous call of this kind."""
UNREAD = 1000
"""After each UNREAD pieces of work, the events that the device has passed are read, and can be used again."""


@dataclass(slots=True, eq=False)
class HostMark(Mark):
    """A reading of the clock; ``host`` is the reading of the host's clock in seconds."""

    host: float


@dataclass(slots=True, eq=False)
class Work:
    """The device's work between two events. ``host`` is the reading of the host's clock at the moment when the host had started all of the work.

    ``excess`` is the time that the host still needed to start the rest of the work after the device no longer had to wait. ``waited``: the
    call returned only when the device was done. ``seconds`` is nan until the events are read.
    """

    start: torch.Event
    end: torch.Event
    host: float = 0.0
    excess: float = 0.0
    waited: bool = False
    seconds: float = nan


def observed_stopwatch_maker(device: torch.device) -> Callable[[], Stopwatch]:
    """Return a function that makes stopwatches for the work of a device in observed code. All these stopwatches share one queue."""
    queue = FullQueue.of(accelerator_of(device))
    return stopwatch_maker(device) if queue is None else lambda: QueueStopwatch(queue)


class QueueStopwatch(LapseStopwatch):
    """A stopwatch that shows the time that the run would take without the observer."""

    __slots__ = (
        "_began_at",
        "_device_done_at",
        "_events",
        "_held_seconds",
        "_least_seconds",
        "_marks_and_work",
        "_queue",
        "_unread",
        "_unread_most",
        "_waited_seconds",
        "_was_long",
        "_work",
        "_work_kind",
        "busy",
    )

    def __init__(self, queue: FullQueue, unread_most: int = UNREAD) -> None:
        super().__init__()
        self._queue = queue
        self._unread_most = unread_most
        self._marks_and_work = list[HostMark | Work]()  # in order; all since the last reading
        self._unread = deque[Work]()  # work whose events have not been read
        self._events = list[torch.Event]()  # events that can be used again
        self._least_seconds = dict[Any, float]()  # the least seconds of the host for work of each kind
        self._was_long = dict[Any, bool]()  # whether the last call of each kind took as long as the device was held
        # The work that the host is starting now: its kind, the time at which the host began, and how long the device is held meanwhile.
        self._work: Work | None = None
        self._work_kind: Any = None
        self._began_at = self._held_seconds = 0.0
        # The time at which the device is done, and the time that the host has waited for the device. Both exclude the observer's overhead.
        self._device_done_at = self._waited_seconds = 0.0
        self.busy: float = 0.0

    def stop(self, kind: int | None = None) -> bool:
        ended = time.perf_counter()
        if not super().stop(kind):
            return False
        if self._work is not None:
            self._end(self._work, ended, is_whole=kind is None)
        return True

    def go(self, work: Any = None) -> None:
        """Start the clock again; ``work`` is the function or module class whose kernels the host starts until the stopwatch is stopped."""
        if self._stopped_at is None:
            return
        if work is not None and not self._queue.accelerator.capturing:
            self._begin(work)
        super().go()

    def now(self) -> float:
        mark = HostMark(self, nan, self._queue.accelerator.capturing, super().now())
        self._marks_and_work.append(mark)
        return Lapse([mark], [])

    def catch_up(self) -> None:
        """Wait for the device. When the device is done, combine the device's and the host's times since the last call of this method."""
        self._queue.accelerator.synchronize()
        self._read()
        for item in self._marks_and_work:
            host = item.host + self._waited_seconds
            if isinstance(item, Work):
                self.busy += item.seconds
                self._device_done_at = max(self._device_done_at, host) + item.seconds
                if item.waited:
                    self._waited_seconds += max(self._device_done_at - host, 0.0)
            else:
                item.seconds = max(self._device_done_at, host)
        self._marks_and_work.clear()

    def _begin(self, kind: Any) -> None:
        """Make the device wait, and record the event at the start of its work."""
        events, new = self._events, self._queue.accelerator.event
        self._work = Work(events.pop() if events else new(), events.pop() if events else new())
        self._work_kind = kind
        self._held_seconds = self._queue.hold(self._least_seconds.get(kind, FIRST_HOLD))
        self._queue.accelerator.record(self._work.start)
        self._began_at = time.perf_counter()

    def _end(self, work: Work, ended: float, is_whole: bool) -> None:
        """Record the event at the end of the device's work. Decide from the host's time whether the host waited for this work.

        ``is_whole`` is False if the work ends because another call begins inside it.
        """
        self._queue.accelerator.record(work.end)
        self._work = None
        kind, held = self._work_kind, self._held_seconds
        seconds = ended - self._began_at
        if is_whole:
            least = self._least_seconds[kind] = min(seconds, self._least_seconds.get(kind, seconds))
            is_long = seconds >= NEARLY * held and held >= CLEARLY * least
            work.waited = is_long and self._was_long.get(kind, False)
            self._was_long[kind] = is_long
        if work.waited:
            self.overhead += held  # the host waited during the hold, too
        elif work.start.query():  # otherwise the device was busy with earlier work, and did not wait for the host
            work.excess = max(seconds - held, 0.0)
        work.host = super().now()
        self._marks_and_work.append(work)
        self._unread.append(work)
        if len(self._unread) % self._unread_most == 0:
            self._read(only_done=True)

    def _read(self, only_done: bool = False) -> None:
        """Read the events of finished work, in order, and keep these events for reuse."""
        while self._unread and not (only_done and not self._unread[0].end.query()):
            work = self._unread.popleft()
            work.seconds = max(self._queue.seconds_between(work.start, work.end) - work.excess, 0.0)
            self._events += [work.start, work.end]
