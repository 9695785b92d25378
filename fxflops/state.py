"""Leaving no trace: the user's model, inputs and random generators, as they were; one count of a model at a time."""

from __future__ import annotations

import copy
import operator
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, filterfalse, islice
from operator import methodcaller
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import InputError
from .records import has_values, is_dense
from .structure import Reader, is_object, reader_of, tensors_given, walk
from .torch_internals import disable_current_modes

ATOMS = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        torch.Size,
        torch.dtype,
        torch.device,
        type,
        FunctionType,
        BuiltinFunctionType,
    }
)
CONTAINERS = frozenset({dict, OrderedDict, list, set})
DEPTH = 4
"""How many levels of objects and containers below a module are kept: a scheduler's tables, not a trainer's datasets."""


class Snapshot:
    """A model and its inputs as they are now; :meth:`rewind` brings them back, any number of times.

    Kept are every module's attributes, a few levels deep, and the inputs, with the containers, objects and tensors they
    consist of, and the states of the random generators. A parameter is copied only when :meth:`before_write` announces that a
    call is about to write to its storage; with ``lazy`` so is any tensor, until :meth:`keep_all`.
    """

    def __init__(self, modules: Iterable[nn.Module], inputs: Any, lazy: bool = False) -> None:
        # In flat lists: one comparison goes through all that modules hold, and Python's garbage collector through nothing.
        self._dicts: list[dict[str, Any]] = []
        self._containers: list[Any] = []
        hooks: list[dict[Any, Any]] = []
        sets: list[set[str]] = []
        others: list[Any] = []
        parameters: list[nn.Parameter | None] = []
        tensors: list[torch.Tensor | None] = []
        readers: dict[tuple[str, ...], list[Reader]] = {}
        for module in modules:
            attributes = module.__dict__
            names = tuple(attributes)
            known = readers.get(names)
            if known is None:
                known = readers[names] = _readers_of(names)
            read_own, read_sets, read_hooks, read_others = known
            own = read_own(attributes)
            if own and type(own[0]) in CONTAINERS:
                self._dicts += own
                sets += read_sets(attributes)
                hooks += read_hooks(attributes)
                parameters += own[0].values()
                tensors += own[1].values()
            else:  # TorchScript's
                parameters += module._parameters.values()
                tensors += module._buffers.values()
            self._dicts.append(attributes)
            others += read_others(attributes)
        own_parameters = {id(parameter): parameter for parameter in parameters if parameter is not None}
        held = [value for value in others if type(value) not in ATOMS]
        for _, part in (*walk([value for value in held if not _is_plain(value)], DEPTH), *walk(inputs)):
            if isinstance(part, torch.Tensor) and id(part) not in own_parameters:
                tensors.append(part)
            if isinstance(part, (dict, list, set)):
                self._containers.append(part)
            if is_object(part):
                self._dicts.append(vars(part))
        self._containers += [
            *filter(None, sets),
            *(value for value in held if type(value) is list and _is_plain(value)),
        ]
        self._empty = [*filterfalse(None, sets)]
        self._sizes, self._keys, self._values = _contents(self._dicts)
        self._copies = [c.copy() if type(c) in CONTAINERS else copy.copy(c) for c in self._containers]
        self._hooks = [(part, _users(part)) for part in hooks] if any(hooks) else []
        self._hookless = [] if self._hooks else hooks
        self._tensors = [tensor for tensor in tensors if tensor is not None]
        self._parameters = list(own_parameters.values())
        self._addresses: dict[int, torch.Tensor] | None = None
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._leaves = [tensor for tensor in (*self._parameters, *self._tensors) if tensor.is_leaf]
        self._gradients = [tensor.grad for tensor in self._leaves]
        self._random = _states_before()
        if not lazy:
            self.keep_all()

    def keep_all(self) -> None:
        """Copy everything but the parameters: something is to be run that announces nothing."""
        with disable_current_modes():  # under a fake tensor mode copies would have no values
            for tensor in self._tensors:
                if id(tensor) not in self._saved:
                    self._saved[id(tensor)] = (tensor, _keep(tensor))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was there, if not among the parameters: a buffer, an input, what the model had cached."""
        return any(tensor is known for known in self._tensors)

    def before_write(self, value: Any) -> None:
        """Copy each tensor, parameters too, whose storage one of these shares: it is about to be written to."""
        for tensor in tensors_given(value):
            if tensor.layout is not torch.strided or not has_values(tensor):
                continue
            if self._addresses is None:
                known = [t for t in (*self._tensors, *self._parameters) if is_dense(t) and has_values(t)]
                self._addresses = {_address(t): t for t in known}
            owner = self._addresses.get(_address(tensor))
            if owner is None:
                continue
            if id(owner) not in self._saved:
                with disable_current_modes():
                    self._saved[id(owner)] = (owner, _keep(owner))

    def rewind(self) -> None:
        """Bring everything back to how it was when the snapshot was taken."""
        sizes, keys, values = _contents(self._dicts)
        if sizes != self._sizes or keys != self._keys or not all(map(operator.is_, values, self._values)):
            self._refill_dicts()
        for container, items in zip(self._containers, self._copies, strict=True):
            if not _same(container, items):
                _refill(container, items)
        for container in self._empty if any(self._empty) else ():
            container.clear()
        added = [(hooks, dict[Any, Any]()) for hooks in self._hookless] if any(self._hookless) else []
        for hooks, users in (*self._hooks, *added):
            if not _same(now := _users(hooks), users):
                for key in now:
                    del hooks[key]
                hooks.update(users)
        for tensor, gradient in zip(self._leaves, self._gradients, strict=True):
            if tensor.grad is not gradient:
                tensor.grad = gradient
        with disable_current_modes(), torch.no_grad():
            for tensor, kept in self._saved.values():
                _bring_back(tensor, kept)
        for generator, state in self._random:
            generator.set(state)

    def _refill_dicts(self) -> None:
        items = zip(self._keys, self._values, strict=True)
        for container, size in zip(self._dicts, self._sizes, strict=True):
            before = dict(islice(items, size))
            if not _same(container, before):
                _refill(container, before)


@contextmanager
def holding(modules: Iterable[nn.Module], mode: str, reentrant: bool = False) -> Iterator[bool]:
    """All modules of a model, held by this thread, in ``mode`` ("eval", "train", "as_is"): flags are set without calling
    ``.eval()``, and restored. True where the thread holds another model: its forward is running. With ``reentrant`` it may
    hold these anew meanwhile."""
    modules, wanted = [*modules], mode == "train"
    parameters = [parameter for module in modules for parameter in module._parameters.values()]
    with locked([*modules, *parameters], reentrant) as within:
        before = [] if mode == "as_is" else [module for module in modules if module.training is not wanted]
        flags = [module.training for module in before]
        try:
            for module in before:
                module.training = wanted
            yield within
        finally:
            for module, flag in zip(before, flags, strict=True):
                module.training = flag


class _Lock:
    """What a thread locks, by ``id()``; ``random`` are the states of the random generators at its first snapshot."""

    def __init__(self, objects: Iterable[Any], reentrant: bool) -> None:
        self.thread = threading.get_ident()
        self.reentrant = reentrant
        self.random: list[tuple[Generator, Any]] | None = None
        self._objects = {id(each): each for each in objects if each is not None}

    def owners(self) -> set[int]:
        """The threads that hold some of it, and those that they wait for."""
        others = [lock for lock in _HELD if not (lock.reentrant and lock.thread == self.thread)]
        owners = {lock.thread for lock in others if not self._objects.keys().isdisjoint(lock._objects)}
        return owners.union(*(_AWAITED[owner].owners() for owner in owners if owner in _AWAITED))


_HELD: list[_Lock] = []
_AWAITED: dict[int, _Lock] = {}
"""What each thread that waits is waiting for."""
_RELEASED = threading.Condition()


@contextmanager
def locked(objects: Iterable[Any], reentrant: bool = False) -> Iterator[bool]:
    """Wait until no thread holds any of these objects, and hold them. True where this thread holds others.

    Raises InputError in a thread that would wait for itself: it holds one of them, or who holds one waits for it.
    """
    lock = _Lock(objects, reentrant)
    with _RELEASED:
        try:
            while owners := lock.owners():
                if lock.thread in owners:
                    raise InputError(
                        "the count of this model would wait for itself: a forward that is counted cannot count its own model, "
                        "or a part of it; nor two forwards, in two threads, each the model of the other"
                    )
                _AWAITED[lock.thread] = lock
                _RELEASED.wait()
        finally:
            _AWAITED.pop(lock.thread, None)
        within = any(other.thread == lock.thread for other in _HELD)
        _HELD.append(lock)
    try:
        yield within
    finally:
        with _RELEASED:
            _HELD.remove(lock)
            _RELEASED.notify_all()


def _users(hooks: dict[Any, Any]) -> dict[Any, Any]:
    """The hooks that the user registered, under numbers. Those under other keys are of observers, of other threads too."""
    return {key: hook for key, hook in [*hooks.items()] if isinstance(key, int)}


def _readers_of(names: tuple[str, ...]) -> list[Reader]:
    """What reads, of a module whose attributes have these names, its own tensors and modules, its set, its hooks, and all
    others."""
    held = set(names)
    others = [name for name in names if name not in STANDARD]
    return [*(reader_of([name for name in group if name in held]) for group in (OWN, SETS, HOOKS)), reader_of(others)]


def _contents(dicts: Iterable[dict[str, Any]]) -> tuple[list[int], list[str], list[Any]]:
    """Their sizes, all keys and all values of these."""
    return [*map(len, dicts)], [*chain.from_iterable(dicts)], [*chain.from_iterable(map(VALUES, dicts))]


def _is_plain(value: Any) -> bool:
    """Whether a tuple or list holds nothing that could change."""
    return type(value) in (tuple, list) and ATOMS.issuperset(map(type, value))


VALUES = methodcaller("values")
OWN, SETS = ("_parameters", "_buffers", "_modules"), ("_non_persistent_buffers_set",)
HOOKS = [name for name, value in vars(nn.Module()).items() if type(value) in CONTAINERS and name not in OWN + SETS]
STANDARD = {*OWN, *SETS, *HOOKS}


def _same(container: Any, items: Any) -> bool:
    """Equal in order and by identity of the elements (comparing tensors by value would be no answer)."""
    if isinstance(container, dict):
        return [*container] == [*items] and all(map(operator.is_, container.values(), items.values()))
    if isinstance(container, set):
        return bool(container == items)
    return len(container) == len(items) and all(map(operator.is_, container, items))


def _refill(container: Any, items: Any) -> None:
    """Bring a container back to these items, without a moment when it lacks one: other threads may look at the model."""
    if isinstance(container, list):
        container[:] = items
    elif isinstance(container, set):
        container.intersection_update(items)
        container.update(items)
    else:
        for key in [key for key in container if key not in items]:
            del container[key]
        container.update(items)
        for key in items if [*container] != [*items] else ():
            container[key] = container.pop(key)


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, so that the device's memory reads as without it."""
    if not has_values(tensor) or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().to("cpu", copy=True)


def _bring_back(tensor: torch.Tensor, kept: torch.Tensor) -> None:
    if kept is not tensor and (tensor.shape != kept.shape or not torch.equal(tensor.detach().to("cpu"), kept)):
        tensor.data.copy_(kept)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Generator(NamedTuple):
    """How the state of a random generator is read and written."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def _states_before() -> list[tuple[Generator, Any]]:
    """The states of the random generators before this thread's count, and before those of other threads that are under way."""
    with _RELEASED:
        own = [lock for lock in _HELD if lock.thread == threading.get_ident()]
        others = [lock.random for lock in _HELD if lock.random is not None and lock not in own]
        states = others[0] if others and len(own) == 1 else _random_states()
        for lock in own[-1:]:
            lock.random = states
        return states


def _random_states() -> list[tuple[Generator, Any]]:
    generators = [Generator(torch.get_rng_state, torch.set_rng_state), Generator(random.getstate, random.setstate)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators.append(Generator(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        generators.append(Generator(numpy.get_state, numpy.set_state))
    return [(generator, generator.get()) for generator in generators]
