"""Observe work that a run gives to other threads, where our modes are not on yet: tasks for a pool, and threads that it starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.pool import ThreadPool
from typing import Any

from .per_thread import PerThread

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
_WRAPS = PerThread[tuple[Wrap, Wrap]]()
"""For each thread, the wrapper of the tasks that it gives to pools, and the wrapper of the threads that it starts."""
POOLS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ThreadPoolExecutor, ("submit",)),
    (ThreadPool, ("apply_async", "_map_async", "imap", "imap_unordered")),
)
"""Thread pools, with the methods whose first argument is a task (a function)."""
OF_POOLS = ("concurrent.futures.", "multiprocessing.")


def tasks_wrapped(task: Wrap, thread: Wrap) -> AbstractContextManager[None]:
    """In a block, wrap the tasks that this thread gives to pools by ``task(function)``, and the threads that it starts by ``thread(run)``.

    In the block, the tasks of all threads pass through this module, but tasks of other threads are not wrapped.
    """
    return _WRAPS.on((task, thread), _replace, _restore)


_originals: list[tuple[type, str, Any]] = []
"""For each replaced attribute: the class, the attribute's name, and the class's original value (None if the class inherits it)."""


def _replace() -> None:
    for pool, names in POOLS:
        for name in names:
            _set(pool, name, _taking_tasks(getattr(pool, name)))
    _set(threading.Thread, "start", _starting(threading.Thread.start))


def _set(cls: type, name: str, value: Any) -> None:
    _originals.append((cls, name, vars(cls).get(name)))
    setattr(cls, name, value)


def _restore() -> None:
    while _originals:
        cls, name, value = _originals.pop()
        if value is None:
            delattr(cls, name)
        else:
            setattr(cls, name, value)


def _taking_tasks(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        wraps = _WRAPS.now()
        return original(pool, wraps[0](function) if wraps else function, *args, **kwargs)

    return take


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(thread: Any) -> None:
        wraps = _WRAPS.now()
        target = getattr(thread, "_target", None)  # a private attribute; without it, threads of pools are observed, too
        if wraps and not str(getattr(target, "__module__", "")).startswith(OF_POOLS):
            own = thread.run
            run = wraps[1](own)

            def run_once() -> None:
                vars(thread).pop("run", None)
                run()

            if run is not own:  # put no frame of ours around a thread that is not observed
                thread.run = run_once
        original(thread)

    return start
