"""Run jobs in a separate process. If a job crashes the process or hangs, the next job gets a new process."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any


class Isolated(threading.local):
    """Runs jobs in one process per calling thread.

    ``setup`` is called first in each process. After ``jobs`` jobs a new process is started; 0 means never.
    """

    def __init__(self, setup: Callable[..., Any] | None = None, *args: Any, jobs: int = 0) -> None:
        self.setup, self.args, self.jobs = setup, args, jobs
        self.pool: ProcessPoolExecutor | None = None
        self.done = 0

    def __call__(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """Return the function's result. Raises BrokenProcessPool if the process died, TimeoutError if the job took too long."""
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(1, context, self.setup, self.args)
            try:
                self.pool.submit(int).result()
            except BrokenProcessPool as error:
                raise RuntimeError(f"no process of {self.args} can be set up: see its error above") from error
        try:
            result = self.pool.submit(function, *args).result(timeout=seconds)
        except (BrokenProcessPool, TimeoutError):
            self.end()
            raise
        self.done += 1
        if self.done == self.jobs:
            self.end()
        return result

    ended = False  # set by end_all: a job that fails afterwards did not kill its process itself

    @classmethod
    def end_all(cls) -> None:
        """Kill the processes of all threads, whatever they are doing."""
        cls.ended = True
        for process in multiprocessing.active_children():
            process.kill()

    def end(self) -> None:
        """Kill this thread's process; the next call starts another."""
        if self.pool is not None:
            for process in [*(self.pool._processes or {}).values()]:
                process.kill()
            self.pool.shutdown()
        self.pool, self.done = None, 0


def bounded(gigabytes: int) -> None:
    """Limit this process's memory: beyond ``gigabytes``, allocations fail with an error."""
    resource.setrlimit(resource.RLIMIT_DATA, (gigabytes * 10**9,) * 2)


@contextmanager
def deadline(seconds: int, timer: int = signal.ITIMER_REAL) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds.

    With ``signal.ITIMER_PROF`` as the timer, only this process's CPU time counts, so a busy machine does not shorten the deadline.
    """

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    signal.signal(signal.SIGPROF if timer == signal.ITIMER_PROF else signal.SIGALRM, raise_timeout)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
