"""What a forward may change outside of its model: attributes of classes, globals of its file, variables of closures."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from functools import cache
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

from .reach import CELL, LONGEST, NOTHING, value_at

CONTAINERS = frozenset({dict, list, set})
REBINDS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


class Outside:
    """What the classes of modules, their methods, hooks and the functions of the same files bind, as it is now.

    ``containers`` are lists, dicts and sets that these name, ``cells`` the variables of their closures; it is up to the caller to
    restore what is in them. :meth:`restore` binds names again as they were. Torch's own classes change nothing.
    """

    def __init__(self, classes: Iterable[type], hooks: Iterable[Any] = ()) -> None:
        self.containers: list[Any] = []
        self.cells: list[CellType] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._seen: set[int] = set()
        for cls in {base for each in classes for base in each.__mro__ if issubclass(base, nn.Module)}:
            if not cls.__module__.startswith("torch."):
                self._enter_class(cls)
        for hook in hooks:
            if type(hook) is FunctionType and not hook.__module__.startswith("torch."):
                self._enter_function(hook)
                for cell in hook.__closure__ or ():
                    self._enter_container(value_at(CELL, cell))

    def _enter_class(self, cls: type) -> None:
        self._seen.add(id(cls))
        attributes = dict(vars(cls))
        self._classes.append((cls, attributes))
        for value in attributes.values():
            self._enter_container(value)
            value = value.fget if type(value) is property else getattr(value, "__func__", value)
            if type(value) is FunctionType and value.__module__ == cls.__module__:
                self._enter_function(value)

    def _enter_container(self, value: Any) -> None:
        if type(value) in CONTAINERS and len(value) <= LONGEST and id(value) not in self._seen:
            self._seen.add(id(value))
            self.containers.append(value)

    def _enter_function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        self.cells += function.__closure__ or ()
        bound, (names, rebound) = function.__globals__, _names_of(function.__code__)
        self._globals += [(bound, name, bound.get(name, NOTHING)) for name in rebound]
        for value in [bound[name] for name in names if name in bound]:
            self._enter_container(value)
            if type(value) is FunctionType and value.__globals__ is bound:
                self._enter_function(value)
            elif type(value) is type and id(value) not in self._seen and value.__module__ == bound.get("__name__"):
                self._enter_class(value)

    def restore(self) -> None:
        """Bind the names as they were."""
        for cls, before in self._classes:
            for name in [name for name in vars(cls) if name not in before and not name.startswith("__")]:
                type.__delattr__(cls, name)
            for name, value in before.items():
                if vars(cls).get(name, NOTHING) is not value and not name.startswith("__"):
                    type.__setattr__(cls, name, value)
        for bound, name, value in self._globals:
            if value is NOTHING:
                bound.pop(name, None)
            elif bound.get(name, NOTHING) is not value:
                bound[name] = value


@cache
def _names_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that code uses, of globals or attributes, and the globals that it binds."""
    codes = [*_codes_in(code)]
    rebound = {i.argval for each in codes for i in dis.get_instructions(each) if i.opname in REBINDS}
    return tuple({name for each in codes for name in each.co_names}), tuple(rebound)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _codes_in(constant)
