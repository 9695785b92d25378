"""Measure the time of observed code by step and phase, without the observer's own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

BETWEEN = "between"
"""The name of the time outside all phases, e.g. for computing a loss, choosing a token, or Python."""
LOADING = "loading"
"""The name of the time in which torch's DataLoader makes the next batch, or waits until its workers have made the batch."""


class Costs(NamedTuple):
    """The overhead inside torch, in seconds, before a handler of the observer starts and after the handler ends, by kind of call.

    ``builtin`` is the overhead for a function written in C, ``python`` for a function written in Python, and ``gradient`` for an operator
    in a backward pass.
    """

    builtin: float = 0.0
    python: float = 0.0
    operator: float = 0.0
    module: float = 0.0
    gradient: float = 0.0


OF_BUILTIN, OF_PYTHON, OF_OPERATOR, OF_MODULE, OF_GRADIENT = range(5)
"""The kinds of calls whose overhead is known: the places of their costs in :class:`Costs`."""
LONG = 50e-6
"""The seconds of the model's own work after which the processor's cache has little of the observer's code and data left."""
MOST_DUE = 100e-6
"""The most seconds of an overhead that are deducted later. Overhead after a handler ends is shorter. So if more is due, the costs
were measured too high, for instance while other processes slowed the measurement down."""


class Stopwatch:
    """A thread's clock that stands still while the observer works; ``overhead`` is the seconds for which it has stood still.

    A handler of the observer first stops the clock, and finally starts the clock again. The handler runs model code by :meth:`run`.
    :meth:`deduct` sets the time that torch and Python take to enter and to leave a handler.
    """

    __slots__ = ("_cold_costs", "_overhead_due", "_started_at", "_stopped_at", "_warm_costs", "overhead")
    runs = True
    busy: float | None = None
    """The seconds for which an accelerator was busy; None for a clock that does not measure them."""

    def __init__(self) -> None:
        self._warm_costs = self._cold_costs = Costs()
        # Readings of time.perf_counter(): when the clock was last started, and when it was stopped; None while it runs.
        self._started_at = 0.0
        self._stopped_at: float | None = None
        # The rest of an overhead that was longer than the measured time, in seconds, at most MOST_DUE. The next stop() deducts this rest.
        self._overhead_due = 0.0
        self.overhead = 0.0

    def deduct(self, warm: Costs, cold: Costs) -> None:
        """Deduct these costs from the measured times. ``warm`` are the costs of a call right after another call. ``cold`` are the costs of a
        call after other work, when the processor's cache has little of the observer's code."""
        self._warm_costs, self._cold_costs = warm, cold

    def stop(self, kind: int | None = None) -> bool:
        """Stop the clock, and exclude torch's own overhead for a call of this kind. Return False if the clock was already stopped.

        If the overhead is longer than the time since the last start of the clock, the rest is deducted from later times, up to MOST_DUE.
        """
        if self._stopped_at is not None:
            return False
        now, started_at = time.perf_counter(), self._started_at
        if kind is not None:
            self._overhead_due += (self._cold_costs if now - started_at > LONG else self._warm_costs)[kind]
        stopped_at = now - self._overhead_due
        self._stopped_at = stopped_at = stopped_at if stopped_at > started_at else started_at
        self._overhead_due = min(self._overhead_due - (now - stopped_at), MOST_DUE)
        return True

    def go(self, work: Any = None) -> None:
        """Start the clock again. ``work`` is the function that runs until the clock stops. Only clocks that time a device's work need this
        argument."""
        if self._stopped_at is not None:
            self._started_at = time.perf_counter()
            self.overhead += self._started_at - self._stopped_at
            self._stopped_at = None

    def now(self) -> float:
        """Return the time on the clock, in seconds."""
        return (time.perf_counter() if self._stopped_at is None else self._stopped_at) - self.overhead

    def lap(self) -> float:
        """Return the seconds on the clock. The time that this method itself takes is excluded. The clock must be running."""
        called_at = time.perf_counter()
        now = called_at - self.overhead
        self._started_at = time.perf_counter()
        self.overhead += self._started_at - called_at
        return now

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``; the clock runs during this call. ``work`` is the kind of the work, by default ``func``."""
        self.go(func if work is None else work)
        try:
            return func(*args, **kwargs)
        finally:
            self.stop()

    def timed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, float]:
        """Return ``func(*args, **kwargs)`` and the seconds that it took. Call this method only while the clock is stopped. The clock
        runs during the call."""
        stopped_at: Any = self._stopped_at
        # This repeats the code of go(), because a profile runs this method for each repeated call, and calling go() takes longer.
        self._stopped_at, self._started_at = None, (started_at := time.perf_counter())
        self.overhead = overhead = self.overhead + started_at - stopped_at
        try:
            out = func(*args, **kwargs)
        finally:
            self.stop()
        stopped_at = self._stopped_at
        stood_still = self.overhead - overhead  # while operators inside the call were observed
        return out, stopped_at - started_at - stood_still


class StoppedStopwatch(Stopwatch):
    """A stopwatch that never runs, for runs on meta, which are not timed."""

    __slots__ = ()
    runs = False

    def __init__(self) -> None:
        super().__init__()
        self._stopped_at = 0.0

    def go(self, work: Any = None) -> None:
        """Leave the clock stopped."""

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``."""
        return func(*args, **kwargs)


class PhaseTimes:
    """The seconds of each phase, step by step. Time is added to the innermost open phase.

    ``parts`` has the seconds of the current step, from the beginning of one model call to the beginning of the next. The time of
    loading a batch belongs to the step that uses the batch. Until that step begins, this time is kept in ``_of_next_step``.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.parts: dict[str, float] = {}
        self._of_next_step: dict[str, float] = {}
        self._now = now
        self._open = [BETWEEN]
        self._flushed_at = now()

    def is_open(self, phase: str) -> bool:
        """Return whether a phase is open."""
        return phase in self._open

    def begin(self, phase: str) -> None:
        """Begin a phase inside the current one."""
        self.flush()
        self._open.append(phase)

    def end(self, phase: str) -> None:
        """End a phase and all phases inside it; do nothing if it is not open."""
        if phase in self._open[1:]:
            self.flush()
            while self._open.pop() != phase:
                pass

    def next_step(self) -> dict[str, float]:
        """Begin a step; return its seconds by phase, which grow until the next step begins. The seconds include loading the step's batch."""
        self.flush()
        self.parts, self._of_next_step = self._of_next_step, {}
        return self.parts

    def settle(self) -> None:
        """At the end of a loop or an iteration, add the time to load a batch to the current step if no later step will use the batch."""
        self.flush()
        for phase, seconds in self._of_next_step.items():
            self.parts[phase] = self.parts.get(phase, 0.0) + seconds
        self._of_next_step = {}

    def resume(self) -> None:
        """Continue after an interruption, whose time is not added to any phase."""
        self._flushed_at = self._now()

    def flush(self) -> None:
        """Add the time until now to the innermost open phase."""
        now, phase = self._now(), self._open[-1]
        if type(now) is float and now < self._flushed_at:
            return  # the clock has since deducted an overhead: the next call of this method adds the difference
        parts = self._of_next_step if phase == LOADING else self.parts
        parts[phase] = parts.get(phase, 0.0) + now - self._flushed_at
        self._flushed_at = now
