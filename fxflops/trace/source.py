"""Lines of the model author's code."""

from __future__ import annotations

import sys
import sysconfig
from types import FrameType

import torch


def author_line() -> str:
    """``file:line`` of the innermost frame that belongs to neither torch, nor Python's own library, nor this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_own(frame: FrameType) -> bool:
    """Whether a frame is of this library."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE


def is_library(filename: str) -> bool:
    """Whether a file is torch's, Python's or this library's own, or none at all; what was typed in is the author's."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED_IN)
    return filename.startswith(_ROOTS) or (filename.startswith(_STANDARD) and not filename.startswith(_INSTALLED))


PACKAGE = __name__.partition(".")[0]
_TYPED_IN = ("<stdin", "<python-input", "<ipython-input")
_ROOTS = tuple(str(m.__file__).rpartition("/")[0] + "/" for m in (torch, sys.modules[__package__.partition(".")[0]]))
_STANDARD = sysconfig.get_path("stdlib") + "/"
_INSTALLED = tuple(f"{_STANDARD}{folder}/" for folder in ("site-packages", "dist-packages"))
