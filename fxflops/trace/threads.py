"""Observe the threads that take part in a run, besides the thread that began it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile, takewhile
from types import CodeType
from typing import Any, Protocol

import torch
from torch import nn

from ..model.pytree import tensors_in
from ..torch_internals import get_current_function_mode_stack
from .modes import EachCall, FunctionMode
from .source import frames, is_own
from .stack import ModuleStack

MODULE_CALL, EACH_CALL_HANDLER = nn.Module.__call__.__code__, EachCall.__torch_function__.__code__
OF_ANOTHER_THREAD = "a call by a thread that does not belong to this run"


class ObservesThread(Protocol):
    """What this module uses of a :class:`.ThreadObserver`. The module of that class imports this one, so it cannot be imported here."""

    @property
    def state(self) -> Any:
        """The thread's :class:`.ThreadState`."""

    @property
    def module_calls(self) -> Any:
        """The thread's :class:`.ModuleCalls`."""

    @property
    def recording(self) -> Any:
        """The thread's :class:`.Recording`."""

    def is_on(self) -> bool: ...
    def in_this_thread(self, stack: ModuleStack) -> ObservesThread: ...
    def switch_on(self) -> None: ...
    def switch_off(self) -> None: ...
    def belongs_to_run(self, tensor: torch.Tensor) -> bool: ...


class Threads:
    """The observers of a run's threads, except for the thread that began the run.

    A thread belongs to the run if it started during the run, if it calls a module with tensors that the run made (e.g. a
    worker of an earlier pool), or if it runs a task that a thread of the run gave to a pool. Such a thread gets a ThreadObserver
    whose module stack begins with the module calls that are open in the run. The observer's modes are on while the thread runs a
    module or a task. In a thread that the run started, they are also on while a torch function runs. Autograd's threads inherit the
    modes of the run's first observer, and use that observer. In any other thread, a module call is recorded as a call without a
    formula, unless that thread counts the same model itself.
    """

    def __init__(self) -> None:
        self.by_thread: dict[int, ObservesThread] = {}
        self._threads_before = {thread.ident for thread in threading.enumerate()}
        self._depths: dict[int, int] = {}
        self._module_of_foreign: dict[int, nn.Module] = {}
        self._gate = threading.Lock()  # locked only briefly, so that no thread waits for another thread's module call
        self._visitors = 0
        self._closing: Callable[[], None] | None = None

    @contextmanager
    def visiting(self, first: ObservesThread) -> Iterator[ObservesThread | None]:
        """Yield the observer for a hook that runs in this thread (not the thread that began the run), and keep it from being released.

        During the run, yield ``first``, the run's first observer. After the run, that observer is released: yield this thread's own
        observer, which ends the calls that are still open here, or None if the thread has no observer.
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
        """Let no more threads in, and call ``closing`` when the last thread has left."""
        with self._gate:
            self._closing = closing
            is_empty = not self._visitors
        if is_empty:
            closing()

    def observed_task(
        self, parent: ObservesThread, stack: ModuleStack, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap ``function`` for another thread. There it is observed as part of the open module calls of ``stack``, unless the run is over."""

        def task(*args: Any, **kwargs: Any) -> Any:
            with self.visiting(parent) as host:
                if host is not parent or not self._begin_task(parent, stack):
                    return function(*args, **kwargs)
                try:
                    return function(*args, **kwargs)
                finally:
                    self.end_call()
                    del self.by_thread[threading.get_ident()]  # the thread's later work may not belong to the run

        return task

    def _begin_task(self, parent: ObservesThread, stack: ModuleStack) -> bool:
        """Observe a task of the run in this thread; return False if the thread is observed already."""
        if self._depths.get(threading.get_ident()) or parent.is_on():
            return False
        self._depths[threading.get_ident()] = 1
        self._observe_this_thread(parent, stack)
        return True

    def _observe_this_thread(self, parent: ObservesThread, stack: ModuleStack) -> None:
        observer = self.by_thread[threading.get_ident()] = parent.in_this_thread(stack)
        observer.switch_on()

    def begin_call(self, host: ObservesThread, module: nn.Module, arguments: Any) -> ObservesThread | None:
        """Begin a module call in this thread; return its observer, or None if the call is not observed.

        The outermost call of a thread of the run makes an observer for the thread, and turns the observer's modes on. A call in a thread
        that does not belong to the run is recorded as a call without a formula. ``host`` is the observer that :meth:`visiting` yields.
        """
        thread_id = threading.get_ident()
        if thread_id not in self.by_thread:
            if thread_id in self._module_of_foreign:
                return None
            if host.is_on():
                return host
            if _counts_itself():
                return None
            if thread_id in self._threads_before and not any(map(host.belongs_to_run, tensors_in(arguments))):
                self._module_of_foreign[thread_id] = module
                host.recording.record_unobservable(OF_ANOTHER_THREAD, module, arguments)
                return None
        depth = self._depths[thread_id] = self._depths.get(thread_id, 0) + 1
        if depth == 1:
            self._observe_this_thread(host, host.state.stack)
        return self.by_thread[thread_id]

    def observer_of_call(self, host: ObservesThread, module: nn.Module) -> ObservesThread | None:
        """Return the observer for a module call that ends in this thread; None if the call is not observed."""
        thread_id = threading.get_ident()
        if self._module_of_foreign.get(thread_id) is module:
            del self._module_of_foreign[thread_id]
        if thread_id in self.by_thread:
            return self.by_thread[thread_id]
        return host if host.is_on() else None

    def end_call(self) -> None:
        """End the module call of this thread, which has been recorded; after the outermost call, turn the thread's modes off."""
        thread_id = threading.get_ident()
        if thread_id in self.by_thread:
            self._depths[thread_id] -= 1
            if not self._depths[thread_id]:
                self.by_thread[thread_id].switch_off()


class Watched:
    """The work of a thread that a run has started. In the thread, ``wrap(func)`` is called in place of each torch function ``func``.

    Functions that fxflops calls are not wrapped, since the thread then counts a model itself.
    """

    def __init__(self, run: Callable[[], Any], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._run = run
        self._wrap = wrap

    def __call__(self) -> None:
        with EachCall(self._wrapped):
            self._run()

    def _wrapped(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func if _is_called_by_fxflops(EACH_CALL_HANDLER) else self._wrap(func)


THREAD_WORK = Watched.__call__.__code__


def _is_called_by_fxflops(last: CodeType) -> bool:
    """Return whether fxflops made the innermost call of the function with this code, within this thread's work."""
    _, *callers = dropwhile(lambda frame: frame.f_code is not last, frames())
    return any(map(is_own, takewhile(lambda frame: frame.f_code is not THREAD_WORK, callers)))


def _counts_itself() -> bool:
    """Return whether this thread counts a model itself: then our function mode is on, or fxflops has called the module."""
    if any(type(mode) is FunctionMode for mode in get_current_function_mode_stack()):
        return True
    return _is_called_by_fxflops(MODULE_CALL)


def drop(observer: Any, *kept: str) -> None:
    """Delete an observer's attributes except ``kept``, which a thread may still read.

    Otherwise their reference cycles would live until the garbage collector runs.
    """
    attributes = vars(observer)
    for name in attributes.keys() - set(kept):
        del attributes[name]
