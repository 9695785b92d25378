"""Read the items of Python's containers. A subclass may override the methods for this, so the methods of Python's own classes are called."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import MappingProxyType
from typing import Any

SEQUENCES = tuple, list, deque
SETS = set, frozenset
MAPPINGS = dict, MappingProxyType


def items_of(value: Any) -> list[Any]:
    """Return the items of a tuple, list, deque or set, even if a subclass overrides ``__iter__``."""
    kind = type(value)
    return [*next(base for base in SEQUENCES + SETS if issubclass(kind, base)).__iter__(value)]


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict, even if a subclass overrides ``items``."""
    kind = type(value)
    if kind is dict:
        return [*value.items()]
    base: Any = next(base for base in (OrderedDict, *MAPPINGS) if issubclass(kind, base))
    return [*base.items(value)]
