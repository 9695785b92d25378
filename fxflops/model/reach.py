"""Find everything that an object, e.g. an optimizer, leads to, without running any of its code."""

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
"""Objects where the search ends, since they do not belong to the object that leads to them."""
PLAIN_TENSORS = torch.Tensor, nn.Parameter, nn.Buffer
DEPTH = 12
LONGEST = 2**17
"""The most items of a container that is searched: a parameter's states, not a dataset."""
CELL = vars(CellType)["cell_contents"]


class Variable:
    """A global variable of a file: ``content`` is its value, like a closure cell's ``cell_contents``."""

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
    """Return all objects that an object leads to by attributes, slots, items, keys, closures and arguments of partial functions.

    Each comes once, the root first, with the name of the last attribute or key on the way to it.
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
    """Yield an object's direct contents with their names."""
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
    """Return whether a tensor class is torch's own, e.g. DTensor or FakeTensor, whose attributes are parts of the tensor."""
    return issubclass(kind, torch.Tensor) and kind not in PLAIN_TENSORS and kind.__module__.startswith("torch.")


def places_in(value: Any) -> list[Place]:
    """Return the places outside containers that hold values: an object's slots, a closure cell's content, a global's value."""
    kind = type(value)
    if kind is CellType:
        return [CELL]
    if kind is Variable:
        return [CONTENT]
    return [] if issubclass(kind, (torch.Tensor, *ENDS)) else [*slots_in(kind)]


def set_at(place: Place, owner: Any, value: Any) -> None:
    """Set the content of a place."""
    if value is NOTHING:
        place.__delete__(owner)
    else:
        place.__set__(owner, value)
