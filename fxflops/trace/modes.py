"""The two levels at which calls are seen: functions, and below them what they dispatch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, FunctionType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from ..torch_internals import (
    TorchDispatchMode,
    disabled_torch_dispatch_impl,
    fake_mode,
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
    is_fake,
    peek_interpreter_stack,
)
from .functions import Bodies, own_body

SHARDING = "torch.distributed.tensor"
"""The package of DTensors."""
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Watcher(Protocol):
    """Who is told by a function mode of every function called on tensors, and of what raised."""

    bodies: Bodies

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def raised(self, error: Exception) -> None: ...


class FunctionMode(TorchFunctionMode):
    """Hands every function called on tensors to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watcher = self._watcher
        if type(func) is FunctionType and sys._getframe(2).f_code is not func.__code__:
            func, args, kwargs = own_body(sys._getframe(2), watcher.bodies) or (func, args, kwargs)
        try:
            return watcher.function(func, args, kwargs or {})
        except Exception as error:
            watcher.raised(error)
            raise


class AtenMode(TorchDispatchMode):
    """Hands every dispatched operator to ``handler``; a tensor subclass takes its own calls apart first, and works out their
    shapes on fake tensors, which are none of the run's."""

    supports_higher_order_operators = True

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler
        self._is_fake = fake_mode() is not None

    def is_faking(self) -> bool:
        """Whether a mode of fake tensors has been turned on meanwhile, to work out how a DTensor's result is sharded."""
        return not self._is_fake and fake_mode() is not None and _is_sharding()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_faking():
            return func(*args, **(kwargs or {}))
        if any(has_own_dispatch(cls) for cls in types):
            return NotImplemented
        return self._handler(func, args, kwargs or {})


def _is_sharding() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(SHARDING):
        frame = frame.f_back
    return frame is not None


def has_own_dispatch(cls: Any) -> bool:
    """Whether a tensor class computes its operators itself, out of others; those of a fake tensor, its mode computes."""
    return cls.__torch_dispatch__ is not disabled_torch_dispatch_impl and cls is not torch.Tensor and not is_fake(cls)


def transformed() -> bool:
    """Whether functorch (vmap, grad, jvp ...) is at work: then a tensor's shape hides a dimension, or its history."""
    return peek_interpreter_stack() is not None


def dispatching(mode: AtenMode) -> AbstractContextManager[Any]:
    """The dispatch mode on, if it is not on already."""
    return nullcontext() if mode in get_current_dispatch_mode_stack() else mode


def functioning(watcher: Watcher) -> AbstractContextManager[Any]:
    """A function mode on, if none of ours is on already."""
    modes = get_current_function_mode_stack()
    return nullcontext() if any(type(mode) is FunctionMode for mode in modes) else FunctionMode(watcher)
