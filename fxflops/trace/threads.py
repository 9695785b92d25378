"""The threads that a model starts as it runs: each is watched as the run's own is."""

from __future__ import annotations

import copy
import sys
import threading
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from ..model.pytree import tensors_in
from ..torch_internals import get_current_dispatch_mode_stack, get_current_function_mode_stack
from .forwards import CALLED_BY
from .modes import FunctionMode
from .source import is_own

UNWATCHED = "a call by a thread that is none of this run's"


class Observing(Protocol):
    """An observer, as far as threads ask it."""

    is_watching: bool
    lock: AbstractContextManager[Any]
    mode: Any
    aten: Any

    def has_made(self, tensor: torch.Tensor) -> bool: ...

    def unseen(self, op: str, module: nn.Module, given: Any) -> None: ...

    def begin_thread(self, over: Any) -> None: ...

    def switch_off(self) -> None: ...


Watching = TypeVar("Watching", bound=Observing)


class Threads(Generic[Watching]):
    """The observers of a run's threads, beside that of the thread that began it.

    A thread is the run's that was started since, or is given what the run has made, as one of a pool that was there before. Its
    observer is a copy with a module stack of its own, over the modules under way where the run began, and its modes are on while
    a module runs. A thread of autograd's has the run's own modes on. Where any other thread calls a module of the run, that is
    recorded as a call which no formula knows, but for threads that count the same model themselves.
    """

    def __init__(self) -> None:
        self.beside: dict[int, Watching] = {}
        self._there = {thread.ident for thread in threading.enumerate()}
        self._depths: dict[int, int] = {}
        self._others: dict[int, nn.Module] = {}

    def enter(self, observer: Watching, module: nn.Module, given: Any) -> Watching | None:
        """The observer of this thread, which begins to call a module; None where nobody watches it."""
        ident = threading.get_ident()
        beside = self.beside.get(ident)
        if beside is None:
            if not observer.is_watching or ident in self._others:
                return None
            if _is_on(observer):
                return observer
            if _counts_itself():
                return None
            if ident in self._there and not any(map(observer.has_made, tensors_in(given))):
                self._others[ident] = module
                observer.unseen(UNWATCHED, module, given)
                return None
            with observer.lock:  # once the call under way has been recorded
                beside = self.beside[ident] = copy.copy(observer)
        depth = self._depths[ident] = self._depths.get(ident, 0) + 1
        if depth == 1:
            beside.begin_thread(observer if observer.is_watching else beside)
        return beside

    def leave(self, observer: Watching, module: nn.Module) -> Watching | None:
        """The same as its call of a module ends."""
        ident = threading.get_ident()
        if self._others.get(ident) is module:
            del self._others[ident]
        if ident in self.beside:
            return self.beside[ident]
        return observer if observer.is_watching and _is_on(observer) else None

    def left(self) -> None:
        """This thread's call of a module is over, and has been recorded."""
        ident = threading.get_ident()
        if ident in self.beside:
            self._depths[ident] -= 1
            if not self._depths[ident]:
                self.beside[ident].switch_off()


def _is_on(observer: Observing) -> bool:
    """Whether an observer's modes are on in this thread: autograd's have those of who began the backward pass."""
    return observer.mode in get_current_function_mode_stack() or observer.aten in get_current_dispatch_mode_stack()


def _counts_itself() -> bool:
    """Whether this thread, in which a module has just been called, counts a model itself: its modes are on, or this library
    has called the module."""
    if any(type(mode) is FunctionMode for mode in get_current_function_mode_stack()):
        return True
    frame: FrameType | None = sys._getframe()
    called = False
    while frame is not None:
        called = called or frame.f_code in CALLED_BY
        if called and is_own(frame):
            return True
        frame = frame.f_back
    return False
