"""Snapshots that restore the user's model, inputs and random generators."""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, compress, filterfalse, islice
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from ..records.containers import SEQUENCES, items_of, pairs_of
from ..records.tensors import is_dense
from ..torch_internals import (
    DisableTorchFunction,
    attributes_of_script,
    cached_weights,
    disable_current_modes,
    set_attribute_of_script,
)
from .generators import generator_of
from .hidden import hidden_from_modes
from .locks import random_states_before
from .outside import CachedFunction, Outside, holds_tensors
from .pytree import (
    OPAQUE,
    VALUES,
    Reader,
    attributes_in,
    is_object,
    reader_of,
    stored,
    tensors_in,
    value_at,
    vars_of,
    walk,
)
from .reach import places_in, set_at
from .shards import reshard
from .tensor_state import TensorState

ATOMS = frozenset({
    int, float, bool, str, bytes, complex, type(None), torch.Size, torch.dtype, torch.device, type, FunctionType,
    BuiltinFunctionType,
})  # fmt: skip
BUILTINS = frozenset({tuple, list, dict, set})
FUNCTIONS = frozenset({FunctionType, CachedFunction})
CONTAINERS = frozenset({dict, OrderedDict, list, set})
KEPT = (dict, list, set, deque, bytearray)
DEPTH = 4
"""A snapshot saves at most this many levels of objects and containers below a module: a scheduler's tables, not a trainer's datasets."""
LARGEST_ARRAY = 2**26
"""Arrays with more bytes that are only reachable through other objects are not saved: a noise table is saved, a dataset is not."""


