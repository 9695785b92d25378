"""The time of observed code, without the observer's, by step and phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

BETWEEN = "between"
"""The time outside all phases: computing a loss, choosing a token, Python."""
LOADING = "loading"
"""The time in which torch's DataLoader makes the next batch, or waits until its workers have made it."""


class Costs(NamedTuple):
    """Seconds of unseen overhead inside torch before a handler of the observer starts and after it ends, by kind of call.

    ``builtin`` is for a function written in C, ``python`` for one in Python, ``gradient`` for an operator in a backward pass.
    """

    builtin: float = 0.0
    python: float = 0.0
    operator: float = 0.0
    module: float = 0.0
    gradient: float = 0.0


BUILTIN, PYTHON, OPERATOR, MODULE, GRADIENT = range(5)
LONG = 50e-6
"""After this many seconds of the model's own work, little of the observer is left in the processor's cache."""


class Stopwatch:
    """A clock of one thread that stands still while the observer works; ``own`` is the seconds for which it has stood still.

    ``costs`` and ``cold`` are the overheads of a call right after another one, and after other work (with a cold cache). Each
    handler of the observer first stops the clock and last starts it, and runs model code by :meth:`run`.
    """

    __slots__ = ("_overhead_due", "_started_at", "_stopped_at", "cold", "costs", "own")
    runs = True
    busy: float | None = None
    """The seconds for which an accelerator was busy, for clocks that measure it."""

    def __init__(self) -> None:
        self.costs = self.cold = Costs()
        # Readings of time.perf_counter(): when the clock was last started, and when it was stopped; None while it runs.
        self._started_at = 0.0
        self._stopped_at: float | None = None
        # The seconds of overhead that are still to be deducted: see stop.
        self._overhead_due = 0.0
        self.own = 0.0

    def stop(self, kind: int | None = None) -> bool:
        """Stop the clock, excluding the unseen overhead of a call of this kind; return False if it was stopped already.

        If the overhead is longer than the clock has run, the rest is deducted from its next runs.
        """
        if self._stopped_at is not None:
            return False
        now, started_at = time.perf_counter(), self._started_at
        if kind is not None:
            self._overhead_due += (self.cold if now - started_at > LONG else self.costs)[kind]
        stopped_at = now - self._overhead_due
        self._stopped_at = stopped_at = stopped_at if stopped_at > started_at else started_at
        self._overhead_due -= now - stopped_at
        return True

    def go(self, work: Any = None) -> None:
        """Start the clock again. ``work`` is what runs until the next stop, for clocks that time a device's work by kind."""
        if self._stopped_at is not None:
            self._started_at = time.perf_counter()
            self.own += self._started_at - self._stopped_at
            self._stopped_at = None

    def now(self) -> float:
        """Return the time on the clock, in seconds."""
        return (time.perf_counter() if self._stopped_at is None else self._stopped_at) - self.own

    def lap(self) -> float:
        """Return the time on the clock, in seconds, without the time of this call. The clock must be running."""
        called_at = time.perf_counter()
        now = called_at - self.own
        self._started_at = time.perf_counter()
        self.own += self._started_at - called_at
        return now

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``, with the clock running meanwhile; ``work`` is the work's kind, if not ``func``."""
        self.go(func if work is None else work)
        try:
            return func(*args, **kwargs)
        finally:
            self.stop()

    def timed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, float]:
        """Return ``func(*args, **kwargs)`` and its seconds, with the clock running meanwhile. The clock must be stopped before."""
        stopped_at: Any = self._stopped_at
        # go() inlined, since this runs for each repeated call of a profile.
        self._stopped_at, self._started_at = None, (started_at := time.perf_counter())
        self.own += started_at - stopped_at
        try:
            out = func(*args, **kwargs)
        finally:
            self.stop()
        stopped_at = self._stopped_at
        return out, stopped_at - started_at


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
    """The seconds of each phase, step by step; time counts for the innermost open phase.

    ``parts`` are the seconds of the current step, from the beginning of one model call to the beginning of the next. But loading a
    batch belongs to the step that computes with it, which begins later: until then its time is kept in ``_of_next_step``.
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
        """Begin a step; return its parts, which grow until the next step begins. They include the time of loading its batch."""
        self.flush()
        self.parts, self._of_next_step = self._of_next_step, {}
        return self.parts

    def settle(self) -> None:
        """Add the loading time of a batch that no step will use to the current step, at the end of a loop or an iteration."""
        self.flush()
        for phase, seconds in self._of_next_step.items():
            self.parts[phase] = self.parts.get(phase, 0.0) + seconds
        self._of_next_step = {}

    def resume(self) -> None:
        """Continue after an interruption, whose time counts for no phase."""
        self._flushed_at = self._now()

    def flush(self) -> None:
        """Add the time until now to the innermost open phase."""
        now, phase = self._now(), self._open[-1]
        parts = self._of_next_step if phase == LOADING else self.parts
        parts[phase] = parts.get(phase, 0.0) + now - self._flushed_at
        self._flushed_at = now
