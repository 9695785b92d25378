"""Measured times, and whether they can be relied on: how far runs differ, and what else the processor did meanwhile."""

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
"""The share of the time that a process at work may wait; it has a core for itself otherwise."""
OFTEN = 60.0
"""The interruptions a second above which other work is the reason. On an idle machine there are a few; where threads
outnumber the cores, each is interrupted every few milliseconds."""
MOMENT = 0.02
"""Seconds that are too few to tell how often a process is interrupted."""


class Usage(NamedTuple):
    """The clocks of this process: seconds, the processor's seconds in all threads, and interruptions by the system.

    An interruption is a switch to another process that this one did not ask for; None where the system does not tell.
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
        """Return what has passed since an earlier reading."""
        switches = None if self[2] is None or before[2] is None else self[2] - before[2]
        return Usage(self.seconds - before.seconds, self.processor - before.processor, switches)

    @property
    def interrupted(self) -> str:
        """Whether other work took the processor meanwhile, in words; "" if it did not."""
        often = (self.interruptions or 0) / max(self.seconds, MOMENT)
        return f"interrupted {often:.0f} times a second by other processes" if often > OFTEN else ""

    @property
    def waited(self) -> str:
        """Whether it waited for the processor, or for anything else, in words; "" if it did not."""
        share = 1 - self.processor / self.seconds if self.seconds > MOMENT else 0.0
        return f"it waited {share:.0%} of the time" if share > WAITING else ""


class Timing(NamedTuple):
    """Seconds of the same work run ``repeats`` times: the median, the fastest and the slowest.

    ``unsteady`` says in words why they are not to be relied on; "" if they are, or if nothing is known of it.
    """

    median: float
    low: float
    high: float
    repeats: int
    unsteady: str = ""


def warm_up(seconds: Sequence[float], least: int) -> int:
    """Return how many of the first runs warmed up: each took longer than usual after it. At least ``least`` runs are left."""
    first = 0
    while len(seconds) - first > least and seconds[first] > (1 + WIDE) * statistics.median(seconds[first + 1 :]):
        first += 1
    return first


def timing(seconds: Sequence[float], usages: Sequence[Usage] = ()) -> Timing:
    """Return the timing of runs of the same work; ``usages`` are those of the process during each, if they tell of it."""
    median, why = statistics.median(seconds), ""
    if len(usages) > 1:
        low, _, high = statistics.quantiles(seconds, n=4)
        low, high = max(low, min(seconds)), min(high, max(seconds))  # two runs have no quartiles between them
        why = f"the runs differ by {(high - low) / median:.0%}" if high - low > WIDE * median else ""
    if usages:
        switches = [usage.interruptions for usage in usages if usage.interruptions is not None]
        whole = Usage(sum(seconds), sum(usage.processor for usage in usages), sum(switches))
        why = "; ".join(filter(None, [why, whole.interrupted or whole.waited]))
    return Timing(median, min(seconds), max(seconds), len(seconds), why)
