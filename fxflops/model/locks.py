"""Locks on models, so that no two threads count the same model at once; and the mode of a locked model."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..errors import InputError
from .generators import Generator, global_states


@contextmanager
def locked_in_mode(modules: Iterable[nn.Module], mode: str, reentrant: bool = False) -> Iterator[bool]:
    """Lock all modules of a model for this thread, and set their mode: "eval", "train" or "as_is".

    The ``training`` flags are set without calling ``.eval()``, and restored at the end. Yields True if this thread has already locked
    another model, i.e. if this thread is inside a forward that is being counted. With ``reentrant``, this thread may lock the same modules
    again.
    """
    modules, training = [*modules], mode == "train"
    parameters = [parameter for module in modules for parameter in module._parameters.values()]
    with locked([*modules, *parameters], reentrant) as is_nested:
        sets_mode = mode != "as_is"
        to_switch = [module for module in modules if sets_mode and _mode(module, training) is not training]
        flags = [_mode(module, training) for module in to_switch]
        try:
            for module in to_switch:
                _set_mode(module, training)
            yield is_nested
        finally:
            for module, flag in zip(to_switch, flags, strict=True):
                _set_mode(module, flag)


def _mode(module: Any, default: bool) -> bool:
    """Return a module's ``training`` flag; ``default`` for a frozen TorchScript module, which has no such flag."""
    attributes = module.__dict__
    return attributes["training"] if "training" in attributes else getattr(module, "training", default)


def _set_mode(module: Any, flag: bool) -> None:
    """Set the ``training`` flag of a module directly, because ``module.train()`` and a user's ``__setattr__`` may have other effects."""
    if "training" in module.__dict__:
        module.__dict__["training"] = flag
    else:
        module.training = flag


class _Lock:
    """A thread's lock on objects. ``random`` are the states of the random generators at the first snapshot under this lock."""

    def __init__(self, objects: Iterable[Any], reentrant: bool) -> None:
        self.thread = threading.get_ident()
        self.reentrant = reentrant
        self.random: list[tuple[Generator, Any]] | None = None
        self._objects = {id(each): each for each in objects if each is not None}

    def owners(self) -> set[int]:
        """Return the threads that have locked any of the objects, and all threads for which the locking threads wait."""
        others = [lock for lock in _LOCKS if not (lock.reentrant and lock.thread == self.thread)]
        owners = {lock.thread for lock in others if not self._objects.keys().isdisjoint(lock._objects)}
        return owners.union(*(_AWAITED_LOCKS[owner].owners() for owner in owners if owner in _AWAITED_LOCKS))


def threads_counting(module: nn.Module) -> set[int]:
    """Return the threads that are counting a module, or a model that contains the module.

    A profiler's hooks should ignore the calls of these threads.
    """
    locks = [*_LOCKS]
    return {lock.thread for lock in locks if not lock.reentrant and id(module) in lock._objects} if locks else set()


_LOCKS: list[_Lock] = []
_AWAITED_LOCKS: dict[int, _Lock] = {}
"""For each waiting thread, the lock that it waits for."""
_LOCKS_CHANGED = threading.Condition()


@contextmanager
def locked(objects: Iterable[Any], reentrant: bool = False) -> Iterator[bool]:
    """Wait until no thread has locked any of these objects, then lock the objects. Yields True if this thread has other locks.

    Raises InputError if waiting would be a deadlock: this thread has locked one of the objects itself, or the thread that has locked an
    object waits for this thread.
    """
    lock = _Lock(objects, reentrant)
    with _LOCKS_CHANGED:
        try:
            while owners := lock.owners():
                if lock.thread in owners:
                    raise InputError(
                        "counting here would deadlock: this model is already being counted, by this forward or in another thread; "
                        "count it outside this forward"
                    )
                _AWAITED_LOCKS[lock.thread] = lock
                _LOCKS_CHANGED.wait()
        finally:
            _AWAITED_LOCKS.pop(lock.thread, None)
        is_nested = any(other.thread == lock.thread for other in _LOCKS)
        _LOCKS.append(lock)
    try:
        yield is_nested
    finally:
        with _LOCKS_CHANGED:
            _LOCKS.remove(lock)
            _LOCKS_CHANGED.notify_all()


def random_states_before() -> list[tuple[Generator, Any]]:
    """Return the states that the random generators had before this thread's count and before all counts in other threads that overlap with it."""
    with _LOCKS_CHANGED:
        own = [lock for lock in _LOCKS if lock.thread == threading.get_ident()]
        others = [lock.random for lock in _LOCKS if lock.random is not None and lock not in own]
        states = others[0] if others and len(own) == 1 else global_states()
        for lock in own[-1:]:
            lock.random = states
        return states
