"""Hide calls that are not part of the model from observers: all calls in a block, or those that the import of torch's compiler makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from ..torch_internals import (
    COMPILER,
    COMPILER_CALLS_FUNCTIONS,
    EnableTorchFunction,
    disable_current_modes,
    is_torch_function_enabled,
)
from .modes import FunctionMode, popped, push
from .source import frames


def is_importing_compiler() -> bool:
    """Return whether this thread is importing the compiler.

    While torch 2.6 imports the compiler, it calls Python's operators under its own mode to find the functions behind them.
    """
    spec = getattr(sys.modules.get(COMPILER), "__spec__", None)
    if not getattr(spec, "_initializing", False):
        return False
    # The compiler is being imported, but maybe by another thread.
    return any(frame.f_globals.get("__name__") == COMPILER for frame in frames())


def run_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function, or an operator that reached a dispatch mode. A function is always called with ``__torch_function__`` enabled.

    An operator written in Python (by another library, or by torch for meta) may import the compiler. Up to torch 2.8 this import
    needs ``__torch_function__`` enabled. So until the compiler is loaded, all operators run with ``__torch_function__`` enabled
    and all function modes off, as without an observer. After that, and in newer versions, only operators of other libraries
    run this way.
    """
    if is_torch_function_enabled() or (
        func.namespace == "aten" and (COMPILER in sys.modules or not COMPILER_CALLS_FUNCTIONS)
    ):
        return func(*args, **kwargs)
    with _functions_unseen():
        return func(*args, **kwargs)


@contextmanager
def unseen() -> Iterator[None]:
    """Hide calls of functions and operators in this block from all observers. A default device still applies."""
    with _functions_unseen(FunctionMode), disable_current_modes():
        yield


@contextmanager
def _functions_unseen(by: type = TorchFunctionMode) -> Iterator[None]:
    """Hide functions from all function modes of the class ``by``."""
    modes = popped()
    push(mode for mode in modes if not isinstance(mode, by))
    try:
        with EnableTorchFunction():
            yield
    finally:
        popped()
        push(modes)
