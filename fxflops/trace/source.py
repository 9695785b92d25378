"""Source lines of the model author's code."""

from __future__ import annotations

import sys
import sysconfig
from types import FrameType

import torch


def author_line() -> str:
    """Return ``file:line`` of the innermost frame outside torch, Python's standard library and this one; "" if none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_that_raised(error: BaseException) -> str:
    """Return the model author's innermost line in a traceback, formatted for an error message; "" if there is none."""
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not is_library(filename):
            lines.append(f"\n  at {filename}:{traceback.tb_lineno} in {traceback.tb_frame.f_code.co_name}")
        traceback = traceback.tb_next
    return lines[-1] if lines else ""


def is_own(frame: FrameType) -> bool:
    """Return whether a frame is in this library."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE


def is_library(filename: str) -> bool:
    """Return whether a file is torch's, Python's or this library's, or generated code; interactive input is not."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED_IN)
    return filename.startswith(_ROOTS) or (filename.startswith(_STANDARD) and not filename.startswith(_INSTALLED))


PACKAGE = __name__.partition(".")[0]
_TYPED_IN = ("<stdin", "<python-input", "<ipython-input")
_ROOTS = tuple(str(m.__file__).rpartition("/")[0] + "/" for m in (torch, sys.modules[__package__.partition(".")[0]]))
_STANDARD = sysconfig.get_path("stdlib") + "/"
_INSTALLED = tuple(f"{_STANDARD}{folder}/" for folder in ("site-packages", "dist-packages"))
