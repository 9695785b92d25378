"""Torch's compiler, where a forward is the first to need it: as it is imported it computes, which is no part of the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..torch_internals import (
    COMPILER,
    EnableTorchFunction,
    disable_current_modes,
    is_torch_function_enabled,
    len_torch_function_stack,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)


def is_importing_compiler() -> bool:
    """Whether this thread is importing it.

    Torch 2.6 looks, as it loads it, for the functions behind Python's operators: by calling them under a mode of its own.
    """
    spec = getattr(sys.modules.get(COMPILER), "__spec__", None)
    if not getattr(spec, "_initializing", False):
        return False
    frame = sys._getframe()  # another thread may be the one that imports it
    while frame.f_back is not None and frame.f_globals.get("__name__") != COMPILER:
        frame = frame.f_back
    return bool(frame.f_globals.get("__name__") == COMPILER)


def run_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that reached a dispatch mode. One that is not torch's may be written in Python, and import the compiler,
    which needs torch's functions: it has them as without an observer, and no function mode sees them."""
    if is_torch_function_enabled() or func.namespace == "aten":
        return func(*args, **kwargs)
    with _functions_unseen():
        return func(*args, **kwargs)


@contextmanager
def unseen() -> Iterator[None]:
    """No observer sees what is done meanwhile: neither functions nor operators."""
    with _functions_unseen(), disable_current_modes():
        yield


@contextmanager
def _functions_unseen() -> Iterator[None]:
    functions = [pop_torch_function_stack() for _ in range(len_torch_function_stack())]
    try:
        with EnableTorchFunction():
            yield
    finally:
        for mode in reversed(functions):
            push_on_torch_function_stack(mode)
