"""What is called as the forward of a leaf while it is observed, so that it need not run where a shape rule tells its result."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.jit import ScriptModule

from ..torch_internals import GLOBAL_HOOKS, call_impl

CALLED_BY = {call_impl.__code__, *(part for part in call_impl.__code__.co_consts if isinstance(part, CodeType))}
"""What calls the forward of a module that is called itself: a function within it, where observers have hooks there."""


GLOBAL = GLOBAL_HOOKS["_forward_hooks"], GLOBAL_HOOKS["_forward_pre_hooks"]


class Forward:
    """Stands for the forward of a module from the beginning until it leaves; to who looks at it, calls it himself or copies the module, it is
    that forward."""

    __slots__ = ("before", "copies", "module", "run")

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        held = module.__dict__
        self.module = module
        self.run = run
        self.copies: list[weakref.ref[nn.Module]] = []
        self.before = held.get("forward")
        held["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code not in CALLED_BY:
            return self.__wrapped__(*args, **kwargs)
        return self.run(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = memo.get(id(self.module))
        if module is None or self.before is not None:
            return self.__wrapped__ if module is None else copy.deepcopy(self.before, memo)
        return _Copied(module, self.copies)

    @property
    def __wrapped__(self) -> Any:
        return bound_forward(self.module) if self.before is None else self.before

    def leave(self) -> None:
        """Put back what was there."""
        held = self.module.__dict__
        if held.get("forward") is self:
            del held["forward"]
            if self.before is not None:
                held["forward"] = self.before
        for copied in self.copies:
            module = copied()
            if module is not None and type(vars(module).get("forward")) is _Copied:
                del vars(module)["forward"]


class _Copied:
    """The same for a copy of the module: it does not keep the copy alive, which is let go of as it is without."""

    __slots__ = ("copies", "module")

    def __init__(self, module: nn.Module, copies: list[weakref.ref[nn.Module]]) -> None:
        self.module = weakref.ref(module)
        self.copies = copies
        copies.append(self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = memo.get(id(self.module()))
        return self.__wrapped__ if module is None else _Copied(module, self.copies)

    @property
    def __wrapped__(self) -> Any:
        module = self.module()
        assert module is not None
        return bound_forward(module)


def bound_forward(module: nn.Module) -> Any:
    """The forward of the module's class as an attribute of the module: a static one does not take it."""
    cls = type(module)
    return next(vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base)).__get__(module, cls)


def own_forward(module: nn.Module) -> Any:
    """What stands for the class's forward on this module alone (``self.forward = self.forward_slicing``), or None."""
    found = vars(module).get("forward")
    while type(found) is Forward:
        found = found.before
    return found


def is_plain(module: nn.Module) -> bool:
    """Whether nothing but its forward is run when a module is called, a function of its class or what stands for that on it
    alone."""
    hooks = module._forward_hooks or module._forward_pre_hooks or any(GLOBAL)
    return not hooks and type(type(module).forward) is FunctionType and not isinstance(module, ScriptModule)


def is_torchs(cls: Any) -> bool:
    """Whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")
