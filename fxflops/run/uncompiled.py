"""Run a model with or without the code that ``torch.compile`` generated for it."""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import fx

from ..errors import RunError
from ..torch_internals import COMPILER, is_control_flow

T = TypeVar("T")


@contextmanager
def uncompiled(graph: fx.GraphModule | None = None, load: bool = False) -> Iterator[None]:
    """Run functions and submodules under ``torch.compile`` eagerly in this block, since the code is counted as written.

    A ``graph`` with torch's control flow operators is not changed, since these operators compile themselves and otherwise have no
    gradients. All threads share a single compiler stance in torch. The first run that begins sets this stance, and the last run that
    ends restores the previous stance. If the compiler is not loaded yet, no stance can be set; pass ``load`` to load the compiler
    for code that must not run twice.
    """
    if load:
        importlib.import_module(COMPILER)
    flows = graph is not None and any(is_control_flow(node.target) for node in graph.graph.nodes)
    if flows or COMPILER not in sys.modules:
        yield
        return
    with _SWITCHING:
        next(_SWITCHES)
        _STANCES.append(nullcontext() if _STANCES else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _SWITCHING:
            _STANCES.pop().__exit__(None, None, None)


_SWITCHING = threading.Lock()
_STANCES: list[AbstractContextManager[Any]] = []
"""A context for each active run. The first context sets the compiler stance and restores it at its exit."""
_SWITCHES = itertools.count()


def ran_compiled(call: Callable[[], T]) -> tuple[T, bool]:
    """Return a call's result, and whether the call ran compiled code: False if a run in another thread made that code run eagerly."""
    before = next(_SWITCHES)
    eagerly = bool(_STANCES)
    out = call()
    return out, not eagerly and next(_SWITCHES) == before + 1


def once_loaded(run: Callable[[], T]) -> T:
    """Return the result of a run. Repeat a run that raised RunError if that run also loaded the compiler.

    Code that was compiled in the first run includes the observer's modes. In the second run, the compiler is already loaded, so it can
    be set to run code eagerly. ``reset`` drops the compiler's state from the first run, since torch up to 2.13 never retries code that
    failed to compile.
    """
    was_loaded = COMPILER in sys.modules
    try:
        return run()
    except RunError:
        if was_loaded or COMPILER not in sys.modules:
            raise
    torch.compiler.reset()
    return run()
