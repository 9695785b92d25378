"""When a call is made: in the forward, in a gradient taken there, in the backward pass, again for checkpoint, in a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from ..records import PHASES
from ..torch_internals import (
    CHECKPOINT_FILE,
    STEP_CODE,
    current_autograd_node,
    current_graph_task_id,
    engine_run_backward,
    record_function_enter,
    record_function_exit,
)
from .source import is_own
from .stack import ModuleStack

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, GRADIENT = PHASES
STEP = "Optimizer.step#"
"""How the name begins under which torch records each optimizer's step."""


class Phases:
    """The phase of a run, whose module calls under way are on ``stack``.

    An optimizer's step is told by what torch records of it for its profiler, in the thread that steps; what it calls in
    its step, a closure, is none of it. ``on_step`` is told of each optimizer as it begins to step.
    """

    def __init__(self, stack: ModuleStack) -> None:
        self.on_step: Callable[[Optimizer], None] = lambda optimizer: None
        self._running = stack.running
        self._optimizing = False
        self._recorded: list[Optimizer | None] = []

    def now(self) -> str:
        """The phase: within a call of a model that no backward pass made, all is its forward or a gradient taken there."""
        if self._optimizing and not self._running:
            return OPTIMIZER
        is_forward = bool(self._running) and not self._running[0].in_backward
        if current_graph_task_id() != -1:
            return RECOMPUTE if _is_recomputing() else GRADIENT if is_forward else BACKWARD
        return RECOMPUTE if self._running and not is_forward else FORWARD  # a thread of what is computed again

    def recorded(self, func: Any, args: tuple[Any, ...]) -> None:
        """An operator is run: by one of these torch's profiler is told that something begins, by the other that it ends."""
        if func is record_function_enter:
            self._recorded.append(self._begun() if args[0].startswith(STEP) else None)
        elif func is record_function_exit and self._recorded:
            self._ended(self._recorded.pop())

    def leave(self) -> None:
        """Nothing is seen any more."""
        while self._recorded:
            self._ended(self._recorded.pop())

    def _begun(self) -> Optimizer | None:
        """The optimizer that begins to step, which calls its hooks next: they may change its arguments."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not STEP_CODE:
            frame = frame.f_back
        if frame is None:
            return None
        optimizer: Optimizer = frame.f_locals["self"]
        self.on_step(optimizer)
        self._optimizing = True
        optimizer._optimizer_step_pre_hooks[self] = self._given  # type: ignore[index]
        return optimizer

    def _ended(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            self._optimizing = False
            optimizer._optimizer_step_pre_hooks.pop(self, None)  # type: ignore[call-overload]

    def _given(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a step, with a closure that is none of it."""
        return tuple(map(self._closure, args)), {name: self._closure(value) for name, value in kwargs.items()}

    def _closure(self, value: Any) -> Any:
        if not callable(value):
            return value

        def closure(*args: Any, **kwargs: Any) -> Any:
            with self._interrupted():
                return value(*args, **kwargs)

        return closure

    @contextmanager
    def _interrupted(self) -> Iterator[None]:
        before, self._optimizing = self._optimizing, False
        try:
            yield
        finally:
            self._optimizing = before


def is_comparing() -> bool:
    """Whether checkpoint itself asks: it compares a tensor that it has computed again with what it noted of the first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == CHECKPOINT_FILE and current_graph_task_id() != -1


def _is_recomputing() -> bool:
    """Whether checkpoint runs again what it dropped: between who asks and autograd's engine is a function of its own."""
    if type(current_autograd_node()).__name__.startswith("Checkpoint"):  # other libraries' too
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not engine_run_backward.__code__:
        if frame.f_code.co_filename == CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return False
