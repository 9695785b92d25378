"""Work that is shared among copies of this process: each does one item after the other, and sends back the results."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

import torch

from ..errors import InputError, RunError

T = TypeVar("T")
R = TypeVar("R")


def map_in_copies(
    work: Callable[[T], R],
    items: Iterable[T],
    processes: int,
    named: Callable[[T], str],
    done: Callable[[], None] = lambda: None,
) -> list[R]:
    """Return ``work(item)`` of all items, of which so many are done at a time, each in a copy of this process; call ``done`` after each.

    In this process alone if :func:`may_fork` says no. ``work`` may be a closure: a copy has all that this process has. What it
    changes there is lost. An item on which ``work`` raises, or whose result cannot be sent, is done again here, so that
    an error is the same as without copies.

    A copy computes with one thread, as those of torch's DataLoader do: OpenMP's other threads are not copied, and a copy would wait
    for them for ever.

    Raises RunError with the name of its item if a copy is killed, InputError if ``processes`` is no number from 1 on. No copy
    is left behind, also if this process is interrupted or killed.
    """
    if not isinstance(processes, int) or processes < 1:
        raise InputError(f"processes must be a number from 1 on, not {processes!r:.80}")
    made: dict[int, R] = {}
    if processes > 1 and may_fork():
        items = [*items]
        if len(items) > 1:
            made = _made_in_copies(work, items, min(processes, len(items), len(os.sched_getaffinity(0))), named, done)

    def here(item: T) -> R:
        result = work(item)
        done()
        return result

    return [made[i] if i in made else here(item) for i, item in enumerate(items)]


def may_fork() -> bool:
    """Return whether a copy of this process can simulate.

    Elsewhere than on Linux it cannot be made, or libraries of the system fail in it. On one core it saves no time. Another
    thread of Python may hold a lock, which is never released in a copy. A daemonic process may not have children. Autograd raises in a
    copy of a process in which it has threads: of each accelerator from the first backward pass on, and of those that fake
    tensors pretend to have, if that pass was on such.
    """
    return (
        sys.platform == "linux"
        and len(os.sched_getaffinity(0)) > 1
        and threading.active_count() == 1
        and not multiprocessing.current_process().daemon
        and not torch.accelerator.is_available()
        and _backward_in_a_copy()
    )


def _backward_in_a_copy() -> bool:
    process = _copy(_backward)
    process.join()
    return bool(process.exitcode == 0)


def _backward() -> None:
    try:
        start_autograd()
    except RuntimeError:
        sys.exit(1)


def start_autograd() -> None:
    """Make a backward pass. The first one starts a thread for each device; if it is on fake tensors, for those that they
    pretend to have, too."""
    with torch.enable_grad():
        torch.ones((), requires_grad=True).backward()


def _made_in_copies(
    work: Callable[[T], R], items: Sequence[T], processes: int, named: Callable[[T], str], done: Callable[[], None]
) -> dict[int, R]:
    """Return the results by the number of the item; without those that are left to this process."""
    waiting, made = deque(range(len(items))), dict[int, R]()
    running: dict[Any, tuple[Any, int]] = {}  # a copy, and the number of the item that it does

    def ask(connection: Connection, process: Any) -> None:
        running[connection] = process, waiting.popleft()
        with suppress(BrokenPipeError):  # one that has ended is found when its result is read
            connection.send(running[connection][1])

    try:
        for _ in range(processes):
            here, there = Pipe()
            ask(here, _copy(_serve, there, work, items))
            there.close()
        while running:
            ready: list[Any] = wait([*running])
            for connection in ready:
                process, number = running[connection]
                try:
                    made[number] = connection.recv()
                    done()
                except (EOFError, ConnectionResetError):
                    process.join()
                    if process.exitcode:
                        raise RunError(
                            f"{named(items[number])}: the process that simulated it ended early, with exit code "
                            f"{process.exitcode}; fewer processes need less memory"
                        ) from None
                    return made
                if waiting:
                    ask(connection, process)
                else:
                    process.kill()
                    process.join()
                    del running[connection]
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
    return made


def _copy(target: Callable[..., None], *args: Any) -> Any:
    """Return a new copy of this process, which calls ``target``."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args, daemon=True)
    with warnings.catch_warnings():  # from Python 3.12 on, of any thread: those of OpenMP are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _serve(connection: Connection, work: Callable[[T], R], items: Sequence[T]) -> None:
    """Be a copy: do the items that are asked for, until one raises. The original ends the copies that it needs no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_original, daemon=True).start()
    torch.set_num_threads(1)
    gc.freeze()  # the collector passes over all that the original has
    with suppress(BaseException):
        while True:
            connection.send(work(items[connection.recv()]))
            sys.stdout.flush()


def _end_with_original() -> None:
    """Wait until the original has ended, however it did, and end this copy."""
    original = multiprocessing.parent_process()
    assert original is not None
    original.join()
    os._exit(1)
