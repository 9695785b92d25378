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

    __slots__ = ("_owed", "_since", "_went", "cold", "costs", "own")
    runs = True
    busy: float | None = None
    """The seconds for which an accelerator was busy, for clocks that measure it."""

    def __init__(self) -> None:
        self.costs = self.cold = Costs()
        self.own = self._went = self._owed = 0.0
        self._since: float | None = None

    def stop(self, kind: int | None = None) -> bool:
        """Stop the clock, excluding the unseen overhead of a call of this kind; return False if it was stopped already.

        If the overhead is longer than the clock has run, the rest is deducted from its next runs.
        """
        if self._since is not None:
            return False
        now, went = time.perf_counter(), self._went
        if kind is not None:
            self._owed += (self.cold if now - went > LONG else self.costs)[kind]
        since = now - self._owed
        self._since = since = since if since > went else went
        self._owed -= now - since
        return True

    def go(self, work: Any = None) -> None:
        """Start the clock again. ``work`` is what runs until the next stop, for clocks that time a device's work by kind."""
        if self._since is not None:
            self._went = time.perf_counter()
            self.own += self._went - self._since
            self._since = None

    def now(self) -> float:
        """Return the time on the clock, in seconds."""
        return (time.perf_counter() if self._since is None else self._since) - self.own

    def lap(self) -> float:
        """Return the time on the clock, in seconds, without the time of this call. The clock must be running."""
        since = time.perf_counter()
        now = since - self.own
        self._went = time.perf_counter()
        self.own += self._went - since
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
        since: Any = self._since
        self._since, self._went = None, (went := time.perf_counter())
        self.own += went - since
        try:
            out = func(*args, **kwargs)
        finally:
            self.stop()
        since = self._since
        return out, since - went


class StoppedStopwatch(Stopwatch):
    """A stopwatch that never runs, for runs on meta, which are not timed."""

    __slots__ = ()
    runs = False

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0

    def go(self, work: Any = None) -> None:
        """Leave the clock stopped."""

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``."""
        return func(*args, **kwargs)


class PhaseTimes:
    """The seconds of each phase, step by step; time counts for the innermost open phase.

    ``parts`` are the seconds of the current step, from the beginning of one model call to the beginning of the next. But loading a
    batch belongs to the step that computes with it, which begins later: until then its time is kept in ``_ahead``.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.parts: dict[str, float] = {}
        self._ahead: dict[str, float] = {}
        self._now = now
        self._open = [BETWEEN]
        self._since = now()

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
        self.parts, self._ahead = self._ahead, {}
        return self.parts

    def settle(self) -> None:
        """Add the loading time of a batch that no step will use to the current step, at the end of a loop or an iteration."""
        self.flush()
        for phase, seconds in self._ahead.items():
            self.parts[phase] = self.parts.get(phase, 0.0) + seconds
        self._ahead = {}

    def resume(self) -> None:
        """Continue after an interruption, whose time counts for no phase."""
        self._since = self._now()

    def flush(self) -> None:
        """Add the time until now to the innermost open phase."""
        now, phase = self._now(), self._open[-1]
        parts = self._ahead if phase == LOADING else self.parts
        parts[phase] = parts.get(phase, 0.0) + now - self._since
        self._since = now
