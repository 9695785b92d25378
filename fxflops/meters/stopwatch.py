"""The time of the code that is observed, without that of the observer, by step and phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

BETWEEN = "between"
"""The time outside all phases: of computing a loss, choosing a token, Python."""
LOADING = "loading"
"""The time in which a DataLoader of torch makes the next batch, or waits for its workers to have made it."""


class Costs(NamedTuple):
    """Seconds that pass unseen, in torch, before a handler of the observer begins and after it has ended.

    ``builtin`` is for a function written in C, ``python`` for one in Python, ``gradient`` for a backward pass's operator.
    """

    builtin: float = 0.0
    python: float = 0.0
    operator: float = 0.0
    module: float = 0.0
    gradient: float = 0.0


BUILTIN, PYTHON, OPERATOR, MODULE, GRADIENT = range(5)
LONG = 50e-6
"""After so many seconds of the model's own work, the processor's cache has little left of the observer."""


class Stopwatch:
    """A clock of one thread that stands still while the observer works; ``own`` is for how many seconds it did.

    ``costs`` are those of a call right after another one, ``cold`` those of a call after other work. Each handler of the observer stops it first and starts it last; what the handler runs for the model, it :meth:`run`\\ s.
    """

    __slots__ = ("_owed", "_since", "_went", "cold", "costs", "own")
    runs = True
    busy: float | None = None
    """The seconds for which an accelerator worked, for clocks that know it."""

    def __init__(self) -> None:
        self.costs = self.cold = Costs()
        self.own = self._went = self._owed = 0.0
        self._since: float | None = None

    def stop(self, kind: int | None = None) -> bool:
        """Stop the clock, as of the time before the unseen cost of a call of this kind; return False if it stood still.

        A cost that is longer than the clock has run is taken from the next times that it runs.
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
        """Start the clock again. ``work`` is what runs until it stops, for clocks that time a device's work by it."""
        if self._since is not None:
            self._went = time.perf_counter()
            self.own += self._went - self._since
            self._since = None

    def now(self) -> float:
        """Return the time on the clock, in seconds."""
        return (time.perf_counter() if self._since is None else self._since) - self.own

    def lap(self) -> float:
        """Return the time on the clock, in seconds; it stands still meanwhile. It must run now."""
        since = time.perf_counter()
        now = since - self.own
        self._went = time.perf_counter()
        self.own += self._went - since
        return now

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``, with the clock running meanwhile; ``work`` is what it runs, if not ``func``."""
        self.go(func if work is None else work)
        try:
            return func(*args, **kwargs)
        finally:
            self.stop()

    def timed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, float]:
        """Return ``func(*args, **kwargs)`` and its seconds, with the clock running meanwhile. It must stand still now."""
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
    """A stopwatch that never runs, for a run on meta, of which no time is told."""

    __slots__ = ()
    runs = False

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0

    def go(self, work: Any = None) -> None:
        """Leave the clock as it stands."""

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, work: Any = None) -> Any:
        """Return ``func(*args, **kwargs)``."""
        return func(*args, **kwargs)


class PhaseTimes:
    """The seconds of each phase, step by step; the innermost open phase runs.

    ``parts`` are those of the current step: from the beginning of one call of the model to that of the next. But the loading of a batch
    belongs to the step that computes with it, which begins later: until then it is kept in ``_ahead``.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.parts: dict[str, float] = {}
        self._ahead: dict[str, float] = {}
        self._now = now
        self._open = [BETWEEN]
        self._since = now()

    def is_open(self, phase: str) -> bool:
        """Return whether a phase is under way."""
        return phase in self._open

    def begin(self, phase: str) -> None:
        """Begin a phase inside the current one."""
        self.flush()
        self._open.append(phase)

    def end(self, phase: str) -> None:
        """End a phase, and whatever is open inside it; nothing if it is not open."""
        if phase in self._open[1:]:
            self.flush()
            while self._open.pop() != phase:
                pass

    def next_step(self) -> dict[str, float]:
        """Begin a step; return its parts, which grow until the next one begins. It has the time of loading its batch."""
        self.flush()
        self.parts, self._ahead = self._ahead, {}
        return self.parts

    def settle(self) -> None:
        """Add the time of a batch that no step will compute with to the current step, at the end of a loop or of an iteration."""
        self.flush()
        for phase, seconds in self._ahead.items():
            self.parts[phase] = self.parts.get(phase, 0.0) + seconds
        self._ahead = {}

    def resume(self) -> None:
        """Go on after an interruption, whose time is no phase's."""
        self._since = self._now()

    def flush(self) -> None:
        """Add the time until now to the innermost open phase."""
        now, phase = self._now(), self._open[-1]
        parts = self._ahead if phase == LOADING else self.parts
        parts[phase] = parts.get(phase, 0.0) + now - self._since
        self._since = now
