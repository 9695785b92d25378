"""The time that observed code would take unobserved on an accelerator: host and device are timed separately.

Observing slows the host, and events on the device include its waiting for the host. So the host is timed by its own clock,
which excludes the observer, and the device by two events around each piece of work, behind a wait that lasts until the host
has started that work (:mod:`~fxflops.meters.full_queue`). Together they give the time without the observer::

    host     | starts a | starts b |               | starts c |
    device              |------- a -------|--- b ---|          |--- c ---|

A piece of work begins once the host has started it and the device has finished the work before. All times are differences of
marks: a mark is reached when the host is there and the device has finished all work started before it.
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
from .event_stopwatch import Lapse, LapseStopwatch, Mark, clock_of
from .full_queue import FullQueue
from .stopwatch import Stopwatch

UNKNOWN = 50e-6
"""The seconds for which the device is held for work of a new kind."""
NEARLY, CLEARLY = 0.9, 1.2
"""A call waited for the device if it took (nearly) as long as the device was held, which was (clearly) longer than the call
takes at best, and if the same is true of the last call of its kind."""
UNREAD = 1000
"""After this many pieces of work, the events that the device has passed are read and reused."""


@dataclass(slots=True, eq=False)
class HostMark(Mark):
    """A reading of the clock, when the host was at ``host`` seconds."""

    host: float


@dataclass(slots=True, eq=False)
class Work:
    """The device's work between two events; the host had started all of it at ``host`` on its clock.

    ``excess`` is how long the host was still starting it after the device was no longer held. ``waited``: the call returned
    only when the device was done. ``seconds`` is nan until the events are read.
    """

    start: torch.Event
    end: torch.Event
    host: float = 0.0
    excess: float = 0.0
    waited: bool = False
    seconds: float = nan


def observed_clock_of(device: torch.device) -> Callable[[], Stopwatch]:
    """Return a function that makes stopwatches for the work of a device in observed code; they share one queue."""
    queue = FullQueue.of(accelerator_of(device))
    return clock_of(device) if queue is None else lambda: QueueStopwatch(queue)


class QueueStopwatch(LapseStopwatch):
    """A stopwatch that shows the time that the run would take unobserved."""

    __slots__ = (
        "_began",
        "_device_free",
        "_events",
        "_held",
        "_items",
        "_kind",
        "_late",
        "_least",
        "_queue",
        "_unread",
        "_unread_most",
        "_was_long",
        "_work",
        "busy",
    )

    def __init__(self, queue: FullQueue, unread_most: int = UNREAD) -> None:
        super().__init__()
        self._queue = queue
        self._unread_most = unread_most
        self._items = list[HostMark | Work]()  # in order, since the last reading
        self._unread = deque[Work]()
        self._events = list[torch.Event]()
        self._least = dict[Any, float]()  # the host's seconds for work of each kind, at best
        self._was_long = dict[Any, bool]()  # whether the last call of each kind took as long as the device was held
        self._work: Work | None = None
        self._kind: Any = None
        self._began = self._held = 0.0
        # When the device is done, and how long the host has waited for it, on the clock without the observer.
        self._device_free = self._late = 0.0
        self.busy: float = 0.0

    def stop(self, kind: int | None = None) -> bool:
        ended = time.perf_counter()
        if not super().stop(kind):
            return False
        if self._work is not None:
            self._end(self._work, ended, is_whole=kind is None)
        return True

    def go(self, work: Any = None) -> None:
        """Start the clock again; ``work`` is the function or module class whose kernels the host starts until it stops."""
        if self._since is None:
            return
        if work is not None and not self._queue.accelerator.capturing:
            self._begin(work)
        super().go()

    def now(self) -> float:
        mark = HostMark(self, nan, self._queue.accelerator.capturing, super().now())
        self._items.append(mark)
        return Lapse([mark], [])

    def catch_up(self) -> None:
        """Wait for the device, and combine its time with the host's since the last reading."""
        self._queue.accelerator.synchronize()
        self._read()
        for item in self._items:
            host = item.host + self._late
            if isinstance(item, Work):
                self.busy += item.seconds
                self._device_free = max(self._device_free, host) + item.seconds
                if item.waited:
                    self._late += max(self._device_free - host, 0.0)
            else:
                item.seconds = max(self._device_free, host)
        self._items.clear()

    def _begin(self, kind: Any) -> None:
        """Hold the device, and record the start of its work."""
        events, new = self._events, self._queue.accelerator.event
        self._work = Work(events.pop() if events else new(), events.pop() if events else new())
        self._kind = kind
        self._held = self._queue.hold(self._least.get(kind, UNKNOWN))
        self._queue.accelerator.record(self._work.start)
        self._began = time.perf_counter()

    def _end(self, work: Work, ended: float, is_whole: bool) -> None:
        """Record the end of the device's work, and decide from the host's time whether the host waited for it.

        ``is_whole`` is False if it ends because another call begins inside it.
        """
        self._queue.accelerator.record(work.end)
        self._work = None
        took, least = ended - self._began, self._least.get(self._kind)
        if is_whole:
            self._least[self._kind] = took if least is None else min(took, least)
            is_long = took >= NEARLY * self._held and self._held >= CLEARLY * self._least[self._kind]
            work.waited = is_long and self._was_long.get(self._kind, False)
            self._was_long[self._kind] = is_long
        if work.waited:
            self.own += self._held  # the host waited during the hold, too
        elif work.start.query():  # otherwise the device was busy with earlier work, and did not wait for this
            work.excess = max(took - self._held, 0.0)
        work.host = super().now()
        self._items.append(work)
        self._unread.append(work)
        if len(self._unread) % self._unread_most == 0:
            self._read(only_done=True)

    def _read(self, only_done: bool = False) -> None:
        """Read the events of finished work, in order, and keep them for reuse."""
        while self._unread and not (only_done and not self._unread[0].end.query()):
            work = self._unread.popleft()
            work.seconds = max(self._queue.seconds_between(work.start, work.end) - work.excess, 0.0)
            self._events += [work.start, work.end]
