"""Torch's compiler, where a forward is the first to need it: as it is imported it computes, which is no part of the model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..torch_internals import (
    COMPILER,
    EnableTorchFunction,
    disable_current_modes,
    len_torch_function_stack,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)


class CompilerApart(MetaPathFinder, Loader):
    """While it is entered, the compiler is imported with no mode on.

    Torch 2.6 looks, as it loads it, for the functions behind Python's operators: by calling them under a mode of its own.
    """

    def __enter__(self) -> None:
        if COMPILER not in sys.modules:
            sys.meta_path.insert(0, self)

    def __exit__(self, *exception: Any) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        sys.meta_path.remove(self)
        with _no_modes():
            module = importlib.import_module(COMPILER)
        # It is there: who asked for it is to load it from here. He takes what it says of itself for what is found.
        self._spec, module.__spec__ = module.__spec__, ModuleSpec(COMPILER, self)
        return module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[COMPILER]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


@contextmanager
def _no_modes() -> Iterator[None]:
    """Neither functions nor operators are seen by anybody."""
    functions = [pop_torch_function_stack() for _ in range(len_torch_function_stack())]
    try:
        with disable_current_modes(), EnableTorchFunction():
            yield
    finally:
        for mode in reversed(functions):
            push_on_torch_function_stack(mode)
