"""Measured times, and whether they are reliable: how much runs differ, and what else the processor did meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

WIDE = 0.2
"""The spread above which times are unsteady."""
WAITING = 0.25
"""The share of the time for which a working process may wait; with a core to itself it waits less."""
OFTEN = 60.0
"""More interruptions a second than this are due to other processes. On an idle machine there are a few; if threads outnumber
the cores, each is interrupted every few milliseconds."""
MOMENT = 0.02
"""Seconds below which a rate of interruptions means nothing."""


class Usage(NamedTuple):
    """The clocks of this process: wall-clock seconds, processor seconds of all threads, and interruptions by the system.

    An interruption is an involuntary switch to another process; None if the system does not count them.
    """

    seconds: float
    processor: float
    interruptions: int | None

    @classmethod
    def now(cls) -> Usage:
        """Read the clocks."""
        switches = None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return cls(time.perf_counter(), time.process_time(), switches)

    def since(self, before: Usage) -> Usage:
        """Return the differences to an earlier reading."""
        switches = None if self[2] is None or before[2] is None else self[2] - before[2]
        return Usage(self.seconds - before.seconds, self.processor - before.processor, switches)

    @property
    def interrupted(self) -> str:
        """A note that other processes took the processor; "" if they did not."""
        rate = (self.interruptions or 0) / max(self.seconds, MOMENT)
        return f"interrupted {rate:.0f} times a second by other processes" if rate > OFTEN else ""

    @property
    def waited(self) -> str:
        """A note that the process waited, for the processor or anything else; "" if it did not."""
        share = 1 - self.processor / self.seconds if self.seconds > MOMENT else 0.0
        return f"it waited {share:.0%} of the time" if share > WAITING else ""


class Timing(NamedTuple):
    """Seconds of the same work run ``repeats`` times: the median, the fastest and the slowest.

    ``unsteady`` says why they are unreliable; "" if they are reliable, or if that is unknown.
    """

    median: float
    low: float
    high: float
    repeats: int
    unsteady: str = ""


def warm_up(seconds: Sequence[float], least: int) -> int:
    """Return the number of leading warm-up runs: each is clearly slower than the median of the runs after it. At least ``least`` runs are left."""
    first = 0
    while len(seconds) - first > least and seconds[first] > (1 + WIDE) * statistics.median(seconds[first + 1 :]):
        first += 1
    return first


def timing(seconds: Sequence[float], usages: Sequence[Usage] = ()) -> Timing:
    """Return the timing of runs of the same work; ``usages`` are the process's clocks in each run, if they were read."""
    median, reason = statistics.median(seconds), ""
    if len(usages) > 1:
        low, _, high = statistics.quantiles(seconds, n=4)
        low, high = max(low, min(seconds)), min(high, max(seconds))  # the quartiles of two runs lie outside them
        reason = f"the runs differ by {(high - low) / median:.0%}" if high - low > WIDE * median else ""
    if usages:
        switches = [usage.interruptions for usage in usages if usage.interruptions is not None]
        total = Usage(sum(seconds), sum(usage.processor for usage in usages), sum(switches))
        reason = "; ".join(filter(None, [reason, total.interrupted or total.waited]))
    return Timing(median, min(seconds), max(seconds), len(seconds), reason)
