"""Runs of a model without what ``torch.compile`` made of it, or with it."""

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
    """Run functions and submodules under ``torch.compile`` as they are written: that is what is counted.

    Not so for a model whose ``graph`` has control flow of torch's: that compiles itself, and has no gradients without.
    Torch has one stance for all threads: the first run sets it, and the last one to end restores what was there. Where the
    compiler is not loaded yet, there is none to set; code that may not run twice wants to ``load`` it.
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
"""One context for each run under way; the first is the stance that is set."""
_SWITCHES = itertools.count()


def ran_compiled(call: Callable[[], T]) -> tuple[T, bool]:
    """Return the result of a call, and whether no other thread's run made compiled code run eagerly meanwhile."""
    before = next(_SWITCHES)
    eagerly = bool(_STANCES)
    out = call()
    return out, not eagerly and next(_SWITCHES) == before + 1


def once_loaded(run: Callable[[], T]) -> T:
    """Return the result of a run; of a second one, if the first raised RunError and the compiler was loaded in it.

    What a model then compiles has the observer's modes in it. In the second run the compiler is there, and told not to. What it
    took from the first one for good, as torch up to 2.13 passes over code that it failed on, is of no use and goes.
    """
    was_loaded = COMPILER in sys.modules
    try:
        return run()
    except RunError:
        if was_loaded or COMPILER not in sys.modules:
            raise
    torch.compiler.reset()
    return run()
