"""Find everything that is reachable from an object, e.g. an optimizer, without running the object's code."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..records.containers import MAPPINGS, SEQUENCES, SETS, items_of, pairs_of
from .pytree import NOTHING, Place, attributes_in, slots_in, value_at

ENDS = ModuleType, type, logging.Logger, Dataset, DataLoader
"""The search does not look into objects of these classes, since their contents do not belong to the root of the search."""
PLAIN_TENSORS = torch.Tensor, nn.Parameter, nn.Buffer
DEPTH = 12
LONGEST = 2**17
"""Containers with more items than this are not searched. Parameter states are smaller; datasets may be larger."""
CELL = vars(CellType)["cell_contents"]


class Variable:
    """A global variable of a file. ``content`` is the variable's value, like the ``cell_contents`` of a closure cell."""

    def __init__(self, file_globals: dict[str, Any], name: str) -> None:
        self._file_globals = file_globals
        self._name = name

    @property
    def content(self) -> Any:
        try:
            return self._file_globals[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    @content.setter
    def content(self, value: Any) -> None:
        self._file_globals[self._name] = value

    @content.deleter
    def content(self) -> None:
        self._file_globals.pop(self._name, None)


CONTENT: Any = vars(Variable)["content"]


def reached(root: Any, into_modules: bool = True) -> list[tuple[str, Any]]:
    """Return all objects that are reachable through attributes, slots, items, keys, closures and arguments of partial functions.

    Each object is paired with the name of the last attribute or key that leads to it. The root comes first, and there are no
    duplicates.
    """
    by_id: dict[int, tuple[str, Any]] = {}
    queue = deque([("", root, 0)])
    while queue:
        name, value, depth = queue.popleft()
        if id(value) in by_id or issubclass(type(value), (str, bytes, int, float, complex, type(None))):
            continue
        by_id[id(value)] = name, value
        if depth < DEPTH and (into_modules or not issubclass(type(value), nn.Module)):
            queue.extend((inner_name or name, inner, depth + 1) for inner_name, inner in _inner(value))
    return [*by_id.values()]


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's direct contents, each with its attribute name or string key. Contents without a name or string key get ""."""
    kind = type(value)
    if issubclass(kind, ENDS) or is_torchs_subclass(kind):
        return
    if issubclass(kind, MAPPINGS):
        pairs = pairs_of(value) if dict.__len__(value) <= LONGEST else () if issubclass(kind, dict) else pairs_of(value)
        for key, item in pairs:
            yield "", key
            yield key if type(key) is str else "", item
    elif issubclass(kind, SEQUENCES + SETS):
        items = items_of(value)
        yield from (("", item) for item in (items if len(items) <= LONGEST else ()))
    elif kind is FunctionType:
        yield from (("", content) for content in (*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__))
    elif kind is MethodType:
        yield from (("", content) for content in (value.__self__, value.__func__))
    elif issubclass(kind, partial):
        yield from (("", vars(partial)[name].__get__(value)) for name in ("func", "args", "keywords"))
    if (attributes := attributes_in(value)) is not None:
        yield "", attributes
    for place in places_in(value):
        yield place.__name__, value_at(place, value)


def is_torchs_subclass(kind: type) -> bool:
    """Return whether a class is a tensor subclass of torch, e.g. DTensor or FakeTensor, whose attributes are parts of the tensor."""
    return issubclass(kind, torch.Tensor) and kind not in PLAIN_TENSORS and kind.__module__.startswith("torch.")


def places_in(value: Any) -> list[Place]:
    """Return descriptors of an object's values outside ``__dict__``: its slots, a closure cell's content, or a global's value."""
    kind = type(value)
    if kind is CellType:
        return [CELL]
    if kind is Variable:
        return [CONTENT]
    return [] if issubclass(kind, (torch.Tensor, *ENDS)) else [*slots_in(kind)]


def set_at(place: Place, owner: Any, value: Any) -> None:
    """Set an owner's slot, a closure's cell or a global variable. The value :data:`NOTHING` deletes it."""
    if value is NOTHING:
        place.__delete__(owner)
    else:
        place.__set__(owner, value)
