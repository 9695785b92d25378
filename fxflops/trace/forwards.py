"""What is called as a module's forward, and what its code does, as far as its text tells."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any

from torch import nn
from torch.nn.modules import module as nn_module

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps the hooks that hear of its calls."""
CALLED_BY = nn.Module._call_impl.__code__
"""What calls the forward of a module without hooks that is called itself."""


class Forward:
    """Stands for the forward of a module that is observed; to who looks at it, or calls it himself, it is that forward."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        self.module = module
        self.run = run
        self.own = vars(module).get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code is not CALLED_BY:
            return self.__wrapped__(*args, **kwargs)
        return self.run(self.module, self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property
    def __wrapped__(self) -> Any:
        return MethodType(type(self.module).forward, self.module) if self.own is None else self.own

    def leave(self) -> None:
        """Put back what was there."""
        if self.own is None:
            del vars(self.module)["forward"]
        else:
            vars(self.module)["forward"] = self.own


def own_forward(module: nn.Module) -> Any:
    """What stands for the class's forward on this module alone (``self.forward = self.forward_slicing``), or None."""
    found = vars(module).get("forward")
    return found.own if type(found) is Forward else found


def has_own_code(module: nn.Module) -> bool:
    """Whether what runs as the module's forward is code of its class, or a method called on it, and nothing that was bound to
    more."""
    own = own_forward(module)
    return own is None or (type(own) is MethodType and own.__self__ is module)


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody hears of this module's calls."""
    return any(map(vars(module).get, HOOKS))


def is_hooked() -> bool:
    """Whether somebody hears of the calls of every module there is."""
    return any(getattr(nn_module, f"_global{name}", None) for name in HOOKS)


@functools.cache
def is_torchs(cls: Any) -> bool:
    """Whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")


WRITING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
WRITERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals"})
SPEAKERS = frozenset({"print", "warn"})


def may_write(cls: Any, own: Any = None) -> bool:
    """Whether the forward of a class, or a method that it calls, has code that writes an attribute or a global name. ``own`` is
    the function that a module has in its place."""
    return not (WRITING.isdisjoint(words := words_of(cls, own)) and WRITERS.isdisjoint(words))


@functools.cache
def speaks(cls: Any, own: Any = None) -> bool:
    """Whether it has code that prints or warns."""
    return not SPEAKERS.isdisjoint(words_of(cls, own))


@functools.cache
def words_of(cls: Any, own: Any = None) -> frozenset[str]:
    """The names and the instructions in the code of a class's forward, and of the methods that it calls."""
    words, seen = set[str](), set[CodeType]()
    waiting = [] if is_torchs(cls) else [_code_of(vars(base).get("forward")) for base in cls.__mro__]
    waiting.append(_code_of(own))
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
