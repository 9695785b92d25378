"""Progress of long work, shown on a terminal only, and erased when the work is done."""

from __future__ import annotations

import sys
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
def progress_bar(show: bool | None, label: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call at each step of a progress bar. ``show=None`` shows the bar if stderr is a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}  pass {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda: bar.advance(task)
