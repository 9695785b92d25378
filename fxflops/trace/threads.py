"""The observers of threads that a model starts in a run."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from typing import Any

from torch import nn

from ..model.pytree import tensors_in
from ..torch_internals import get_current_dispatch_mode_stack, get_current_function_mode_stack
from .modes import FunctionMode
from .source import frames, is_own

CALL = nn.Module.__call__.__code__
UNWATCHED = "a call by a thread that does not belong to this run"


class Threads:
    """The observers of a run's threads, except that of the thread that began it.

    A thread belongs to the run if it was started during the run, or if it calls a module with tensors that the run made,
    as a thread of an earlier pool does. Its observer is a copy of the first one, with a module stack of its own on top
    of the open module calls. Its modes are on while a module runs. Threads of autograd inherit the run's modes, and use
    its observer. A module call by any other thread is recorded as a call without formula, unless that thread counts
    the same model itself.
    """

    def __init__(self) -> None:
        self.by_thread: dict[int, Any] = {}
        self._earlier = {thread.ident for thread in threading.enumerate()}
        self._depths: dict[int, int] = {}
        self._foreign: dict[int, nn.Module] = {}
        self._gate = threading.Lock()  # held for a moment only: no thread waits for another's module call
        self._visitors = 0
        self._closing: Callable[[], None] | None = None

    @contextmanager
    def visiting(self, first: Any) -> Iterator[Any]:
        """Yield the observer that this thread, which did not begin the run, finds in one of its hooks, and keep it whole meanwhile.

        It is the run's first, and after the run this thread's own; None if it has none.
        """
        with self._gate:
            is_open = self._closing is None
            self._visitors += is_open
        try:
            yield first if is_open else self.by_thread.get(threading.get_ident())
        finally:
            if is_open:
                with self._gate:
                    self._visitors -= 1
                    closing = None if self._visitors else self._closing
                if closing is not None:
                    closing()

    def close(self, closing: Callable[[], None]) -> None:
        """Let no thread in any more, and call ``closing`` when the last one has left."""
        with self._gate:
            self._closing = closing
            is_empty = not self._visitors
        if is_empty:
            closing()

    def enter(self, observer: Any, module: nn.Module, given: Any) -> Any:
        """Return the observer of this thread, which begins a module call; None if the call is not observed."""
        ident = threading.get_ident()
        copied = self.by_thread.get(ident)
        if copied is None:
            if ident in self._foreign:
                return None
            if _is_on(observer):
                return observer
            if _counts_itself():
                return None
            if ident in self._earlier and not any(map(observer.has_made, tensors_in(given))):
                self._foreign[ident] = module
                observer.unseen(UNWATCHED, module, given)
                return None
            with observer.lock:  # wait until the call under way has been recorded
                copied = self.by_thread[ident] = copy.copy(observer)
        depth = self._depths[ident] = self._depths.get(ident, 0) + 1
        if depth == 1:
            copied.begin_thread(observer)
        return copied

    def leave(self, observer: Any, module: nn.Module) -> Any:
        """Return the observer of this thread, whose module call ends; None if the call is not observed."""
        ident = threading.get_ident()
        if self._foreign.get(ident) is module:
            del self._foreign[ident]
        if ident in self.by_thread:
            return self.by_thread[ident]
        return observer if _is_on(observer) else None

    def left(self) -> None:
        """Note that this thread's module call has been recorded; after the outermost one its modes are turned off."""
        ident = threading.get_ident()
        if ident in self.by_thread:
            self._depths[ident] -= 1
            if not self._depths[ident]:
                self.by_thread[ident].switch_off()


def _is_on(observer: Any) -> bool:
    """Return whether an observer's modes are on in this thread: autograd's threads inherit those of their caller."""
    return observer.mode in get_current_function_mode_stack() or observer.aten in get_current_dispatch_mode_stack()


def _counts_itself() -> bool:
    """Return whether this thread counts a model itself: a function mode of ours is on, or this library called the module."""
    if any(type(mode) is FunctionMode for mode in get_current_function_mode_stack()):
        return True
    return any(map(is_own, dropwhile(lambda frame: frame.f_code is not CALL, frames())))
