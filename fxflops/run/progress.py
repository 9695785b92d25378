"""Show the progress of long work on a terminal, and erase it when the work is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show a label on stderr while the block runs, if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


@contextmanager
def counting_bar(label: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Yield a function that advances a bar of ``total`` steps on stderr; None if the number of steps is unknown.

    The bar is drawn at each step, not by a thread: a process with threads cannot be forked safely. Where stderr is not a terminal,
    long work prints a few lines instead.
    """
    if not sys.stderr.isatty():
        yield _Lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)


LONG = 5.0
"""The seconds of remaining work from which an estimate is shown."""


class _Lines:
    """Prints the number of steps done, after 5, 10, 20, 40, ... seconds: each call is a step."""

    def __init__(self, label: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._of_total = "" if total is None else f" of {total:,}"
        self._clock = clock
        self._start = clock()
        self._next = LONG
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        seconds = self._clock() - self._start
        if seconds >= self._next:
            self._next = 2 * seconds
            print(f"{self._label}: {self._done:,}{self._of_total} done after {seconds:,.0f} s", file=sys.stderr)


class Progress:
    """A progress bar: each call is a step. ``expect(seconds)`` shows an estimate of the remaining time, if it is long.

    ``step`` advances the bar, ``say`` shows a sentence; by default nothing is shown.
    """

    def __init__(self, step: Callable[[], None] = lambda: None, say: Callable[[str], None] = lambda text: None) -> None:
        self._step = step
        self._say = say

    def __call__(self) -> None:
        self._step()

    def expect(self, taken: float) -> None:
        """Show the estimated seconds that remain, if the work is long."""
        if taken >= LONG:
            self._say(f"about {taken:,.0f} s to go")


@contextmanager
def progress_bar(show: bool | None, label: str) -> Iterator[Progress]:
    """Yield a progress bar; ``show=None`` shows it if stderr is a terminal.

    If it is shown elsewhere, where a bar cannot move, only the estimate is printed, as a line.
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
