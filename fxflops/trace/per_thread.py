"""Handlers of single threads behind something that is replaced for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

H = TypeVar("H")


class PerThread(Generic[H]):
    """The handlers that threads have set, each for itself; the last one of a thread counts.

    The first handler of all replaces what they stand behind, and the last one puts it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[int, list[H]] = {}

    @contextmanager
    def on(self, handler: H, replace: Callable[[], None], restore: Callable[[], None]) -> Iterator[None]:
        """Set a handler of this thread; ``replace()`` and ``restore()`` are called for the first and after the last one of all threads."""
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
        """Return the handler of this thread; None if it has set none."""
        handlers = self._handlers.get(threading.get_ident())
        return handlers[-1] if handlers else None
