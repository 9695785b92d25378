"""What the code of a module's forward does, as far as its text tells."""

from __future__ import annotations

import dis
import functools
import inspect
from types import CodeType
from typing import Any

from torch import nn


@functools.cache
def is_torchs(cls: Any) -> bool:
    """Whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")


WRITING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
WRITERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals"})
SPEAKERS = frozenset({"print", "warn"})


def may_write(cls: Any) -> bool:
    """Whether the forward of a class, or a method that it calls, has code that writes an attribute or a global name."""
    return not (WRITING.isdisjoint(words := words_of(cls)) and WRITERS.isdisjoint(words))


@functools.cache
def words_of(cls: Any) -> frozenset[str]:
    """The names and the instructions in the code of a class's forward, and of the methods that it calls."""
    words, seen = set[str](), set[CodeType]()
    waiting = [] if is_torchs(cls) else [_code_of(vars(base).get("forward")) for base in cls.__mro__]
    while waiting:
        code = waiting.pop()
        if code is not None and code not in seen:
            seen.add(code)
            words.update(code.co_names, (step.opname for step in dis.get_instructions(code)))
            waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
            waiting += [_code_of(getattr(cls, name, None)) for name in code.co_names if not hasattr(nn.Module, name)]
    return frozenset(words)


def _code_of(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
