"""Per-thread handlers behind something that is replaced for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

H = TypeVar("H")


class PerThread(Generic[H]):
    """The handlers that each thread has set for itself; a thread uses its latest.

    The first handler in any thread makes the replacement, and the last one to go restores the original.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[int, list[H]] = {}

    @contextmanager
    def on(self, handler: H, replace: Callable[[], None], restore: Callable[[], None]) -> Iterator[None]:
        """Set a handler for this thread; ``replace()`` runs before the first handler in any thread, ``restore()`` after the last."""
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
        """Return this thread's handler; None if it has none."""
        handlers = self._handlers.get(threading.get_ident())
        return handlers[-1] if handlers else None
