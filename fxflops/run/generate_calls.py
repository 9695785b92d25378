"""Record the calls of a module's ``generate`` while a block is profiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import update_wrapper
from typing import Any


@contextmanager
def generate_replaced(module: Any, during: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """In the block, run each call of the module's ``generate`` in the context ``during()``, if this thread makes the call.

    If code in the block assigns or deletes the module's ``generate``, the change stays. Blocks of several threads may overlap.
    """
    attributes = vars(module)
    attributes["generate"] = replacement = _Generate(module, during)
    try:
        yield
    finally:
        replacement.has_ended = True
        # A block that began later, in another thread, has replaced this replacement. Then it also restores what this one has replaced.
        while type(current := attributes.get("generate")) is _Generate and current.has_ended:
            del attributes["generate"]
            attributes.update(current.own_generate)


class _Generate:
    """A replacement for a module's ``generate``, with the same attributes. In a copied or pickled module, it becomes ``generate`` itself."""

    def __init__(self, module: Any, during: Callable[[], AbstractContextManager[None]]) -> None:
        self._module = module
        self._during = during
        self.has_ended = False
        self.own_generate = {name: value for name, value in vars(module).items() if name == "generate"}
        self._thread = threading.get_ident()
        update_wrapper(self, module.generate, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._during() if threading.get_ident() == self._thread else nullcontext():
            return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "generate")
