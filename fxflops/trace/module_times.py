"""Time module calls without observing their operations: by two hooks per call and no mode, so that a loop runs at nearly full speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..model.locks import threads_counting
from ..model.modules import ByIdentity, unique
from ..model.pytree import device_of, tensors_in
from ..records import BACKWARD, EMPTY_MAPPING, FORWARD, OPTIMIZER, UNSEEN, Call, Operation, Scope, Step
from ..torch_internals import current_graph_task_id, queue_callback
from .autograd_owners import grad_node_of
from .hooks import Hooks
from .threads import drop


class ModuleTimes:
    """An observer that times the calls of ``modules`` (mapped to their paths) and sees no operations.

    Each outermost call is a step. Each module gets one placeholder call whose operations are unknown, and so does the code outside
    modules. The time of a backward pass begins when the pass reaches a model's output. Torch's global hooks time the steps of all optimizers.
    The time of calls in other threads, and of checkpoint's repeated calls in a backward pass, is added to the code around them.
    ``ran_on`` is the device of the first result. It has the attributes of an :class:`.Observer` that a block reads.
    """

    failed = None  # the call that raised is not observed

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        clock: Callable[[], Stopwatch] = Stopwatch,
    ) -> None:
        # The target is only a name, since the real target was not observed.
        self._unseen = Operation(UNSEEN, UNSEEN, (), EMPTY_MAPPING, None)
        self.calls = [Call(self._unseen, "")]
        self.scopes: list[Scope] = []
        self.steps: list[Step] = []
        self.stopwatch = clock()
        self.times = PhaseTimes(self.stopwatch.now)
        self.ran_on: torch.device | None = None
        self._modules = modules
        self._hooks = Hooks()
        self._thread = get_ident()
        # For each open call: its module, its start, and the time of the calls inside it.
        self._open_calls: list[list[Any]] = []
        self._ended_modules: list[nn.Module] = []  # the module of each finished call since the observer was turned on
        self._own_seconds: list[float] = []  # the seconds of these calls, without the calls inside them

    def __enter__(self) -> ModuleTimes:
        with ExitStack() as contexts:
            contexts.callback(self._hooks.detach)
            self._hooks.attach(self._modules, self._enter, self._leave)
            contexts.callback(register_optimizer_step_pre_hook(self._begin_optimizer).remove)
            contexts.callback(register_optimizer_step_post_hook(self._end_optimizer).remove)
            self._contexts = contexts.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._contexts.close()
        self._open_calls.clear()
        recorded_paths = {call.path for call in self.calls}
        scope_fields = ByIdentity((module, self._scope_fields(module)) for module in unique(self._ended_modules))
        self.calls += [Call(self._unseen, path) for path, *_ in scope_fields.values() if path not in recorded_paths]
        self.scopes += [
            tuple.__new__(Scope, (*scope_fields[module], seconds))
            for module, seconds in zip(self._ended_modules, self._own_seconds, strict=True)
        ]
        self._ended_modules.clear()
        self._own_seconds.clear()

    @property
    def calls_with_mask_shares(self) -> list[Call]:
        """The placeholder calls: no call is attention."""
        return self.calls

    def release(self) -> None:
        """Delete all attributes except the thread's number, which a hook in another thread may still read."""
        drop(self, "_thread")

    def _scope_fields(self, module: nn.Module) -> tuple[Any, ...]:
        """Return the fields of the module's scopes, except their seconds."""
        operation = Operation(type(module).__name__, type(module), (), EMPTY_MAPPING, None)
        return self._modules[module], operation, EMPTY_MAPPING, bool(module._modules)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if not self._is_timed(module):
            return
        if not self._open_calls:
            self._begin_step(module)
        self._open_calls.append([module, self.stopwatch.lap(), 0.0])

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if not self._is_timed(module) or not self._open_calls:
            return
        open_calls = self._open_calls
        now = self.stopwatch.lap()
        while open_calls[-1][0] is not module and len(open_calls) > 1:  # a user's hook raised, so ours was not called
            open_calls.pop()
        _, start, inside = open_calls.pop()
        self._ended_modules.append(module)
        self._own_seconds.append(now - start - inside)
        if open_calls:
            open_calls[-1][2] += now - start
        else:
            self._end_step(out)

    def _is_timed(self, module: nn.Module) -> bool:
        """Return whether to time a module call: it must be in this thread, outside backward passes, and not part of a separate count."""
        return (
            current_graph_task_id() == -1
            and get_ident() == self._thread
            and self._thread not in threads_counting(module)
        )

    def _begin_step(self, module: nn.Module) -> None:
        self.stopwatch.stop()
        self.times.end(BACKWARD)  # still open if the backward pass raised
        self.steps.append(Step(self._modules[module], range(0), self.times.next_step()))
        self.times.begin(FORWARD)
        self.stopwatch.go()

    def _end_step(self, out: Any) -> None:
        self.stopwatch.stop()
        self.times.end(FORWARD)
        self.ran_on = self.ran_on or device_of(out)
        if torch.is_grad_enabled():  # notice when a backward pass reaches the output
            for tensor in tensors_in(out):
                if (node := grad_node_of(tensor)) is not None:
                    node.register_prehook(self._begin_backward)
        self.stopwatch.go()

    def _begin_backward(self, *grads: Any) -> None:
        if not (self.times.is_open(BACKWARD) or self.times.is_open(FORWARD)):
            self.times.begin(BACKWARD)
            queue_callback(partial(self.times.end, BACKWARD))

    def _begin_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() == self._thread:
            self.times.begin(OPTIMIZER)

    def _end_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if get_ident() == self._thread:
            self.times.end(OPTIMIZER)
