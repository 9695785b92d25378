"""The time of observed code on an accelerator as it is unobserved: the host's and the device's are measured apart.

Observing slows the host, and a device that waits for the host meanwhile shows it in its events. So the host is timed by its
own clock, which leaves the observer out, and the device by two events around each piece of work, behind a wait that lasts
until the host has started that work (:mod:`~fxflops.meters.full_queue`). Put together, they give the time without observer::

    host     | starts a | starts b |               | starts c |
    device              |------- a -------|--- b ---|          |--- c ---|

A piece of work begins once the host has started it and the device is done with the work before. A mark, by which everything
is timed, is reached when the host is there and the device is done with all the work that was started before it.
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
"""The seconds for which the device is held for work that was not started before."""
NEARLY, CLEARLY = 0.9, 1.2
"""A call that took (nearly) as long as the device was held, which was (clearly) longer than it takes at best, waited for the
device, if the call of its kind before it did so, too."""
UNREAD = 1000
"""After so many pieces of work their events are read, if the device is done with them, and used again."""


@dataclass(slots=True, eq=False)
class HostMark(Mark):
    """A reading of the clock, when the host was at ``host`` seconds."""

    host: float


@dataclass(slots=True, eq=False)
class Work:
    """What the device did between two events, started by the host until ``host`` on its clock.

    ``excess`` is for how long the host went on starting it after the device was held no more. ``waited`` is true of a call
    that returned when the device was done. ``seconds`` is nan until the events were read.
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
    """A stopwatch that reads what the time would be in a run in which nothing is observed."""

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
        "_was_long",
        "_work",
        "busy",
    )

    def __init__(self, queue: FullQueue) -> None:
        super().__init__()
        self._queue = queue
        self._items = list[HostMark | Work]()  # in their order, those since the last reading
        self._unread = deque[Work]()
        self._events = list[torch.Event]()
        self._least = dict[Any, float]()  # the host's seconds for work of each kind, at best
        self._was_long = dict[Any, bool]()  # whether the host took as long as the device was held, the last time
        self._work: Work | None = None
        self._kind: Any = None
        self._began = self._held = 0.0
        # The device's time when it is done, and the time that the host has waited for it, on the clock without observer.
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
        """Wait for the device, and put its time and the host's together since the last time."""
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
        """Hold the device, and let its work begin."""
        events, new = self._events, self._queue.accelerator.event
        self._work = Work(events.pop() if events else new(), events.pop() if events else new())
        self._kind = kind
        self._held = self._queue.hold(self._least.get(kind, UNKNOWN))
        self._queue.accelerator.record(self._work.start)
        self._began = time.perf_counter()

    def _end(self, work: Work, ended: float, is_whole: bool) -> None:
        """Let the device's work end, and judge by the host's time whether the host waited for it.

        It is not ``is_whole`` if it ends where another call begins inside it.
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
            self.own += self._held  # it waited for that, too
        elif work.start.query():  # if not, the device was busy with other work, and did not wait for this
            work.excess = max(took - self._held, 0.0)
        work.host = super().now()
        self._items.append(work)
        self._unread.append(work)
        if len(self._unread) % UNREAD == 0:
            self._read(only_done=True)

    def _read(self, only_done: bool = False) -> None:
        """Read the events of the work that the device has done, in order, and keep them for other work."""
        while self._unread and not (only_done and not self._unread[0].end.query()):
            work = self._unread.popleft()
            work.seconds = max(self._queue.seconds_between(work.start, work.end) - work.excess, 0.0)
            self._events += [work.start, work.end]
