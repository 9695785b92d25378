"""Jobs in a process of their own, which one of them may end or block: then a new process goes on."""

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

    ended = False  # by end_all: a job that broke off then did not end its process itself

    @classmethod
    def end_all(cls) -> None:
        """End the processes of all threads, whatever they are doing."""
        cls.ended = True
        for process in multiprocessing.active_children():
            process.kill()

    def end(self) -> None:
        """End the process of this thread; the next call starts another."""
        if self.pool is not None:
            for process in [*(self.pool._processes or {}).values()]:
                process.kill()
            self.pool.shutdown()
        self.pool, self.done = None, 0


def bounded(gigabytes: int) -> None:
    """Have this process raise where it would take more memory than a job may."""
    resource.setrlimit(resource.RLIMIT_DATA, (gigabytes * 10**9,) * 2)


@contextmanager
def deadline(seconds: int, timer: int = signal.ITIMER_REAL) -> Iterator[None]:
    """TimeoutError after so many seconds; of the processor, if the timer is ``signal.ITIMER_PROF``: other work does not count."""

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    signal.signal(signal.SIGPROF if timer == signal.ITIMER_PROF else signal.SIGALRM, raise_timeout)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
