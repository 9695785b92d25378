"""Stand-ins for the ``forward`` of modules, so that an observer need not run it where a shape rule knows the result."""

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
"""The code that calls the forward of a called module: ``Module._call_impl``, and the function inside it, used with hooks."""
GLOBAL = GLOBAL_HOOKS["_forward_hooks"], GLOBAL_HOOKS["_forward_pre_hooks"]


class Forward:
    """A stand-in for the forward of a module until :meth:`leave`: a call of the module calls ``run(self, args, kwargs)``.

    A direct call of ``module.forward(...)`` runs the forward itself; attributes and copies are those of the forward.
    ``before`` is the forward that was set on the module alone, or None.
    """

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
        """Restore the forward of the module, and of its copies."""
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
    """The forward of a copied module. It holds the copy weakly, so that the copy is freed when it would be without us."""

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
    """Return the forward of the module's class, bound to the module if it is a method (not if it is static)."""
    cls = type(module)
    return next(vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base)).__get__(module, cls)


def own_forward(module: nn.Module) -> Any:
    """Return the forward that was set on this module alone (``self.forward = self.forward_slicing``), or None."""
    found = vars(module).get("forward")
    while type(found) is Forward:
        found = found.before
    return found


def is_plain(module: nn.Module) -> bool:
    """Return whether a call of the module runs nothing but its forward: it has no hooks, and is not scripted."""
    hooks = module._forward_hooks or module._forward_pre_hooks or any(GLOBAL)
    return not hooks and type(type(module).forward) is FunctionType and not isinstance(module, ScriptModule)


def is_torchs(cls: Any) -> bool:
    """Return whether the forward of a module class is one of torch's own."""
    return str(cls.forward.__module__).startswith("torch.nn.modules.")
