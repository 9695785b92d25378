"""Read the call stack: find lines of the model author's code, and the library that a frame belongs to."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from ..errors import OutOfMemoryError, RunError


def frames() -> Iterator[FrameType]:
    """Yield the frames of the call stack, beginning with the caller's frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def frame_in(file: str | tuple[str, ...]) -> FrameType | None:
    """Return the innermost calling frame in a file whose name ends with ``file`` (a suffix or a tuple of suffixes); None if not found.

    Unlike a generator of frames, this function makes no reference cycle, which would keep the local variables of all callers alive.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and not frame.f_code.co_filename.endswith(file):
        frame = frame.f_back
    return frame


def author_line() -> str:
    """Return ``file:line`` of the innermost frame outside torch, Python's standard library and fxflops; "" if there is none."""
    author_frames = (frame for frame in frames() if not is_library(frame.f_code.co_filename))
    return next((f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in author_frames), "")


def line_that_raised(error: BaseException) -> str:
    """Return the model author's innermost line in a traceback, formatted for an error message; "" if there is none."""
    codes_and_lines = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    own_lines = [
        f"\n  at {code.co_filename}:{line} in {code.co_name}"
        for code, line in codes_and_lines
        if not is_library(code.co_filename)
    ]
    return own_lines[-1] if own_lines else ""


def modules_that_raised(error: BaseException) -> list[nn.Module]:
    """Return the modules whose methods are in a traceback, outermost first."""
    owners: Iterator[Any] = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    return [owner for owner in owners if issubclass(type(owner), nn.Module)]


def error_for(error: Exception, message: str, node: str = "", advice: str = "") -> RunError | OutOfMemoryError:
    """Make fxflops's error from an error that a run raised: OutOfMemoryError if the device ran out of memory, otherwise RunError."""
    our_error = (OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else RunError)(message, node)
    our_error.advice += [advice] * bool(advice)
    return our_error


def in_function() -> bool:
    """Return whether the caller runs inside the forward of an ``autograd.Function``."""
    forwards = (frame for frame in frames() if frame.f_code.co_name == "forward")
    return any(isinstance(frame.f_locals.get("ctx"), FunctionCtx) for frame in forwards)


def is_own(frame: FrameType) -> bool:
    """Return whether a frame belongs to fxflops."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE


def is_own_file(filename: str) -> bool:
    """Return whether a file belongs to fxflops."""
    return filename.startswith(_ROOTS[1])


def is_library(filename: str) -> bool:
    """Return whether a file belongs to torch, Python or fxflops, or is generated code. Interactive input is the user's code."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED_IN)
    return filename.startswith(_ROOTS) or (filename.startswith(_STANDARD) and not filename.startswith(_INSTALLED))


PACKAGE = __name__.partition(".")[0]
_TYPED_IN = ("<stdin", "<python-input", "<ipython-input")
_ROOTS = tuple(str(m.__file__).rpartition("/")[0] + "/" for m in (torch, sys.modules[__package__.partition(".")[0]]))
_STANDARD = sysconfig.get_path("stdlib") + "/"
_INSTALLED = tuple(f"{_STANDARD}{folder}/" for folder in ("site-packages", "dist-packages"))
