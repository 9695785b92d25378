"""Hearing of the attributes of modules while they run: of all that are written, and of layers' numbers that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .forwards import is_torchs, words_of

NUMBERS = frozenset({"layer_idx", "layer_id", "layer_num", "layer_number"})
"""The attributes by which a layer knows which one it is, in transformers and diffusers. Equal layers differ in them, and
do the same unless one is read."""
PAST_US = frozenset({"__dict__", "vars"})


@contextmanager
def telling_of_writes(tell: Callable[[], None]) -> Iterator[None]:
    """Tell of every attribute of a module that is written or deleted meanwhile. To enter and leave it takes milliseconds: Python
    forgets what it knows of all classes of modules."""
    kept: Any = nn.Module.__setattr__, nn.Module.__delattr__

    def write(module: nn.Module, name: str, value: Any) -> None:
        tell()
        kept[0](module, name, value)

    def delete(module: nn.Module, name: str) -> None:
        tell()
        kept[1](module, name)

    patched: Any = nn.Module
    patched.__setattr__, patched.__delattr__ = write, delete
    try:
        yield
    finally:
        patched.__setattr__, patched.__delattr__ = kept


class _Number:
    """Stands for such an attribute on a class, and tells when it is read."""

    def __init__(self, name: str, tell: Callable[[], None]) -> None:
        self.name = name
        self.tell = tell

    def __get__(self, module: nn.Module | None, cls: Any = None) -> Any:
        if module is None or self.name not in vars(module):
            raise AttributeError(self.name)
        self.tell()
        return vars(module)[self.name]

    def __set__(self, module: nn.Module, value: Any) -> None:
        vars(module)[self.name] = value

    def __delete__(self, module: nn.Module) -> None:
        del vars(module)[self.name]


def is_heard(cls: Any) -> bool:
    """Whether it would be heard if the forward of this class read its number."""
    if is_torchs(cls) or cls.__getattribute__ is not object.__getattribute__ or not PAST_US.isdisjoint(words_of(cls)):
        return False
    held = (vars(base).get(name) for base in cls.__mro__ for name in NUMBERS)
    return all(value is None or type(value) is _Number for value in held)


@contextmanager
def telling_of_reads(modules: Iterable[nn.Module], tell: Callable[[], None]) -> Iterator[None]:
    """Tell of every number of one of these layers that is read meanwhile, where that is heard."""
    found = {(type(module), name) for module in modules for name in NUMBERS.intersection(vars(module))}
    kept: list[tuple[Any, str, _Number | None]] = []
    try:
        for cls, name in found:
            if is_heard(cls):
                before = vars(cls).get(name)
                kept.append((cls, name, before))
                setattr(cls, name, _Number(name, tell if before is None else _both(before.tell, tell)))
        yield
    finally:
        for cls, name, before in kept:
            if before is None:
                delattr(cls, name)
            else:
                setattr(cls, name, before)


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def tell() -> None:
        one()
        other()

    return tell
