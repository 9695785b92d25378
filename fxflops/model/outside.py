"""Restore state that a forward changed outside the model: attributes of classes, globals of the forward's file, closure variables,
and the caches of ``functools.lru_cache``.

Plain values that a forward stores outside the model, e.g. the number of its calls, are not restored. But a meta tensor or an fx proxy that
a forward stores outside the model, e.g. in a cache, would break the model's next real run. So variables and containers with such tensors
are restored. An ``lru_cache`` with such tensors is emptied, because its items cannot be removed one by one, and the cached function can
compute them again.
"""

from __future__ import annotations

import dis
import gc
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from .generators import Generator, generator_of
from .installed import is_installed, is_user_module
from .modules import all_modules
from .pytree import NOTHING, Place, attributes_in, is_object, slots_in, value_at, vars_of, walk
from .reach import CELL, ENDS, LONGEST, set_at

CONTAINERS = dict, list, set, deque
CachedFunction: Any = type(lru_cache(len))
DEPTH = 3
"""The search for tensors goes through at most this many levels of containers and objects."""
FEW = 1000
"""Containers with more items than this are not searched for tensors."""
WITHOUT_TENSORS = frozenset({"torch", "abc", "collections", "contextlib", "dataclasses", "enum", "functools", "typing"})
"""Packages whose functions keep no tensors of a forward outside the model. A user's file may have the name of any other module."""
REBINDS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
REBINDING = frozenset(map(dis.opmap.__getitem__, REBINDS))
PLAIN = frozenset(
    {ModuleType, BuiltinFunctionType, type(None), bool, int, float, str, bytes, torch.dtype, torch.device}
)
"""Common classes of the values that functions use. Such values do not reference other objects."""


