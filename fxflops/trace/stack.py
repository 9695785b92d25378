"""The stack of open module calls, and the leaf among them."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..torch_internals import current_graph_task_id
from .memo import LeafLookup


class OpenCall:
    """An open module call.

    ``number`` counts the earlier calls at this path, and ``handled`` is the exception that was being handled when it began.
    ``in_backward``: it is an outermost call, made by a backward pass. ``recomputes``: it is part of a call that a backward
    node made with gradients enabled, which reruns the forward. ``start`` is the time when it began, ``inside`` the seconds
    of the calls recorded in it and of inner module calls. ``lookup`` is the observer's memo lookup for a leaf's call;
    ``guards`` are contexts that turn something off during the call.
    """

    __slots__ = (
        "guards",
        "handled",
        "in_backward",
        "inside",
        "lookup",
        "module",
        "node_args",
        "number",
        "path",
        "recomputes",
        "start",
    )

    def __init__(
        self,
        module: nn.Module,
        path: str,
        number: int,
        handled: BaseException | None,
        in_backward: bool,
        recomputes: bool,
    ) -> None:
        self.module = module
        self.path = path
        self.number = number
        self.handled = handled
        self.in_backward = in_backward
        self.recomputes = recomputes
        self.node_args: Any = None
        self.lookup: LeafLookup | None = None
        self.guards: tuple[AbstractContextManager[Any], ...] = ()
        self.start = self.inside = 0.0

    def turn_off(self, *guards: AbstractContextManager[Any]) -> None:
        """Enter contexts that turn something off until :meth:`let_go`."""
        for guard in guards:
            guard.__enter__()
        self.guards = guards

    def let_go(self) -> None:
        """Exit the contexts of :meth:`turn_off`."""
        for guard in reversed(self.guards):
            guard.__exit__(None, None, None)
        self.guards = ()


class ModuleStack:
    """The open module calls, outermost first. ``leaf_depth`` is the depth of the leaf among them, 0 for none."""

    def __init__(self) -> None:
        self._backward_around = current_graph_task_id()
        self.open: list[OpenCall] = []
        self._last_numbers: dict[str, int] = {}
        self.leaf_depth = 0

    def copy(self) -> ModuleStack:
        """Return another stack with the same open calls."""
        other = ModuleStack()
        other._backward_around, other.open, other.leaf_depth = self._backward_around, self.open.copy(), self.leaf_depth
        return other

    def in_backward(self) -> bool:
        """Return whether a backward pass runs, other than one around the whole run (a count in a hook or a recomputation)."""
        return current_graph_task_id() not in (-1, self._backward_around)

    def enter(self, module: nn.Module, path: str) -> OpenCall:
        """Push a call."""
        number = self._last_numbers[path] = self._last_numbers.get(path, -1) + 1
        in_backward = self.in_backward()
        # Parts of a recomputed module may turn gradients off, as rotary embeddings do: they are recomputed too.
        recomputes = bool(self.open and self.open[-1].recomputes) or (in_backward and torch.is_grad_enabled())
        is_outermost = not self.open
        open_call = OpenCall(module, path, number, sys.exc_info()[1], in_backward and is_outermost, recomputes)
        self.open.append(open_call)
        return open_call

    def leave(self, module: nn.Module) -> tuple[OpenCall, bool]:
        """Pop a finished call; return it, and whether it is the leaf's own."""
        while self.open and self.open[-1].module is not module:  # a user's hook raised, so ours was not called
            self.open.pop().let_go()
        open_call, depth = self.open.pop(), len(self.open)
        is_leaf = self.leaf_depth == depth + 1
        if self.leaf_depth > depth:
            self.leaf_depth = 0
        return open_call, is_leaf

    def inside_leaf(self) -> bool:
        """Return whether a leaf is running."""
        return 0 < self.leaf_depth <= len(self.open)

    def keys(self, *leaf: OpenCall) -> dict[str, tuple[str, type]]:
        """Return the ``nn_module_stack`` for a node made now; ``leaf`` is a leaf's call that has just been popped.

        A key is the module's path, with ``@number`` added from its second call on.
        """
        keys: dict[str, tuple[str, type]] = {}
        for open_call in (*self.open, *leaf):
            path = open_call.path
            if path:  # the root has no key
                keys[f"{path}@{open_call.number}" if open_call.number else path] = path, type(open_call.module)
        return keys