class Snapshot:
    """The state of a model and its inputs at the time of the snapshot. :meth:`rewind` restores this state, any number of times.

    The snapshot saves the class and attributes of every module, a few levels deep, and the inputs. The saved state includes all containers,
    objects, arrays, random generators and tensors in them. The snapshot also saves the attributes of the modules' classes, the globals of
    their files, and the states of the global generators.

    The bytes of a parameter are copied only when it is passed to :meth:`before_write`. :meth:`before_write` is called before a call writes
    to the parameter's memory or shares this memory. With ``copies_on_write`` this applies to all tensors, until :meth:`keep_all`.

    ``objects`` and ``reachable`` are further objects whose attributes and items are restored, but not the objects below them. Tensors in
    ``reachable`` are restored if a call writes to them, tensors in ``objects`` are not.
    """

    @hidden_from_modes
    def __init__(
        self,
        modules: Iterable[nn.Module],
        inputs: Any,
        copies_on_write: bool = False,
        objects: Iterable[Any] = (),
        reachable: Iterable[Any] = (),
    ) -> None:
        # Flat lists for speed: a single pass compares all attributes, and the garbage collector visits few objects.
        self._modules = [*modules]
        self._classes = [*map(type, self._modules)]
        self._dicts: list[dict[str, Any]] = []
        self._containers: list[Any] = []
        self._scripts: list[tuple[nn.Module, dict[str, Any]]] = []
        hooks: list[dict[Any, Any]] = []
        sets: list[set[str]] = []
        reachable = [*reachable]
        attribute_values: list[Any] = []  # values of the attributes that nn.Module itself does not have
        parameters: list[nn.Parameter | None] = []
        tensors: list[torch.Tensor | None] = []
        for module in self._modules:
            attributes = module.__dict__
            read_registries, read_hooks, read_rest = _readers_of(tuple(attributes))
            registries = read_registries(attributes)
            if len(registries) == len(REGISTRIES) and type(registries[0]) in CONTAINERS:
                self._dicts += registries[:3]
                sets += registries[3:]
                hooks += read_hooks(attributes)
                parameters += registries[0].values()
                tensors += registries[1].values()
            else:  # a TorchScript module
                parameters += module._parameters.values()
                tensors += module._buffers.values()
                self._scripts.append((module, attributes_of_script(module)))
                tensors += tensors_in([*self._scripts[-1][1].values()])
            self._dicts.append(attributes)
            attribute_values += read_rest(attributes)
        own_parameters = {id(parameter): parameter for parameter in parameters if parameter is not None}
        tensor_attributes = [*map(vars, own_parameters.values())]  # attributes that users set on parameters
        if any(tensor_attributes):
            attribute_values += chain.from_iterable(map(VALUES, tensor_attributes))
        searched = [value for value in attribute_values if type(value) not in ATOMS]
        searched.append(cached_weights())
        are_plain = _are_plain(searched)
        self._arrays: list[tuple[Any, Any]] = []
        self._random = random_states_before()  # from the lock on the model, which saved the states before this run
        self._places: list[tuple[Any, Any, Any]] = []
        to_walk = [*compress(searched, map(operator.not_, are_plain))]
        for part in (*_parts(to_walk, DEPTH), *_parts(inputs)):
            kind = type(part)
            if kind in BUILTINS:  # have no attributes or slots
                if kind is not tuple:
                    self._containers.append(part)
                continue
            if issubclass(kind, torch.Tensor):
                tensors.append(part)
            elif issubclass(kind, KEPT):
                self._containers.append(part)
            elif generator := generator_of(part):
                self._random.append((generator, generator.get()))
            elif _is_array(part):
                self._arrays.append((part, part.copy()))
            if (object_attributes := attributes_to_keep(part)) is not None:
                self._dicts.append(object_attributes)
            if not issubclass(kind, torch.Tensor):
                self._places += [(place, part, value_at(place, part)) for place in places_in(part)]
        self._containers += [value for value in compress(searched, are_plain) if type(value) is list]
        for further in (*objects, *reachable):
            if issubclass(type(further), KEPT):
                self._containers.append(further)
            elif generator := generator_of(further):
                self._random.append((generator, generator.get()))
            elif _is_array(further) and further.nbytes <= LARGEST_ARRAY:
                self._arrays.append((further, further.copy()))
            self._places += [(place, further, value_at(place, further)) for place in places_in(further)]
        functions: list[Any] = []
        if not FUNCTIONS.isdisjoint(map(type, attribute_values)):  # nearly no model has functions in attributes
            functions = [value for value in attribute_values if type(value) in FUNCTIONS]
        functions += [hook for registered in hooks for hook in _user_hooks(registered).values()] if any(hooks) else []
        self._outside = Outside({*self._classes}, functions)
        self._outside.tensors += [each for each in reachable if issubclass(type(each), torch.Tensor)]
        self._random += [(generator, generator.get()) for generator in self._outside.generators]
        self._outside_storages: set[int] | None = None
        self._outside_containers = [(container, _copied(container)) for container in self._outside.containers]
        all_tensors = [tensor for tensor in tensors if tensor is not None]
        tensor_attributes += map(vars, all_tensors)
        self._containers += filter(None, (*sets, *tensor_attributes))
        # Most of these containers stay empty, which a single any() checks.
        self._empty: list[Any] = [*filterfalse(None, (*sets, *tensor_attributes))]
        self._sizes = [*map(len, self._dicts)]
        self._keys: list[str] = [*chain.from_iterable(self._dicts)]
        self._values: list[Any] = [*chain.from_iterable(map(VALUES, self._dicts))]
        self._copies = [*map(_copied, self._containers)]
        self._hooks = [(registered, _user_hooks(registered)) for registered in hooks] if any(hooks) else []
        self._hookless = [] if self._hooks else hooks
        self._other_tensors = dict(zip(map(id, all_tensors), all_tensors, strict=True))
        for key in own_parameters.keys() & self._other_tensors.keys():
            del self._other_tensors[key]
        self._tensors = TensorState([*own_parameters.values(), *self._other_tensors.values()])
        self._own_tensors = own_parameters.keys() | self._other_tensors.keys()
        self._stepped: dict[int, tuple[Any, Snapshot]] = {}
        if not copies_on_write:
            self.keep_all()

    def keep_all(self) -> None:
        """Copy all tensors except parameters. Call this before a run that may write to tensors without :meth:`before_write`."""
        self._tensors.keep(self._other_tensors.values())

    def saves(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor belongs to the saved state and is not a parameter. Such a tensor may be a buffer, an input or a tensor in
        an attribute. :meth:`was_there` is for tensors outside the model and its inputs, e.g. in closures and globals."""
        return id(tensor) in self._other_tensors

    def other_tensors(self) -> list[torch.Tensor]:
        """Return the tensors for which :meth:`saves` is True."""
        return [*self._other_tensors.values()]

    def before_write(self, value: Any, is_new: Callable[[torch.Tensor], bool] = lambda tensor: True) -> None:
        """Copy the tensors in ``value``, including parameters, before a call writes to them or shares their memory.

        If a tensor is outside the model and its inputs, ``is_new(tensor)`` says whether the run created the tensor. If the run did not
        create such a tensor, the tensor is copied and restored only if it existed at the time of the snapshot (:meth:`was_there`). For
        example, a tensor that was loaded from a file during the run was not created by the run, but did not exist at the time of the
        snapshot.
        """
        self._tensors.before_write(value, lambda tensor: is_new(tensor) or not self.was_there(tensor))

    def was_there(self, tensor: torch.Tensor) -> bool:
        """Return whether a closure, a global or a class already used this tensor's memory at the time of the snapshot. For the tensors of the
        model and its inputs, see :meth:`saves`."""
        if self._outside_storages is None:
            with DisableTorchFunction(), disable_current_modes():
                parts = [part for each in self._outside.tensors for part in stored(each) if is_dense(part)]
                self._outside_storages = {part.untyped_storage()._cdata for part in parts}
        return any(
            is_dense(part) and part.untyped_storage()._cdata in self._outside_storages for part in stored(tensor)
        )

    def remember_layouts(self, tensors: Collection[torch.Tensor]) -> None:
        """Save the storage, shape and strides of these tensors now. Without this call, they are saved before the first write to any tensor."""
        self._tensors.remember_layouts(tensors)

    def meet_leaf(self, tensor: torch.Tensor) -> None:
        """Save and clear the gradient of a leaf tensor that the run uses but that does not belong to the model."""
        self._tensors.meet_leaf(tensor)

    def begin_backward(self) -> None:
        """Drop the gradients of the tensors that earlier runs passed to :meth:`meet_leaf`."""
        self._tensors.begin_backward()

    def before_optimizer_step(self, optimizer: Any, holders: Iterable[Any]) -> None:
        """Save an optimizer before its first step inside a run. ``holders`` are the objects that are reachable from the optimizer.

        Parameter hooks may step optimizers that the model does not reference.
        """
        if id(optimizer) in self._stepped:
            return
        holders = [*holders]
        with DisableTorchFunction(), disable_current_modes():
            tensors = [holder for holder in holders if isinstance(holder, torch.Tensor)]
            state = [tensor for tensor in tensors if id(tensor) not in self._own_tensors]
            self._stepped[id(optimizer)] = optimizer, Snapshot((), state, objects=holders)

    @hidden_from_modes
    def rewind(self) -> None:
        """Restore the state at the time of the snapshot."""
        for _, stepped in self._stepped.values():
            stepped.rewind()
        reshard(self._modules)
        if self._classes != [*map(type, self._modules)]:
            for module, cls in zip(self._modules, self._classes, strict=True):
                module.__class__ = cls
        values = chain.from_iterable(map(VALUES, self._dicts))
        if (
            self._sizes != [*map(len, self._dicts)]
            or self._keys != [*chain.from_iterable(self._dicts)]
            or not all(map(operator.is_, values, self._values))
        ):
            self._refill_dicts()
        for container, items in zip(self._containers, self._copies, strict=True):
            if not _has_items(container, items):
                _refill(container, items)
        for script, before in self._scripts:
            for name, value in attributes_of_script(script).items():
                if not _is_same_value(value, before[name]):
                    set_attribute_of_script(script, name, before[name])
        for container in self._empty if any(self._empty) else ():
            container.clear()
        self._outside.restore()
        for container, items in self._outside_containers:
            if not _has_items(container, items) and holds_tensors(container):
                _refill(container, items)
        for place, owner, value in self._places:
            if value_at(place, owner) is not value:
                set_at(place, owner, value)
        added = [(hooks, dict[Any, Any]()) for hooks in self._hookless] if any(self._hookless) else []
        for hooks, user_hooks in (*self._hooks, *added):
            if not _has_items(present := _user_hooks(hooks), user_hooks):
                for key in present:
                    del hooks[key]
                hooks.update(user_hooks)
        self._tensors.rewind()
        for array, copy in self._arrays:
            _restore_array(array, copy)
        for generator, state in self._random:
            generator.set(state)

    def _refill_dicts(self) -> None:
        items = zip(self._keys, self._values, strict=True)
        for container, size in zip(self._dicts, self._sizes, strict=True):
            before = dict(islice(items, size))
            if not _has_items(container, before):
                _refill(container, before)


def _is_same_value(value: Any, before: Any) -> bool:
    """Return whether a value of a scripted module is unchanged. Tensors and objects must be the same object; numbers and strings must be equal."""
    if type(value) is not type(before):
        return False
    if type(value) in (list, tuple):
        return len(value) == len(before) and all(map(_is_same_value, value, before))
    if type(value) is dict:
        return [*value] == [*before] and all(map(_is_same_value, value.values(), before.values()))
    return value is before or (type(value) in ATOMS and bool(value == before))


def _user_hooks(hooks: dict[Any, Any]) -> dict[Any, Any]:
    """Return the user's hooks. The keys of the user's hooks are numbers; fxflops's own hooks, also in other threads, have other keys."""
    return {key: hook for key, hook in [*hooks.items()] if isinstance(key, int)}


@lru_cache(maxsize=1000)
def _readers_of(names: tuple[str, ...]) -> list[Reader]:
    """For modules with these attribute names, return three readers: one for tensors and modules, one for hooks, and one for all other attributes."""
    present = set(names)
    registries, hooks = ([name for name in group if name in present] for group in (REGISTRIES, HOOKS))
    rest = [name for name in names if name not in STANDARD]
    return [*map(reader_of, (registries, hooks, rest))]


def _are_plain(values: Iterable[Any]) -> list[bool]:
    """Return for each value whether it is a tuple or list of immutable values. Large models have thousands of values."""
    return [type(value) in (tuple, list) and ATOMS.issuperset(map(type, value)) for value in values]


REGISTRIES = "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"
HOOKS = [name for name, value in vars(nn.Module()).items() if type(value) in CONTAINERS and name not in REGISTRIES]
STANDARD = {*REGISTRIES, *HOOKS}


def _has_items(container: Any, items: Any) -> bool:
    """Return whether a container has exactly these items. Items are compared by identity, since ``==`` on tensors is elementwise."""
    kind = type(container)
    if issubclass(kind, dict):
        now, before = pairs_of(container), pairs_of(items)
        return len(now) == len(before) and all(
            key is old and new is value for (key, new), (old, value) in zip(now, before, strict=True)
        )
    if issubclass(kind, set):
        return {*map(id, items_of(container))} == {*map(id, items)}
    if kind is bytearray:
        return bool(container == items)
    now = items_of(container)
    return len(now) == len(items) and all(map(operator.is_, now, items))


def _copied(container: Any) -> Any:
    """Return a copy of a container as a plain Python container."""
    kind = type(container)
    if kind in CONTAINERS or kind is bytearray:
        return container.copy()
    return dict(pairs_of(container)) if issubclass(kind, dict) else items_of(container)


def _refill(container: Any, items: Any) -> None:
    """Restore the items of a container. Containers other than a deque are never empty meanwhile, since other threads may read them."""
    kind = type(container)
    base: Any = next(base for base in (OrderedDict, *KEPT) if issubclass(kind, base))
    if base in (list, bytearray):
        base.__setitem__(container, slice(None), items)
    elif base is deque:
        base.clear(container)
        base.extend(container, items)
    elif base is set:
        base.intersection_update(container, items)
        base.update(container, items)
    else:
        for key in [key for key in base.__iter__(container) if not dict.__contains__(items, key)]:
            base.__delitem__(container, key)
        for key, value in pairs_of(items):
            base.__setitem__(container, key, value)
        for key, value in pairs_of(items) if [*base.__iter__(container)] != [*items] else ():  # restore the order
            base.__delitem__(container, key)
            base.__setitem__(container, key, value)


def _parts(value: Any, depth: int = 1000) -> Iterator[Any]:
    """Yield all parts of a value. If a user's class is a subclass of a container, its attributes are also parts."""
    for _, part in walk(value, depth):
        yield part
        if type(part) in BUILTINS:
            continue
        if issubclass(type(part), (*SEQUENCES, dict)) and is_object(part):
            yield from (inner for _, inner in walk(vars_of(part), depth))
        elif 0 < depth <= DEPTH and callable(part) and (contents := contents_of_callable(part)):
            yield from _parts(contents, depth - 1)


def contents_of_callable(value: Any) -> list[Any]:
    """Return a callable object's direct contents: its attributes, the object of a method, or the function and arguments of a
    ``functools.partial``. Functions and torch's own objects have no such contents."""
    kind = type(value)
    if issubclass(kind, partial):
        return [value.func, value.args, value.keywords]
    if kind is MethodType:
        return [] if issubclass(type(value.__self__), nn.Module) else [value.__self__]
    attributes = attributes_to_keep(value)
    return [] if attributes is None else [*attributes.values()]


def attributes_to_keep(value: Any) -> dict[str, Any] | None:
    """Return the ``__dict__`` of a user's object, which may be callable; None for any other value."""
    if is_object(value):
        return vars_of(value)
    kind = type(value)
    is_plain = kind in (FunctionType, BuiltinFunctionType, MethodType) or issubclass(kind, (*OPAQUE, partial))
    return None if is_plain or str(kind.__module__).startswith("torch.") else attributes_in(value)


def attribute_tensors(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Return the tensors in plain attributes of modules. Nested values are searched as deeply as in a :class:`Snapshot`."""
    values: list[Any] = []
    for module in modules:
        attributes = vars(module).copy()  # another thread that counts the module may remove its own attribute meanwhile
        *_, read_rest = _readers_of(tuple(attributes))
        values += read_rest(attributes)
    searched = [value for value in values if type(value) not in ATOMS]
    to_walk = [*compress(searched, map(operator.not_, _are_plain(searched)))]
    return [part for part in _parts(to_walk, DEPTH) if issubclass(type(part), torch.Tensor)]


def _is_array(value: Any) -> bool:
    """Return whether a value is a writable numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), numpy.ndarray) and value.flags.writeable


def _restore_array(array: Any, copy: Any) -> None:
    if array.shape != copy.shape:
        array.resize(copy.shape, refcheck=False)
    if array.tobytes() != copy.tobytes():
        array[...] = copy
