"""Jobs in a process of their own, which one of them may end or block: then a new process goes on."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


class Isolated(threading.local):
    """A process for each thread that calls it. ``setup`` is called first in each; after ``jobs`` jobs a new one is started."""

    def __init__(self, setup: Callable[..., Any] | None = None, *args: Any, jobs: int = 0) -> None:
        self.setup, self.args, self.jobs = setup, args, jobs
        self.pool: ProcessPoolExecutor | None = None
        self.done = 0

    def __call__(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """Return what the function does there; BrokenProcessPool if it ended the process, TimeoutError if it took too long."""
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(1, context, self.setup, self.args)
        try:
            result = self.pool.submit(function, *args).result(timeout=seconds)
        except (BrokenProcessPool, TimeoutError):
            self.end()
            raise
        self.done += 1
        if self.done == self.jobs:
            self.end()
        return result

    def end(self) -> None:
        """End the process of this thread; the next call starts another."""
        if self.pool is not None:
            for process in [*(self.pool._processes or {}).values()]:
                process.kill()
            self.pool.shutdown()
        self.pool, self.done = None, 0
