"""The two levels at which calls are seen: functions, and below them what they dispatch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..torch_internals import (
    TorchDispatchMode,
    disabled_torch_dispatch_impl,
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
    peek_interpreter_stack,
)

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class FunctionMode(TorchFunctionMode):
    """Hands every function called on tensors to ``handler``."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handler(func, args, kwargs or {})


class AtenMode(TorchDispatchMode):
    """Hands every dispatched operator to ``handler``; a tensor subclass takes its own calls apart first."""

    supports_higher_order_operators = True

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(has_own_dispatch(cls) for cls in types):
            return NotImplemented
        return self._handler(func, args, kwargs or {})


def has_own_dispatch(cls: Any) -> bool:
    """Whether a tensor class computes its operators itself, out of others."""
    return cls.__torch_dispatch__ is not disabled_torch_dispatch_impl and cls is not torch.Tensor


def transformed() -> bool:
    """Whether functorch (vmap, grad, jvp ...) is at work: then a tensor's shape hides a dimension, or its history."""
    return peek_interpreter_stack() is not None


def dispatching(mode: AtenMode) -> AbstractContextManager[Any]:
    """The dispatch mode on, if it is not on already."""
    return nullcontext() if mode in get_current_dispatch_mode_stack() else mode


def functioning(handler: Handler) -> AbstractContextManager[Any]:
    """A function mode on, if none of ours is on already."""
    modes = get_current_function_mode_stack()
    return nullcontext() if any(type(mode) is FunctionMode for mode in modes) else FunctionMode(handler)
