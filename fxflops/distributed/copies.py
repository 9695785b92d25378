"""Run a function on many items in forked copies of this process. Each copy handles one item at a time and sends back the result."""

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
    """Return ``work(item)`` for all items. Up to ``processes`` copies of this process work at the same time. Call ``done`` after each item.

    If :func:`may_fork` returns False, this process does all the work. ``work`` may be a closure, because a copy has all variables of
    this process. Changes that ``work`` makes to variables in a copy are lost. If ``work`` raises in a copy, or its result cannot be sent
    back, this process calls ``work(item)`` again. So errors are the same with and without copies.

    A copy computes with one thread, like a worker of torch's DataLoader: OpenMP's other threads are not copied, and a copy would wait
    for them forever.

    Raises RunError with the item's name if the copy that works on an item is killed. Raises InputError if ``processes`` is not an integer
    of at least 1. No copies stay behind, even if this process is interrupted or killed.
    """
    if not isinstance(processes, int) or processes < 1:
        raise InputError(f"processes must be an integer of at least 1, not {processes!r:.80}")
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
    """Return whether a copy of this process can run a simulation, and saves time.

    Reasons against copies:

    - On systems other than Linux, processes cannot be forked, or system libraries fail in a forked process.
    - With a single core, copies save no time.
    - If another Python thread holds a lock, the lock is never released in the copy.
    - A daemonic process may not have child processes.
    - Autograd raises in a copy if the original process has autograd threads for accelerators. The first backward pass starts autograd
      threads, even if the only accelerator is the device of fake tensors.
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
    """Run a tiny backward pass on the CPU.

    The first backward pass in a process starts a thread for each device. On fake tensors, it would also start threads for devices
    that do not exist.
    """
    with torch.enable_grad():
        torch.ones((), requires_grad=True).backward()


def _made_in_copies(
    work: Callable[[T], R], items: Sequence[T], processes: int, named: Callable[[T], str], done: Callable[[], None]
) -> dict[int, R]:
    """Return a dict from the item's index to its result. The dict does not contain items that this process must compute itself."""
    waiting, made = deque(range(len(items))), dict[int, R]()
    running: dict[Any, tuple[Any, int]] = {}  # by connection: the copy, and the index of its current item

    def ask(connection: Connection, process: Any) -> None:
        running[connection] = process, waiting.popleft()
        with suppress(BrokenPipeError):  # a copy that has ended is noticed below, when its result is read
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
                            f"{named(items[number])}: the process that ran this simulation ended early with exit code "
                            f"{process.exitcode}; if memory ran out, use fewer processes"
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
    """Start a copy of this process that calls ``target``; return the copy."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args, daemon=True)
    with warnings.catch_warnings():  # Python 3.12 warns about any other thread, but OpenMP's threads are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _serve(connection: Connection, work: Callable[[T], R], items: Sequence[T]) -> None:
    """Run in a copy: compute the requested items until one raises. The original process kills copies that it no longer needs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_original, daemon=True).start()
    torch.set_num_threads(1)
    gc.freeze()  # the garbage collector then skips all objects of the original process
    with suppress(BaseException):
        while True:
            connection.send(work(items[connection.recv()]))
            sys.stdout.flush()


def _end_with_original() -> None:
    """Wait until the original process ends for any reason, then end this copy."""
    original = multiprocessing.parent_process()
    assert original is not None
    original.join()
    os._exit(1)
