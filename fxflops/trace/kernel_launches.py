"""Observe each launch of a Triton kernel. The kernel runs only if its device is present and its tensors have values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from .per_thread import PerThread

Note = Callable[[Any, Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
_NOTES = PerThread[Note]()
"""For each thread, the function that observes the thread's launches."""


@contextmanager
def launches_noted(note: Note) -> Iterator[None]:
    """Call ``note(kernel, grid, args, kwargs, launch)`` in place of each launch of this thread; ``launch()`` runs the kernel.

    In the block, launches of all threads pass through this module. If Triton is not loaded, it is not patched.
    """
    jit: Any = sys.modules.get("triton.runtime.jit")
    interface = getattr(jit, "KernelInterface", None)
    if interface is None:
        yield
        return
    with _NOTES.on(note, partial(_replace, interface), partial(_restore, interface)):
        yield


def function_of(kernel: Any) -> Any:
    """Return the Python function of a kernel, without autotuners and heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def grid_of(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return a launch's grid; "a function" if the grid depends on the choice of an autotuner or a heuristic."""
    if not callable(grid):
        return tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    try:
        return tuple(grid({**dict(zip(names_of(kernel), args, strict=False)), **kwargs}))
    except KeyError:
        return "a function"


def names_of(kernel: Any) -> tuple[str, ...]:
    """Return a kernel's parameter names; skip autotuners and heuristics that wrap the kernel."""
    while hasattr(kernel, "fn") and not hasattr(kernel, "arg_names"):
        kernel = kernel.fn
    return tuple(getattr(kernel, "arg_names", ()))


def _replace(interface: Any) -> None:
    launch = interface.__getitem__

    def launched(kernel: Any, grid: Any) -> Any:
        note, run_on_grid = _NOTES.now(), launch(kernel, grid)
        if note is None:
            return run_on_grid
        return lambda *args, **kwargs: note(kernel, grid, args, kwargs, partial(run_on_grid, *args, **kwargs))

    launched.__wrapped__ = launch  # type: ignore[attr-defined]
    interface.__getitem__ = launched


def _restore(interface: Any) -> None:
    interface.__getitem__ = interface.__getitem__.__wrapped__
