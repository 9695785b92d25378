"""Observe plain Python functions for which the user has a formula, by ``sys.setprofile``, since no torch mode sees their calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

from .functions import arguments_of

Begin = Callable[[FunctionType, tuple[Any, ...], dict[str, Any]], Any]
End = Callable[[FunctionType, Any, Any], None]


class PlainFunctions:
    """Calls ``begin(function, args, kwargs)`` and ``end(function, begun, value)`` around outermost calls of ``functions``.

    ``begun`` is the result of ``begin``. If it is None, the call is not observed, and ``end`` is not called.
    ``current`` is the observed call that is running. A profiler that was on before is restored at the end.
    """

    def __init__(self, functions: Mapping[CodeType, FunctionType], begin: Begin, end: End) -> None:
        self._functions = functions
        self._begin = begin
        self._end = end
        self.current: tuple[FrameType, FunctionType, Any] | None = None

    def __enter__(self) -> None:
        if self._functions:
            self._profiler: Any = sys.getprofile()
            sys.setprofile(self._watch)

    def __exit__(self, *exception: Any) -> None:
        if not self._functions:
            return
        sys.setprofile(None)
        if hasattr(self._profiler, "enable"):  # written in C, such as cProfile: setprofile takes only functions
            self._profiler.enable()
        else:
            sys.setprofile(self._profiler)

    def _watch(self, frame: FrameType, event: str, value: Any) -> None:
        function = self._functions.get(frame.f_code)
        if function is None:
            return
        if event == "call" and self.current is None:
            begun = self._begin(function, *arguments_of(frame))
            self.current = None if begun is None else (frame, function, begun)
        elif event == "return" and self.current is not None and self.current[0] is frame:
            _, function, begun = self.current
            self.current = None
            self._end(function, begun, value)
