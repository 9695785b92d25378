"""Handlers that each thread sets for itself, behind a function that is replaced for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

H = TypeVar("H")


class PerThread(Generic[H]):
    """The handlers that each thread has set for itself. A thread uses the handler that it set last.

    When the first handler of all threads is set, the function is replaced; when the last handler is removed, it is restored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[int, list[H]] = {}

    @contextmanager
    def on(self, handler: H, replace: Callable[[], None], restore: Callable[[], None]) -> Iterator[None]:
        """Set a handler for this thread in the block. ``replace()`` runs before the first handler of all threads, ``restore()`` after the last."""
        thread = threading.get_ident()
        with self._lock:
            if not self._handlers:
                replace()
            self._handlers.setdefault(thread, []).append(handler)
        try:
            yield
        finally:
            with self._lock:
                self._handlers[thread].pop()
                if not self._handlers[thread]:
                    del self._handlers[thread]
                if not self._handlers:
                    restore()

    def now(self) -> H | None:
        """Return this thread's current handler; None if no handler is set."""
        handlers = self._handlers.get(threading.get_ident())
        return handlers[-1] if handlers else None

    def all_now(self) -> tuple[H, ...]:
        """Return all handlers that this thread has set, the current one last."""
        return tuple(self._handlers.get(threading.get_ident(), ()))