class Outside:
    """The current values of class attributes, globals and closure variables that the modules' code can change.

    The search covers the modules' classes, the methods that a forward may call, hooks, functions in the same files, and the functions,
    classes and variables of the user's other files that this code names. A method may be called if the code of a function in the search
    has the method's name, as an attribute or in a string. The search skips torch's own classes, which do not change such values.

    ``tensors`` are the tensors that the search finds, ``containers`` the lists, dicts and sets. :meth:`restore` resets the variables and
    attributes that hold tensors after the run. The caller must restore the items of each container for which :func:`holds_tensors` is
    then True.
    """

    def __init__(self, classes: Iterable[type], hooks: Iterable[Any] = ()) -> None:
        self._kept: dict[int, Any] = {}  # the containers, by id
        self.generators: list[Generator] = []
        self.tensors: list[torch.Tensor] = []
        self._places: list[tuple[Place, Any, Any]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cached: list[tuple[Any, int]] = []  # functions with an lru_cache, and how many results they have computed
        self._empty: list[
            dict[str, Any]
        ] = []  # the empty attribute dicts of functions: nearly all functions have no attributes
        self._names = {"forward"}  # the names of the methods and classes that may be called
        self._uncalled: dict[str, list[Any]] = {}  # other methods, by the name by which code would call them
        self._seen: set[int] = set()
        for cls in {base for module_class in classes for base in module_class.__mro__ if issubclass(base, nn.Module)}:
            if not cls.__module__.startswith("torch."):
                self._enter_class(cls)
        for hook in hooks:
            self._enter_value(hook, DEPTH)

    def _enter_class(self, cls: type) -> None:
        self._seen.add(id(cls))
        attributes = dict(vars(cls))
        self._classes.append((cls, attributes))
        for name, value in attributes.items():
            kind = type(value)
            if kind in PLAIN:
                continue
            if issubclass(kind, CONTAINERS):
                self._enter_container(value)
            elif issubclass(kind, torch.Tensor):
                self.tensors.append(value)
            elif kind is not FunctionType:
                value = value.fget if kind is property else getattr(value, "__func__", value)
            if type(value) is FunctionType or type(value) is CachedFunction:  # also functions defined elsewhere
                # Python calls special methods without their name, and __init__ by the name of the class.
                called_by = cls.__name__ if name == "__init__" else name
                if called_by[:2] == "__" or called_by in self._names:
                    self._enter_value(value, DEPTH)
                else:
                    self._uncalled.setdefault(called_by, []).append(value)

    def _enter_names(self, names: Iterable[str]) -> None:
        """Add the methods with these names to the search."""
        self._names.update(names)
        for name in self._uncalled.keys() & names:
            for method in self._uncalled.pop(name, ()):  # a method may have entered it meanwhile
                self._enter_value(method, DEPTH)

    def _enter_container(self, container: Any) -> None:
        """Add a container to the search, with the containers, objects and tensors in it."""
        if id(container) in self._seen:
            return
        self._seen.add(id(container))
        if len(container) > FEW:
            if len(container) <= LONGEST:
                self._keep(container)
            return
        for _, part in walk(container, DEPTH):
            if issubclass(type(part), torch.Tensor):
                self.tensors.append(part)
            elif issubclass(type(part), CONTAINERS):
                self._keep(part)
            elif is_object(part):
                self._keep(vars_of(part))

    def _keep(self, container: Any) -> None:
        self._kept.setdefault(id(container), container)

    @property
    def containers(self) -> list[Any]:
        return [*self._kept.values()]

    def _enter_users(self, function: FunctionType) -> None:
        """Add a function to the search, unless the function belongs to torch or to Python's library."""
        if str(function.__module__).partition(".")[0] not in WITHOUT_TENSORS:
            self._enter_function(function)

    def _enter_cached(self, function: Any) -> None:
        """Add a function with an ``lru_cache`` to the search."""
        if id(function) not in self._seen:
            self._seen.add(id(function))
            self._cached.append((function, function.cache_info().misses))
            self._enter_value(function.__wrapped__, DEPTH)

    def _enter_function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        contents: list[Any] = [*(function.__defaults__ or ())]
        if attributes := vars(function):
            self._keep(attributes)
            contents += attributes.values()
        else:
            self._empty.append(attributes)
        for cell in function.__closure__ or ():
            content = value_at(CELL, cell)
            self._places.append((CELL, cell, content))
            contents.append(content)
        for content in contents:
            self._enter_value(content, DEPTH)
        file_globals, (names, rebound, words) = function.__globals__, names_of(function.__code__)
        if not words <= self._names:
            self._enter_names(words)
        self._globals += [(file_globals, name, file_globals.get(name, NOTHING)) for name in rebound]
        file_name = file_globals.get("__name__")
        users_files = [file_globals]  # first the function's own file, then the files that it imports
        for variables in users_files:
            for name in [name for name in names if name in variables]:
                value = variables[name]
                kind = type(value)
                if kind is ModuleType:
                    if is_user_module(value) and all(vars(value) is not other for other in users_files):
                        users_files.append(vars(value))
                elif kind in PLAIN:
                    continue
                elif kind is FunctionType:
                    # A function of this file may be decorated by another file; its code is then the decorator's.
                    is_of_file = value.__globals__ is file_globals or value.__module__ == file_name
                    if is_of_file or not is_installed(value.__code__.co_filename):
                        self._enter_function(value)
                elif issubclass(kind, type):
                    if id(value) not in self._seen and (
                        value.__module__ == file_name or is_user_module(value.__module__)
                    ):
                        self._enter_class(value)
                else:
                    self._enter_value(value, DEPTH)
        for variables in users_files[1:]:  # code may assign to a variable of an imported file
            self._globals += [(variables, name, variables[name]) for name in names if name in variables]

    def _enter_value(self, value: Any, depth: int) -> None:
        """Add a value that a function uses to the search: of a global or closure variable, a default argument or an attribute."""
        kind = type(value)
        if kind in PLAIN:
            return
        if issubclass(kind, torch.Tensor):
            self.tensors.append(value)
            return
        if issubclass(kind, nn.Module):  # another model, e.g. in a hook's closure
            module_tensors = [*chain.from_iterable(map(tensors_of, all_modules(value)))]
            self.tensors += module_tensors
            return
        if depth == 0 or issubclass(kind, ENDS) or id(value) in self._seen:
            return
        if generator := generator_of(value):
            self.generators.append(generator)
        elif str(kind.__module__).startswith("torch."):
            return
        elif kind is FunctionType:  # e.g. a decorated function
            self._enter_users(value)
        elif kind is CachedFunction:
            self._enter_cached(value)
        elif kind is MethodType:
            self._enter_value(value.__func__, depth)
            self._enter_value(value.__self__, depth)
        elif issubclass(kind, partial):
            for content in (value.func, *value.args, *value.keywords.values()):
                self._enter_value(content, depth - 1)
        elif issubclass(kind, CONTAINERS):
            self._enter_container(value)
        else:
            attributes, slots = attributes_in(value), slots_in(kind)
            if attributes is None and not slots:
                return
            self._seen.add(id(value))
            self._places += [(slot, value, value_at(slot, value)) for slot in slots]
            if attributes is not None:
                self._enter_container(attributes)
            for content in (*(attributes or {}).values(), *(value_at(slot, value) for slot in slots)):
                self._enter_value(content, depth - 1)

    def restore(self) -> None:
        """Restore variables and attributes that are now unbound, or whose new value is or contains a tensor."""
        for cls, before in self._classes:
            if [*vars(cls)] == [*before] and all(map(operator.is_, vars(cls).values(), before.values())):
                continue
            added = [name for name in vars(cls) if name not in before and not name.startswith("__")]
            for name in [name for name in added if holds_tensors(vars(cls)[name])]:
                type.__delattr__(cls, name)
            for name, value in before.items():
                if not name.startswith("__") and _is_lost(vars(cls).get(name, NOTHING), value):
                    type.__setattr__(cls, name, value)
        for file_globals, name, value in self._globals:
            if _is_lost(file_globals.get(name, NOTHING), value):
                if value is NOTHING:
                    del file_globals[name]
                else:
                    file_globals[name] = value
        for attributes in filter(None, self._empty):
            if holds_tensors(attributes):
                attributes.clear()
        for function, misses in self._cached:
            # The garbage collector knows what a function references: the results in its cache, or a dict of them.
            if function.cache_info().misses != misses and holds_tensors(gc.get_referents(function)):
                function.cache_clear()
        for place, owner, value in self._places:
            if _is_lost(value_at(place, owner), value):
                set_at(place, owner, value)


def holds_tensors(value: Any) -> bool:
    """Return whether a value is or contains a tensor or an fx proxy."""
    return any(issubclass(type(part), (torch.Tensor, fx.Proxy)) for _, part in walk(value, DEPTH))


def _is_lost(now: Any, before: Any) -> bool:
    """Return whether a variable must be restored. A variable must be restored if it is now unbound, or if its new value is or contains a tensor."""
    return now is not before and (now is NOTHING or holds_tensors(now))


class Names(NamedTuple):
    """The names in a function's code.

    ``used`` are names of globals and attributes. ``rebound`` are the globals that the code assigns or deletes. ``words`` are ``used``
    and the code's strings, e.g. in ``getattr(self, "norm")``.
    """

    used: tuple[str, ...]
    rebound: tuple[str, ...]
    words: frozenset[str]


@cache
def names_of(code: CodeType) -> Names:
    """Return the names in code, including the code of nested functions."""
    codes = [*_codes_in(code)]
    # Every second byte is an opcode. Disassembling all code would take a third of the time of a model's first count.
    rebinding = [each for each in codes if not REBINDING.isdisjoint(each.co_code[::2])]
    rebound = {i.argval for each in rebinding for i in dis.get_instructions(each) if i.opname in REBINDS}
    used = {name for each in codes for name in each.co_names}
    strings = {constant for each in codes for constant in each.co_consts if type(constant) is str}
    return Names(tuple(used), tuple(rebound), frozenset(used | strings))


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _codes_in(constant)


def tensors_of(module: nn.Module) -> list[torch.Tensor]:
    """Return a module's own parameters and buffers, without those of its submodules."""
    return [each for each in (*module._parameters.values(), *module._buffers.values()) if each is not None]
