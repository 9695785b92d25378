"""The time of module calls alone: two hooks a call and no mode, so that a loop runs nearly as fast as without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..model.pytree import tensors_in
from ..records import EMPTY_MAPPING, Call, Operation, Scope, Step
from ..torch_internals import current_graph_task_id, queue_callback
from .leaves import Hooks
from .phases import BACKWARD, FORWARD, OPTIMIZER

UNSEEN = "(not observed)"
"""The op of what a module computed."""


class ModuleTimes:
    """An observer of the calls of ``modules``, given with their paths, that sees no operations.

    Each outermost call is a step. Of each module, and of what is outside, there is one call of which nobody knows what it
    computed. A backward pass begins where it reaches a model's output; the steps of ``optimizers`` are told by hooks on
    these. Calls in other threads, and those that checkpoint makes again in a backward pass, belong to the time around them.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        optimizers: Iterable[Optimizer],
        clock: Callable[[], Stopwatch] = Stopwatch,
    ) -> None:
        self.calls: list[Call] = []
        self.scopes: list[Scope] = []
        self.steps: list[Step] = []
        self.stopwatch = clock()
        self.times = PhaseTimes(self.stopwatch.now)
        self.on_step: Callable[[Optimizer], None] = lambda optimizer: None
        self._modules = modules
        self._optimizers = optimizers
        self._hooks = Hooks()
        self._thread = get_ident()
        self._running: list[list[Any]] = []  # each with its module, its beginning, and the time of the calls inside it
        self._known: dict[nn.Module, tuple[str, Operation, bool]] = {}
        self._unseen("")

    @property
    def phases(self) -> ModuleTimes:
        """The receiver of ``on_step``."""
        return self

    def __enter__(self) -> ModuleTimes:
        self._open = ExitStack()
        self._hooks.attach(self._modules, self._enter, self._leave)
        self._open.callback(self._hooks.detach)
        for optimizer in self._optimizers:
            self._open.callback(optimizer.register_step_pre_hook(self._begin_optimizer).remove)
            self._open.callback(optimizer.register_step_post_hook(self._end_optimizer).remove)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()
        self._running.clear()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if current_graph_task_id() != -1 or get_ident() != self._thread:
            return
        watch, running = self.stopwatch, self._running
        watch.stop()
        if not running:
            self._begin_step(module)
        running.append([module, watch.now(), 0.0])
        watch.go()

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        running = self._running
        if not running or current_graph_task_id() != -1 or get_ident() != self._thread:
            return
        watch = self.stopwatch
        watch.stop()
        while running[-1][0] is not module and len(running) > 1:  # a user's hook raised, so ours was not called
            running.pop()
        _, begun, inside = running.pop()
        took = watch.now() - begun
        path, operation, has_children = self._known.get(module) or self._described(module)
        self.scopes.append(tuple.__new__(Scope, (path, operation, EMPTY_MAPPING, has_children, took - inside)))
        if running:
            running[-1][2] += took
        else:
            self.times.end(FORWARD)
            self._follow(out)
        watch.go()

    def _described(self, module: nn.Module) -> tuple[str, Operation, bool]:
        operation = Operation(type(module).__name__, type(module), (), EMPTY_MAPPING, None)
        found = self._known[module] = self._modules[module], operation, bool(module._modules)
        if found[0]:
            self._unseen(found[0])
        return found

    def _unseen(self, path: str) -> None:
        # Its target is a name: what it computed was not observed.
        self.calls.append(Call(Operation(UNSEEN, UNSEEN, (), EMPTY_MAPPING, None), path))

    def _begin_step(self, module: nn.Module) -> None:
        self.times.end(BACKWARD)  # one that raised
        first = len(self.calls)
        self.steps.append(Step(self._modules[module], range(first, first), self.times.next_step()))
        self.times.begin(FORWARD)

    def _follow(self, out: Any) -> None:
        """Be told when a backward pass reaches the output of a model."""
        if torch.is_grad_enabled():
            for tensor in tensors_in(out):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._begin_backward)

    def _begin_backward(self, *grads: Any) -> None:
        if not (self.times.is_open(BACKWARD) or self.times.is_open(FORWARD)):
            self.times.begin(BACKWARD)
            queue_callback(partial(self.times.end, BACKWARD))

    def _begin_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.on_step(optimizer)
        self.times.begin(OPTIMIZER)

    def _end_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.times.end(OPTIMIZER)
