"""Show the progress of long work on a terminal, and erase it when the work is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show a label on stderr while the block runs. Show nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


class Counter:
    """Print a line after 5, 10, 20, 40, ... seconds with the number of finished steps. ``started(n)`` announces n more steps, and ``done()``
    is called after each step."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self._start = clock()
        self._next = LONG
        self._total = self._done = 0

    def started(self, number: int) -> None:
        self._total += number

    def done(self) -> None:
        self._done += 1
        seconds = self._clock() - self._start
        if seconds >= self._next:
            self._next = 2 * seconds
            print(f"{self._label}: {self._done:,} of {self._total:,} done after {seconds:,.0f} s", file=sys.stderr)


class BarCounter(Counter):
    """A progress bar on a terminal. It is drawn at each step and not by a thread, since a process with threads cannot be forked safely."""

    def __init__(self, label: str, bar: rich.progress.Progress) -> None:
        super().__init__(label)
        self._bar = bar
        self._task = bar.add_task(label, total=0)

    def started(self, number: int) -> None:
        self._total += number
        self._bar.update(self._task, total=self._total, refresh=True)

    def done(self) -> None:
        self._bar.update(self._task, advance=1, refresh=True)


@contextmanager
def counting_bar(label: str) -> Iterator[Counter]:
    """Yield a counter of steps, whose number may grow. On a terminal the counter is a progress bar; otherwise it prints a few lines."""
    if not sys.stderr.isatty():
        yield Counter(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        yield BarCounter(label, bar)


LONG = 5.0
"""The remaining time is shown if it is at least this many seconds."""


class Progress:
    """A progress bar that advances by a step at each call. ``expect(seconds)`` shows the estimated remaining time if it is long.

    ``step`` is a function that advances the bar; ``say`` is a function that shows a text. By default nothing is shown.
    """

    def __init__(self, step: Callable[[], None] = lambda: None, say: Callable[[str], None] = lambda text: None) -> None:
        self._step = step
        self._say = say

    def __call__(self) -> None:
        self._step()

    def expect(self, taken: float) -> None:
        """Show the estimated remaining seconds, ``taken``, if there are many."""
        if taken >= LONG:
            self._say(f"about {taken:,.0f} s left")


@contextmanager
def progress_bar(show: bool | None, label: str) -> Iterator[Progress]:
    """Yield a progress bar. ``show=None`` shows the bar only if stderr is a terminal.

    If ``show`` is True but stderr is not a terminal, only the estimated remaining time is printed, as a line.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}  pass {task.completed}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def say(text: str) -> None:
            if console.is_terminal:
                bar.update(task, description=f"{label}  {text}")
            else:
                console.print(f"{label}: {text}")

        yield Progress(lambda: bar.advance(task), say)
