"""Measure how long the host spends in each line of the user's code. pyinstrument takes samples of the call stack for this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import PACKAGE, InputError, not_installed
from ..model.installed import is_installed

INTERVAL = 0.001
"""Seconds between two samples: pyinstrument's default."""
NOWHERE = "(libraries)"
"""The place shown for samples without user code on the stack."""


class CodeLine(NamedTuple):
    """The seconds of a line of user code, including library code that the line called. ``place`` is file and line: "train.py:31"."""

    place: str
    function: str
    seconds: float


@contextmanager
def lines_sampled(lines: dict[tuple[str, str], float]) -> Iterator[None]:
    """Sample this thread's stack in the block. Add the seconds to ``lines``, by place and function; the time of fxflops itself is left out.

    Raises InputError if pyinstrument is not installed, or already runs in this thread.
    """
    try:
        from pyinstrument import Profiler
    except ImportError as error:
        raise not_installed("pyinstrument", "lines") from error
    profiler = Profiler(interval=INTERVAL, async_mode="disabled")
    try:
        profiler.start()
    except RuntimeError as error:
        raise InputError(f"lines=True needs pyinstrument, which cannot start: {error}") from error
    try:
        yield
    finally:
        for stack, seconds in profiler.stop().frame_records:
            where = _place(stack)
            if where is not None:
                lines[where] = lines.get(where, 0.0) + seconds


def by_time(lines: dict[tuple[str, str], float]) -> tuple[CodeLine, ...]:
    """Return the lines, longest first."""
    return tuple(
        sorted((CodeLine(*where, seconds) for where, seconds in lines.items()), key=lambda line: -line.seconds)
    )


def _place(stack: Sequence[str]) -> tuple[str, str] | None:
    """Return the innermost line of the user's code, and its function; None for a sample taken while fxflops itself works.

    A frame is ``function\\0file\\0first line``, followed by attributes that each begin with ``\\1``: ``l31`` if line 31 is running.
    """
    is_ours: bool | None = None
    for frame in reversed(stack):
        head, *attributes = frame.split("\x01")
        function, file, _ = [*head.split("\x00"), "", ""][:3]
        if file.startswith("<"):  # a builtin, or code without a file
            continue
        if is_ours is None:
            is_ours = Path(file).is_relative_to(PACKAGE)
        number = next((each[1:] for each in attributes if each.startswith("l")), "")
        if number and not is_installed(file):
            return None if is_ours else (f"{_from_here(file)}:{number}", function)
    return None if is_ours else (NOWHERE, "")


def _from_here(file: str) -> str:
    """Return the path of a file, relative to the current folder if the file is in it."""
    path = Path(file).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
