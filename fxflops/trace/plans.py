"""Plans: how the result of a call comes about, by the key of all that it depends on where metadata tells all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..records import ORDINARY, Operation, Spec
from .meta_mirror import OWN, REAL, Form

NEW, SAME, VIEW, NONE = "new", "the first argument", "view", "nothing"
TYPED = frozenset({bool, float, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, type(...)})
"""The plain values that are told apart by their types too."""
BOUNDS = frozenset({int, type(None)})


class Unknown(Exception):
    """What a call puts out follows from more than metadata."""


class Plan:
    """What a call of one kind puts out: new tensors of these ``forms``, its first argument, or views of them that torch makes.

    ``operation`` is what is called, ``spelled`` the same by other spellings of its target; with ``beside`` it takes tensors
    that have values, of which mirrors are to be made; ``moves`` tells that it names a device; ``passing`` are the storages
    that are live at the peak within it.
    """

    __slots__ = ("beside", "forms", "kind", "moves", "operation", "passing", "sequence", "spelled")

    def __init__(
        self, operation: Operation, kind: str, forms: tuple[Form, ...], sequence: Any, given: list[Form]
    ) -> None:
        self.operation = operation
        self.kind = kind
        self.forms = forms
        self.sequence = sequence
        self.spelled: dict[Any, Operation] = {}
        kinds = [form.kind for form in given]
        self.beside = REAL in kinds or (kind is VIEW and OWN in kinds)
        self.moves = False
        self.passing: tuple[tuple[Spec, int], ...] = ()

    def operation_as(self, target: Any) -> Operation:
        """What is called, spelled so."""
        if target is self.operation.target:
            return self.operation
        if target not in self.spelled:
            self.spelled[target] = self.operation._replace(target=target)
        return self.spelled[target]


def key_of(value: Any, form_of: Callable[[torch.Tensor], Form | None]) -> Any:
    """What a result depends on of an argument whose tensors have forms. Raises Unknown where that is more than can be told."""
    kind = type(value)
    if kind in ORDINARY:
        form = form_of(value)
        if form is None:
            raise Unknown
        return form
    if kind is int or value is None or kind is str:
        return value
    if kind in TYPED:
        return kind, value
    if kind is tuple or kind is list:
        return kind, *[key_of(item, form_of) for item in value]
    if kind is slice:
        bounds = value.start, value.stop, value.step
        if BOUNDS.issuperset(map(type, bounds)):  # of a tensor the value counts
            return slice, *bounds
    raise Unknown


NAMED = object()
"""Stands in a key before the arguments by name."""


def call_key(
    what: tuple[Any, ...], args: Any, kwargs: Mapping[str, Any], form_of: Callable[[torch.Tensor], Form | None]
) -> tuple[Any, ...]:
    """What the result of a call of this depends on. Raises Unknown where that is more than can be told."""
    key = *what, *[key_of(value, form_of) for value in args]
    if kwargs:
        key = *key, NAMED, *kwargs, *[key_of(value, form_of) for value in kwargs.values()]
    return key


def alike(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for all keys of equal specs, however the tensors lie."""
    kinds = Form, tuple
    return tuple(
        [part if type(part) not in kinds else part.alike if type(part) is Form else alike(part) for part in key]
    )


def forms_in(key: tuple[Any, ...]) -> list[Form]:
    """The forms that a key was made of, in order."""
    found = []
    for part in key:
        if type(part) is Form:
            found.append(part)
        elif type(part) is tuple:
            found += forms_in(part)
    return found
