"""The stack of open module calls, one of which may be a leaf's call."""

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

    ``number`` is the number of earlier calls at this path. ``handled`` is the exception that was being handled when the call began.
    ``in_backward``: this is an outermost call, made by a backward pass. ``recomputes``: the call is part of a rerun of the forward,
    which a backward node made with gradients enabled. ``start`` is the time when the call began. ``inside`` is the seconds of all
    recorded calls and module calls inside it, ``communication`` the part of them in collectives. ``lookup`` is the observer's memo lookup for a leaf's call. ``guards`` are contexts
    that turn modes off during the call.
    """

    __slots__ = (
        "communication",
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
        self.start = self.inside = self.communication = 0.0

    @property
    def runs_unobserved(self) -> bool:
        """Whether modes are off during the call."""
        return bool(self.guards)

    def turn_off(self, *guards: AbstractContextManager[Any]) -> None:
        """Enter contexts that turn modes off; :meth:`exit_guards` exits them."""
        for guard in guards:
            guard.__enter__()
        self.guards = guards

    def exit_guards(self) -> None:
        """Exit the contexts of :meth:`turn_off`."""
        for guard in reversed(self.guards):
            guard.__exit__(None, None, None)
        self.guards = ()


class ModuleStack:
    """The open module calls, outermost first. ``leaf_depth`` is the depth of the open leaf call, or 0 if no leaf call is open."""

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
        """Return whether a backward pass is running. Ignore a backward pass around the whole run, e.g. for a count made in a hook."""
        return current_graph_task_id() not in (-1, self._backward_around)

    def enter(self, module: nn.Module, path: str) -> OpenCall:
        """Push a call."""
        number = self._last_numbers[path] = self._last_numbers.get(path, -1) + 1
        in_backward = self.in_backward()
        # Modules inside a recomputed module are recomputed, too, even if they turn gradients off, as rotary embeddings do.
        recomputes = bool(self.open and self.open[-1].recomputes) or (in_backward and torch.is_grad_enabled())
        is_outermost = not self.open
        open_call = OpenCall(module, path, number, sys.exc_info()[1], in_backward and is_outermost, recomputes)
        self.open.append(open_call)
        return open_call

    def leave(self, module: nn.Module) -> tuple[OpenCall, bool]:
        """Pop a finished call. Return the call, and whether it is the open leaf call."""
        while self.open and self.open[-1].module is not module:  # a user's hook raised, so ours was not called
            self.open.pop().exit_guards()
        open_call, depth = self.open.pop(), len(self.open)
        is_leaf = self.leaf_depth == depth + 1
        if self.leaf_depth > depth:
            self.leaf_depth = 0
        return open_call, is_leaf

    def add_communication(self, seconds: float, is_in_function: bool) -> None:
        """Note the seconds of a collective that is recorded as a call of its own. ``is_in_function``: the seconds of a recorded function include them."""
        if self.open and not is_in_function:
            self.open[-1].inside += seconds
            self.open[-1].communication += seconds

    def inside_leaf(self) -> bool:
        """Return whether a leaf is running."""
        return self.leaf_depth > 0

    def keys(self, *leaf: OpenCall) -> dict[str, tuple[str, type]]:
        """Return the ``nn_module_stack`` for a node made now. If a leaf's call has just been popped, pass it as ``leaf``.

        A key is a module's path; from the second call of the module on, ``@number`` is added to the path.
        """
        keys: dict[str, tuple[str, type]] = {}
        for open_call in (*self.open, *leaf):
            path = open_call.path
            if path:  # the root has no key
                keys[f"{path}@{open_call.number}" if open_call.number else path] = path, type(open_call.module)
        return keys
