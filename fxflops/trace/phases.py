"""Find the phase of a call: forward, gradient inside the forward, backward pass, recomputation, or optimizer step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

from ..meters.stopwatch import BETWEEN, PhaseTimes
from ..records import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, RECOMPUTE, grouped
from ..torch_internals import (
    CHECKPOINT_FILE,
    READS_METADATA,
    STEP_CODE,
    call_impl,
    engine_creates_graph,
    engine_run_backward,
    queue_callback,
    record_function_enter,
    record_function_exit,
)
from .changes import ChangeListener
from .functions import with_callables
from .source import frames, is_own, is_own_file
from .stack import ModuleStack

BACKWARDS = torch.Tensor.backward, torch.autograd.backward
ENGINE = engine_run_backward.__code__
BACKWARD_CODE = torch.autograd.backward.__code__
OPTIMIZER_STEP = "Optimizer.step#"
"""The prefix of the names that optimizer steps have in torch's profiler."""
MODULE_FILE = call_impl.__code__.co_filename
"""The file whose functions call a module's forward: its frames are between a model's forward and the forwards inside it."""


class Phases:
    """The current phase of a run. ``stack`` has the open module calls of the thread that began the run; all its threads share the phase.

    An optimizer's step reports itself to torch's profiler by two operators, which are observed here. A closure called in a step is
    not part of the step. ``change_listener`` is told when an optimizer's step begins and ends, ``times`` also when a backward pass does.
    ``code_that_calls`` is the code of the function of fxflops that calls the model, whose callers are not part of the run; None if
    the user's own code calls the model. If that function is not running, e.g. in an optimizer's step, all callers are searched. ``called_backward``: the observed code has called ``loss.backward()``.
    """

    def __init__(
        self,
        stack: ModuleStack,
        times: PhaseTimes,
        change_listener: ChangeListener,
        code_that_calls: CodeType | None = None,
    ) -> None:
        self._change_listener = change_listener
        self._code_that_calls = code_that_calls
        self._open_calls, self._in_backward = stack.open, stack.in_backward
        self._times = times
        self.called_backward = False
        # The number of open optimizer steps: a step may call the step of another optimizer, or super().step().
        self._open_steps = 0
        # Whether a closure that was passed to an optimizer's step is running.
        self._in_closure = False
        # The open ranges of torch's profiler, outermost first: the optimizer if the range is a step, otherwise None.
        self._open_ranges: list[Optimizer | None] = []

    @cached_property
    def _optimizer_methods(self) -> dict[str, list[CodeType]]:
        """The code of all methods of optimizers, by name."""
        return grouped((code.co_name, code) for code in _methods_of(Optimizer))

    def now(self) -> str:
        """Return the current phase. In a model call that no backward pass made, the phase is FORWARD or GRADIENT."""
        if self._open_steps and not self._open_calls:
            return OPTIMIZER
        is_forward = bool(self._open_calls) and not self._open_calls[0].in_backward
        if self._in_backward():
            if self._open_calls and self._open_calls[-1].recomputes:
                return RECOMPUTE
            if _is_recomputing():
                return RECOMPUTE
            return GRADIENT if is_forward else BACKWARD
        if not self._open_calls:
            if self._times.is_open(BACKWARD):  # loss.backward() first makes a gradient of ones
                return BACKWARD
            return OPTIMIZER if self._in_optimizer_method() else FORWARD
        return FORWARD if is_forward else RECOMPUTE  # this is a thread started by modules that are recomputed

    def on_operator(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note an operator that is about to run: it may begin a backward pass, or begin or end a range of torch's profiler."""
        if self._in_backward() and not self._times.is_open(BACKWARD) and not self._times.is_open(FORWARD):
            self.called_backward = self.called_backward or _began_by_backward()
            self._times.begin(BACKWARD)
            queue_callback(partial(self._times.end, BACKWARD))
        if func is record_function_enter:
            self._open_ranges.append(self._begin_optimizer_step() if args[0].startswith(OPTIMIZER_STEP) else None)
        elif func is record_function_exit and self._open_ranges:
            self._end_optimizer_step(self._open_ranges.pop())

    def in_module(self) -> bool:
        """Return whether a call of a module is open."""
        return bool(self._open_calls)

    @contextmanager
    def backward_during(self, func: Any) -> Iterator[None]:
        """Mark the block, in which a torch function runs, as a backward pass if the function is ``loss.backward()``."""
        if func not in BACKWARDS or self._times.is_open(BACKWARD) or self._times.is_open(FORWARD):
            yield
            return
        self.called_backward = True
        self._times.begin(BACKWARD)
        try:
            yield
        finally:
            self._times.end(BACKWARD)

    def end_open_steps(self) -> None:
        """End the optimizer steps that are still open, and remove their hooks."""
        while self._open_ranges:
            self._end_optimizer_step(self._open_ranges.pop())

    def _begin_optimizer_step(self) -> Optimizer | None:
        """Begin an optimizer step, and return its optimizer. The optimizer then calls our pre-hook, which wraps the step's closure."""
        frame = next((frame for frame in frames() if frame.f_code is STEP_CODE), None)
        if frame is None:
            return None
        optimizer: Optimizer = frame.f_locals["self"]
        self._change_listener.before_optimizer_step(optimizer)
        self._open_steps += 1
        if not self._open_calls and self._open_steps == 1:  # not if another step called it, e.g. by super().step()
            self._times.begin(OPTIMIZER)
        optimizer._optimizer_step_pre_hooks[self] = self._wrap_closures  # type: ignore[index]
        return optimizer

    def _end_optimizer_step(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            self._open_steps = max(self._open_steps - 1, 0)
            if not self._open_steps:
                self._times.end(OPTIMIZER)
            self._change_listener.after_optimizer_step(optimizer)
            if all(optimizer is not other for other in self._open_ranges):
                optimizer._optimizer_step_pre_hooks.pop(self, None)  # type: ignore[call-overload]

    def _in_optimizer_method(self) -> bool:
        """Return whether a method of an optimizer is running, since an optimizer that wraps another may not report its own step.

        A step's closure, which runs the model and computes the loss, is not part of the step.
        """
        if self._in_closure:
            return False
        called_codes: list[CodeType] = []  # a list, since hashing a code object takes long
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (code := frame.f_code) is not self._code_that_calls:
            # Collecting all methods takes long, so avoid it for frames of torch's modules and of fxflops: most calls have only these.
            if not _has_no_optimizers(code.co_filename):
                methods = self._optimizer_methods.get(code.co_name, ())
                if any(code is method for method in methods):
                    closure_code = getattr(frame.f_locals.get("closure"), "__code__", None)
                    return all(closure_code is not called for called in called_codes)
            called_codes.append(code)
            frame = frame.f_back
        return False

    def _wrap_closures(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a step, with the closure wrapped so that its calls are not part of the step."""
        wrapped: tuple[tuple[Any, ...], dict[str, Any]] = with_callables((args, kwargs), self._outside_step)
        return wrapped

    @contextmanager
    def _outside_step(self) -> Iterator[None]:
        saved = self._open_steps, self._in_closure
        self._open_steps, self._in_closure = 0, True
        self._times.begin(BETWEEN)
        try:
            yield
        finally:
            self._open_steps, self._in_closure = saved
            self._times.end(BETWEEN)


@cache
def _has_no_optimizers(file: str) -> bool:
    """Return whether a file is torch's file of modules, or belongs to fxflops."""
    return file == MODULE_FILE or is_own_file(file)


def _methods_of(cls: type) -> Iterator[CodeType]:
    """Yield the code of all methods of a class and its subclasses.

    The code of a frame shows whether the frame belongs to an optimizer's method. The frame's local variables are not read: up to
    Python 3.12, reading them would keep their values alive until the function returns, even a model that the user has deleted.
    """
    for function in vars(cls).values():
        if isinstance(function, FunctionType):
            # Unwrap decorated functions, because the wrapper of torch.no_grad has the same code for every function.
            yield inspect.unwrap(function).__code__
    derived: type
    for derived in type.__subclasses__(cls):
        yield from _methods_of(derived)


def is_comparing() -> bool:
    """Return whether the caller is checkpoint, which compares the metadata of recomputed tensors with the tensors of the forward pass.

    With nested checkpoints, the outer checkpoint also reads metadata in the forward, namely of the inner checkpoint's arguments.
    """
    caller = next((frame.f_code for frame in frames() if not is_own(frame)), None)
    return caller is not None and (caller.co_filename, caller.co_name) == (CHECKPOINT_FILE, READS_METADATA)


def _is_recomputing() -> bool:
    """Return whether the running autograd node recomputes part of the forward in code outside all modules.

    The engine computes gradients with grad mode off, so code with grad mode on builds a graph, i.e. it runs a forward. With
    ``create_graph=True`` grad mode is on everywhere. Then only torch's own checkpoint is recognized, by a frame in its file. This
    frame also shows that a checkpointed function is running when the function has switched grad mode off.
    """
    enabled = torch.is_grad_enabled()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not ENGINE:
        if frame.f_code.co_filename == CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return enabled and not _creates_graph(frame)


def _creates_graph(frame: FrameType | None) -> bool:
    """Return whether the backward pass that was started in this frame of the engine has ``create_graph=True``.

    For accelerators, the engine uses its own threads, which have no such frame. The frame is then in the thread that waits for the engine.
    """
    if frame is not None:
        return engine_creates_graph(frame)
    engine_frames = map(_engine_frame, sys._current_frames().values())
    return any(engine_creates_graph(frame) for frame in engine_frames if frame is not None)


def _began_by_backward() -> bool:
    """Return whether the running backward pass was started by ``torch.autograd.backward``, and not by ``torch.autograd.grad``."""
    frame = _engine_frame(sys._getframe(1))
    return frame is not None and frame.f_back is not None and frame.f_back.f_code is BACKWARD_CODE


def _engine_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code is not ENGINE:
        frame = frame.f_back
    return frame
