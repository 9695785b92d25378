"""Measured times, and whether they are reliable. Whether times are reliable depends on how much the runs differ, and on whether other
processes interrupted them."""

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
"""The share of the time above which a process has waited too long. A working process that has a core to itself waits less."""
OFTEN = 60.0
"""The interruptions per second above which other processes are the cause. On an idle machine a process has a few interruptions. If
threads outnumber the cores, each thread is interrupted every few milliseconds."""
MOMENT = 0.02
"""The seconds below which a rate of interruptions is not meaningful."""


class Usage(NamedTuple):
    """The clocks of this process. The clocks read wall-clock seconds, processor seconds of all threads, and the number of interruptions by
    the system.

    An interruption is an involuntary switch to another process. ``interruptions`` is None if the system does not count them.
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
        """Return the differences between these readings and earlier readings."""
        switches = None if self[2] is None or before[2] is None else self[2] - before[2]
        return Usage(self.seconds - before.seconds, self.processor - before.processor, switches)

    @property
    def interrupted(self) -> str:
        """A note that other processes interrupted this process often; "" if they did not."""
        rate = (self.interruptions or 0) / max(self.seconds, MOMENT)
        return f"interrupted {rate:.0f} times a second by other processes" if rate > OFTEN else ""

    @property
    def waited(self) -> str:
        """A note that this process waited for the processor or anything else; "" if this process did not wait."""
        share = 1 - self.processor / self.seconds if self.seconds > MOMENT else 0.0
        return f"the process waited {share:.0%} of the time" if share > WAITING else ""


class Timing(NamedTuple):
    """Seconds of the same work run ``repeats`` times: the median, the fastest and the slowest.

    ``unsteady`` says why the seconds are unreliable. ``unsteady`` is "" if the seconds are reliable, or if nothing is known about their reliability.
    """

    median: float
    low: float
    high: float
    repeats: int
    unsteady: str = ""


def warm_up(seconds: Sequence[float], least: int) -> int:
    """Return the number of warm-up runs. Warm-up runs are the runs at the beginning that are clearly slower than the median of all runs after them.

    At least ``least`` runs are left.
    """
    first = 0
    while len(seconds) - first > least and seconds[first] > (1 + WIDE) * statistics.median(seconds[first + 1 :]):
        first += 1
    return first


def timing(seconds: Sequence[float], usages: Sequence[Usage] = ()) -> Timing:
    """Return the timing of several runs of the same work; ``usages`` has the process's clocks for each run, if they were read."""
    median, reason = statistics.median(seconds), ""
    if len(usages) > 1:
        low, _, high = statistics.quantiles(seconds, n=4)
        low, high = max(low, min(seconds)), min(high, max(seconds))  # the quartiles of two runs are outside their range
        reason = f"the runs differ by {(high - low) / median:.0%}" if high - low > WIDE * median else ""
    if usages:
        switches = [usage.interruptions for usage in usages if usage.interruptions is not None]
        total = Usage(sum(seconds), sum(usage.processor for usage in usages), sum(switches))
        reason = "; ".join(filter(None, [reason, total.interrupted or total.waited]))
    return Timing(median, min(seconds), max(seconds), len(seconds), reason)
