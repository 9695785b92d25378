"""The module calls under way, and which of them is a leaf."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ..torch_internals import current_graph_task_id


class Running:
    """A module call under way: its key in the module stack, the exception that was being handled as it began, and whether a
    backward pass made it."""

    __slots__ = ("handled", "in_backward", "key", "module", "noted", "path", "start")

    def __init__(self, module: nn.Module, path: str, key: str, handled: BaseException | None) -> None:
        self.module = module
        self.path = path
        self.key = key
        self.handled = handled
        self.in_backward = current_graph_task_id() != -1
        self.noted: Any = None
        self.start = 0.0


class ModuleStack:
    """The module calls under way, outermost first; nothing inside a leaf is a call of its own. ``leaf_depth`` is where in the
    stack the leaf is, 0 for none."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self._visits: dict[str, int] = {}
        self.leaf_depth = 0

    def copy(self) -> ModuleStack:
        """Another of the same calls under way."""
        other = ModuleStack()
        other.running, other.leaf_depth = self.running.copy(), self.leaf_depth
        return other

    def enter(self, module: nn.Module, path: str) -> Running:
        """A call begins; its key is the path, and from the second call on its number."""
        number = self._visits[path] = self._visits.get(path, -1) + 1
        running = Running(module, path, f"{path}@{number}" if number else path, sys.exc_info()[1])
        self.running.append(running)
        return running

    def is_leaf(self) -> None:
        """The call that began last is of a leaf."""
        self.leaf_depth = len(self.running)

    def leave(self, module: nn.Module) -> tuple[Running, bool]:
        """A call ends: the call, and whether it is the leaf's own."""
        while self.running and self.running[-1].module is not module:  # a hook of the user's may have raised in between
            self.running.pop()
        is_leaf = self.leaf_depth == len(self.running)
        running = self.running.pop()
        if not self.inside_leaf():
            self.leaf_depth = 0
        return running, is_leaf

    def inside_leaf(self) -> bool:
        """Whether a leaf is running."""
        return 0 < self.leaf_depth <= len(self.running)

    def keys(self, *leaf: Running) -> dict[str, tuple[str, type]]:
        """The ``nn_module_stack`` of a node made now, or of the call of a leaf that is over."""
        under_way = (*self.running, *leaf)
        return {running.key: (running.path, type(running.module)) for running in under_way if running.path}
