"""Modes for the two levels at which calls are observed: torch functions, and the operators that they dispatch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from ..meters.stopwatch import OF_BUILTIN, OF_GRADIENT, OF_OPERATOR, OF_PYTHON, Stopwatch
from ..model.scripts import MARKS
from ..records.tensors import has_own_dispatch
from ..torch_internals import (
    RETURNS_SAVED,
    SHARDING,
    SHARDING_FILE,
    DeviceContext,
    DispatchMode,
    current_graph_task_id,
    default_device_mode,
    dual_level,
    fake_mode,
    fake_tensors,
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
    in_autograds_vmap,
    len_torch_function_stack,
    of_checkpoint,
    peek_interpreter_stack,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)
from .functions import Bodies, copied_function_body
from .source import frame_in, frames

DEVICE = torch.ops.prim.device.default
"""The operator by which C++ reads the device of a fake tensor. It runs before nearly every other operator."""
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class FunctionObserver(Protocol):
    """The receiver of a function mode's calls. It runs every function called on tensors, and gets the errors that functions raise."""

    bodies: Bodies
    stopwatch: Stopwatch

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def raised(self, error: Exception) -> None: ...


class FunctionMode(TorchFunctionMode):
    """A function mode that passes every call to an observer."""

    def __init__(self, observer: FunctionObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        observer, stopwatch = self._observer, self._observer.stopwatch
        in_python = type(func) is FunctionType
        stopped = stopwatch.stop(OF_PYTHON if in_python else OF_BUILTIN)
        # Usually the body of a Python function passes the function to this mode. Any other code may be a library's copy of the body.
        if in_python and sys._getframe(2).f_code is not func.__code__:
            func, args, kwargs = copied_function_body(sys._getframe(2), observer.bodies) or (func, args, kwargs)
        try:
            return observer.function(func, args, kwargs or {})
        except Exception as error:
            observer.raised(error)
            raise
        finally:
            if stopped:
                stopwatch.go()


class ResultsMode(FunctionMode):
    """A function mode that runs every call, and passes the call's result to ``track``.

    It is a FunctionMode so that code that looks for fxflops's own modes finds it, although it has no observer.
    """

    def __init__(self, track: Callable[[Any], Any]) -> None:
        TorchFunctionMode.__init__(self)
        self._track = track

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._track(func(*args, **(kwargs or {})))


class EachCall(TorchFunctionMode):
    """A function mode that runs ``wrap(func)`` in place of each function."""

    def __init__(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        super().__init__()
        self._wrap = wrap

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._wrap(func)(*args, **(kwargs or {}))


class OperatorMode(DispatchMode):
    """A dispatch mode that passes every operator to ``handler``.

    Operators on a tensor subclass are left to the subclass, which dispatches other operators. Operators that DTensor runs on fake
    tensors to infer shapes are not passed to ``handler``. The stopwatch is stopped while the handler runs.
    """

    supports_higher_order_operators = True

    def __init__(self, handler: Handler, stopwatch: Stopwatch | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler
        self._stopwatch = stopwatch or Stopwatch()
        self._depth = 0 if (mode := fake_mode()) is None else len(mode.enter_stack)

    def is_faking(self) -> bool:
        """Return whether DTensor is running an operator on fake tensors, to infer how its result is sharded."""
        mode = fake_mode()
        if mode is None:
            return False
        if self._depth:  # in a simulated rank all tensors are fake, and DTensor enters the mode once more
            return len(mode.enter_stack) > self._depth and frame_in(SHARDING_FILE) is not None
        return any(str(frame.f_globals.get("__name__")).startswith(SHARDING) for frame in frames())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], fake_tensors()[0]):
            return args[0].fake_device
        if func is DEVICE or func in MARKS or self.is_faking():
            return func(*args, **(kwargs or {}))
        if any(has_own_dispatch(cls) for cls in types):
            return NotImplemented
        stopped = self._stopwatch.stop(OF_OPERATOR if current_graph_task_id() == -1 else OF_GRADIENT)
        try:
            return self._handler(func, args, kwargs or {})
        finally:
            if stopped:
                self._stopwatch.go()


def are_observed() -> bool:
    """Return whether an observer sees the calls that this thread makes now."""
    modes = *get_current_function_mode_stack(), *get_current_dispatch_mode_stack()
    return any(isinstance(mode, (FunctionMode, OperatorMode)) for mode in modes)


def modes_of_others() -> list[TorchFunctionMode]:
    """Return this thread's function modes, except ours and a default device. The others may turn a call into other calls."""
    return [
        mode
        for mode in get_current_function_mode_stack()
        if not isinstance(mode, (FunctionMode, EachCall, DeviceContext))
    ]


def is_on_top() -> bool:
    """Return whether this thread has no dispatch modes except ours."""
    return all(isinstance(mode, OperatorMode) for mode in get_current_dispatch_mode_stack())


def are_others_on() -> bool:
    """Return whether other function modes than ours are on, under which a leaf's class no longer determines what the leaf computes."""
    return len_torch_function_stack() > 1 and bool(modes_of_others())  # one mode on the stack is ours


@contextmanager
def beneath_others(mode: FunctionMode) -> Iterator[None]:
    """Turn on a function mode of ours beneath the user's function modes, but above a default device and our other modes.

    Beneath the user's modes, our mode sees the calls that they make; on top of them, it would see the calls that they replace. Our mode
    may be turned off before or after the user's modes: the profile of a script does not begin and end with the script's own blocks.
    """
    modes, default = popped(), default_device_mode()
    of_user = [other is not default and not isinstance(other, (FunctionMode, EachCall)) for other in modes]
    first = of_user.index(True) if True in of_user else len(modes)
    push([*modes[:first], mode, *modes[first:]])
    try:
        yield
    finally:
        push([other for other in popped() if other is not mode])


def popped() -> list[TorchFunctionMode]:
    """Take all function modes off this thread's stack; return them, outermost first."""
    return [pop_torch_function_stack() for _ in range(len_torch_function_stack())][::-1]


def push(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        push_on_torch_function_stack(mode)


def answers_operators() -> bool:
    """Return whether selective checkpointing is recomputing: it then returns saved results, and runs only operators without one."""
    if current_graph_task_id() == -1:
        return False
    cached_mode = of_checkpoint(RETURNS_SAVED)
    return any(isinstance(mode, cached_mode) for mode in get_current_dispatch_mode_stack())


def transformed() -> bool:
    """Return whether a functorch transform (vmap, grad, jvp), autograd's own vmap, or forward-mode AD is active.

    Under transforms and vmap, shapes lack the batch dimension; under forward-mode AD, calls also compute tangents.
    """
    return peek_interpreter_stack() is not None or dual_level() != -1 or in_autograds_vmap()


def dispatch_mode_on(mode: OperatorMode) -> AbstractContextManager[Any]:
    """Return a context in which the dispatch mode is on; a null context if it is on already."""
    return nullcontext() if mode in get_current_dispatch_mode_stack() else mode


def function_mode_on(mode: FunctionMode) -> AbstractContextManager[Any]:
    """Return a context in which our function mode is on; a null context if one of our modes is on already."""
    modes = get_current_function_mode_stack()
    return nullcontext() if any(type(other) is FunctionMode for other in modes) else mode
