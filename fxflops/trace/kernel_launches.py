"""Launches of Triton kernels where there is no device for them: each is noted, and does nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .per_thread import PerThread

Note = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
_NOTES = PerThread[Note]()
"""Who notes the launches of a thread."""


@contextmanager
def launches_noted(note: Note) -> Iterator[None]:
    """Call ``note(kernel, args, kwargs)`` in place of each launch of this thread, on a machine where none can be run.

    Meanwhile launches of all threads pass through here, which raise without a driver anyway. Where Triton has a driver, or is
    not loaded, nothing is changed.
    """
    jit: Any = sys.modules.get("triton.runtime.jit")
    interface = getattr(jit, "KernelInterface", None)
    if interface is None or _has_driver():
        yield
        return
    with _NOTES.on(note, partial(_replace, interface), partial(_restore, interface)):
        yield


def function_of(kernel: Any) -> Any:
    """Return the Python function of a kernel, without autotuners and heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _has_driver() -> bool:
    try:
        return sys.modules["triton.runtime"].driver.active is not None
    except Exception:  # "0 active drivers", or what a driver without its library raises
        return False


def _replace(interface: Any) -> None:
    launch = interface.__getitem__

    def launched(kernel: Any, grid: Any) -> Any:
        note = _NOTES.now()
        return launch(kernel, grid) if note is None else lambda *args, **kwargs: note(kernel, args, kwargs)

    launched.__wrapped__ = launch  # type: ignore[attr-defined]
    interface.__getitem__ = launched


def _restore(interface: Any) -> None:
    interface.__getitem__ = interface.__getitem__.__wrapped__
