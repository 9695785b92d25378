"""Lines of the model author's code."""

from __future__ import annotations

import sys
from types import FrameType

import torch


def author_line() -> str:
    """``file:line`` of the innermost frame that belongs to neither torch nor this library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_library(filename: str) -> bool:
    """Whether a file is torch's or this library's own, or no file at all."""
    return filename.startswith("<") or any(filename.startswith(root) for root in _ROOTS)


_ROOTS = tuple(str(m.__file__).rpartition("/")[0] + "/" for m in (torch, sys.modules[__package__.partition(".")[0]]))
