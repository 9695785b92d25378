"""The fast path of observing a run on real tensors: a call like an earlier one is recorded as the same operation.

All that a record takes from a call follows from the function, its plain arguments and the metadata of its tensors; but
for what it returns, which is compared each time. Calls that make no tensor but their result run with the dispatch mode
off. All other calls (in a backward pass, in other threads, under autocast and transforms) take the way of
:class:`~.observe.Observer`.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from ..meters.live_storages import LiveStorages, Span
from ..model.pytree import tensors_given
from ..ops import ESCAPE, Formula
from ..ops._traits import EMPTY
from ..records import ORDINARY, Call, Operation, Spec, spec_of, typed
from ..torch_internals import (
    COMPILER,
    DisableTorchDispatch,
    DisableTorchFunction,
    current_graph_task_id,
    fake_mode,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    saved_tensors_hooks,
)
from . import forwards
from .compiler import is_importing_compiler
from .fast import QUERIES
from .modes import transformed
from .observe import Observer
from .operators import ATTENTION, QUERY, VIEW
from .plans import Unknown, call_key
from .spelling import WRITTEN_AS
from .stack import Running

QUERY_KEY_VALUE = 3


class Known(NamedTuple):
    """The operation of calls of one kind.

    ``makes`` tells whether its result may have a storage of its own. ``passing`` are specs and bytes of the storages that live
    only within such a call, at its peak; None if it leaves more than its result.
    """

    operation: Operation
    makes: bool
    passing: tuple[tuple[Spec, int], ...] | None


class LiveObserver(Observer):
    """The observer of ``profile()``."""

    _storages: LiveStorages

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: dict[Any, Known] = {}
        self._containers: dict[Any, Operation] = {}
        self._compiler: Any = None

    def __exit__(self, *exception: Any) -> None:
        for running in self._stack.running:  # left open by an interrupt
            running.let_go()
        super().__exit__(*exception)

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in QUERIES:
            return self.stopwatch.run(func, args, kwargs)
        if self._stack.leaf_depth or not self._metadata_suffices(modes=0):  # ours is off in its handler
            return super().function(func, args, kwargs)
        try:
            written = self._spelling.of(func) if func in WRITTEN_AS else func
            key = call_key((written, torch.is_grad_enabled()), args, kwargs, _form)
            known = self._known.get(key)
        except (Unknown, TypeError):
            return super().function(func, args, kwargs)
        if known is None:
            return self._learn(key, func, args, kwargs)
        with self.lock, DisableTorchFunction():
            start = self.stopwatch.now()
            if self._is_alone(known):
                with DisableTorchDispatch():
                    out = self.stopwatch.run(func, args, kwargs)
            else:
                with self._within(True, self._in_node):
                    out = self.stopwatch.run(func, args, kwargs)
            seconds = self.stopwatch.now() - start
            is_the_same = _is(out, known.operation.out)
            self._made(known, out, is_the_same)
            if is_the_same:
                if self._stack.running:
                    self._stack.running[-1].inside += seconds
                self._repeated(known.operation, self._here(), seconds)
            else:
                specs = spec_of(args), spec_of(kwargs), spec_of(out)
                self._record(self._registry.find(func), written, specs, seconds)
            self._owns((out, args))
        return out

    def _learn(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and keep its operation for those that are like it."""
        begun = self._begun_call()
        out = super().function(func, args, kwargs)
        self._learnt(key, self._registry.find(func), begun, (args, kwargs, out))
        return out

    def _begun_call(self) -> tuple[int, int, Span]:
        """Return the number of calls and of storages before a call, and the state of the latter."""
        return len(self.calls), self._storages.entered, self._storages.begin()

    def _learnt(self, key: Any, entry: Formula | None, begun: tuple[int, int, Span], seen: Any) -> None:
        """Keep the operation of a call that has ended; ``seen`` are the tensors it was given and returned."""
        first, entered, span = begun
        left, passing = self._storages.end(span)
        if entry is None or len(self.calls) != first + 1 or _has_values(entry, seen):
            return
        operation = self.calls[first].operation
        # What is not torch's own may look at modes, or switch some on.
        is_torchs = entry.is_ours and (not isinstance(operation.target, type) or forwards.is_torchs(operation.target))
        is_all = is_torchs and left == self._storages.bytes_since(entered, seen)
        self._known[key] = Known(operation, entry.reason != VIEW, passing if is_all else None)

    def _is_alone(self, known: Known) -> bool:
        """Return whether the operators inside a call need not be seen."""
        return known.passing is not None and len_torch_dispatch_stack() == 1

    def _made(self, known: Known, out: Any, is_the_same: bool) -> None:
        """Track the tensors of a call that is known; its result has the same specs, or others."""
        self._storages.call = len(self.calls)
        if known.passing:
            self._storages.add_transient(known.passing)
        if is_the_same and not known.makes:
            return
        if type(out) in ORDINARY:
            self._storages.add(out, known.operation.out if is_the_same else None)
        else:
            self._storages.add_all(out)

    def _repeated(self, operation: Operation, path: str, seconds: float) -> None:
        """Record a call of an operation that is known."""
        phase, path = self.log.placed(path)
        self.calls.append(tuple.__new__(Call, (operation, path, "", "", seconds, phase)))

    # Leaf modules

    def _begin_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any) -> None:
        super()._begin_leaf(module, running, args, kwargs)
        if module._modules or not self._metadata_suffices(modes=1):
            return
        try:
            with DisableTorchFunction():
                settings = self._settings.of(module)
                learning = tuple([p is not None and p.requires_grad for p in module._parameters.values()])
                key = call_key((type(module), settings, torch.is_grad_enabled(), learning), args, kwargs or {}, _form)
                known = self._known.get(key)
        except (Unknown, TypeError):
            return
        begun = self._begun_call() if known is None else None
        running.known = known, key, settings.params, begun
        if known is not None and self._is_alone(known):
            running.guards = ExitStack()
            running.guards.enter_context(DisableTorchFunction())
            running.guards.enter_context(DisableTorchDispatch())

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        running = self._stack.running[-1] if self._stack.running else None
        if running is not None and running.module is module:
            running.let_go()
            with DisableTorchFunction():
                if running.known is not None:
                    self._leave_leaf(module, running, args, kwargs, out)
                    return
                if not self._stack.leaf_depth and sys.exc_info()[1] is running.handled:
                    self._leave_container(module, running, args, kwargs, out)
                    return
        super()._leave(module, args, kwargs, out)

    def _leave_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any, out: Any) -> None:
        known, key, params, begun = running.known
        if known is None or not _is(out, known.operation.out):
            super()._leave(module, args, kwargs, out)
            if begun is not None:
                self._learnt(key, self._leaves[module], begun, (args, kwargs, out))
            return
        _, _, took = self._pop(module)
        self._made(known, out, True)
        self._repeated(known.operation, running.path, took)
        self._scoped(running.path, known.operation, params, False, None)
        self._owns((out, args))

    def _leave_container(self, module: nn.Module, running: Running, args: Any, kwargs: Any, out: Any) -> None:
        """Record a call of a module that is no leaf."""
        settings, first = self._settings.of(module), len(self.scopes)
        try:
            key = call_key((type(module), settings), args, kwargs or {}, _form)
            operation = self._containers.get(key)
        except (Unknown, TypeError):
            key, operation = (), None
        if operation is not None and _is(out, operation.out):
            _, _, took = self._pop(module)
            self._scoped(
                running.path, operation, settings.params, bool(module._modules), max(took - running.inside, 0.0)
            )
            return
        super()._leave(module, args, kwargs, out)
        if key and len(self.scopes) == first + 1:
            self._containers[key] = self.scopes[first].operation

    def _metadata_suffices(self, modes: int) -> bool:
        """Return whether the record of a call follows from metadata now: not inside another call, in a backward pass, with
        uninitialized memory around, in several threads, under autocast, a functorch transform, hooks of saved tensors or
        a function mode of somebody else's. ``modes`` is the number of ours that are on."""
        return not (
            self._in_call
            or len_torch_function_stack() != modes
            or self._threads.by_thread
            or self._plain_functions.running
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or current_graph_task_id() != -1
            or saved_tensors_hooks(False) is not None
            or transformed()
            or fake_mode() is not None
            or self._is_importing()
            or threading.get_ident() != self._thread
        )

    def _is_importing(self) -> bool:
        """Return whether torch's compiler is being imported; once it is loaded nobody need look."""
        compiler = sys.modules.get(COMPILER)
        if compiler is self._compiler:
            return False
        if is_importing_compiler():
            return True
        self._compiler = compiler
        return False


def _has_values(entry: Formula, seen: Any) -> bool:
    """Return whether the record of such a call depends on more than metadata, or leaves memory unwritten."""
    masked = entry.op == ATTENTION and len(tensors_given(seen[:2])) > QUERY_KEY_VALUE
    return masked or entry.op in EMPTY or entry.reason in (QUERY, ESCAPE)


def _form(tensor: torch.Tensor) -> Any:
    """Return what the operation of a call, and the tensors made in it, depend on of a tensor; None for all but plain ones."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg():
        return None
    if tensor.dtype.is_complex and tensor.is_conj():  # a bit that shape and strides do not show
        return None
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad, tensor.device


def _is(value: Any, known: Any) -> bool:
    """Return whether a result has these specs."""
    kind = type(value)
    if kind in ORDINARY:
        return (
            type(known) is Spec
            and value.shape == known
            and value.dtype is known.dtype
            and value.layout is torch.strided
            and not value.is_nested
        )
    if kind is tuple or kind is list:
        return type(known) is tuple and len(known) == len(value) and all(map(_is, value, known))
    return bool(typed(spec_of(value)) == typed(known))
