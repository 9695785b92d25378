"""Hooks of fxflops's own on a model's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn


class Hooks:
    """An observer's hooks: entries in the modules' hook dicts whose key is this object. The user's hooks have integer keys."""

    def __init__(self) -> None:
        self._modules: list[nn.Module] = []

    def attach(self, modules: Iterable[nn.Module], enter: Callable[..., None], leave: Callable[..., None]) -> None:
        """Call ``enter(module, args, kwargs)`` before all other hooks, and ``leave(module, args, kwargs, out)`` after all other hooks.

        If the module raises, ``leave`` is called with ``out`` None.
        """
        self._modules = [*modules]
        enter, leave = Hook(enter), Hook(leave)
        for module in self._modules:
            for hooks, value in zip(_hooks_of(module), (enter, leave, True, True, True), strict=True):
                hooks[self] = value
            module._forward_pre_hooks.move_to_end(self, last=False)  # type: ignore[attr-defined]

    def detach(self) -> None:
        """Remove the hooks."""
        for module in self._modules:
            for hooks in _hooks_of(module):
                hooks.pop(self, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooks:
        return Hooks()


def _hooks_of(module: Any) -> tuple[dict[Any, Any], ...]:
    """Return a module's dicts of forward pre-hooks and forward hooks, and the dicts of flags that say how to call these hooks."""
    return (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._forward_pre_hooks_with_kwargs,
        module._forward_hooks_with_kwargs,
        module._forward_hooks_always_called,
    )


class Hook(partial[None]):
    """An observer's hook. On a deep copy of the module it does nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(lambda *_, **__: None)
