"""The fast path of observing a run on real tensors: a call like an earlier one is recorded as the same operation.

All that a record takes from a call follows from the function, its plain arguments and the metadata of its tensors; but
for what it returns, which is compared each time. Calls that make no tensor but their result run with the dispatch mode
off. All other calls (in a backward pass, in other threads, under autocast and transforms) take the way of
:class:`~.observe.Observer`.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn

from ..meters.live_storages import LiveStorages, Span
from ..model.pytree import device_of, tensors_given
from ..model.snapshot import counting
from ..ops import ESCAPE, Formula
from ..ops._traits import EMPTY
from ..records import Call, Operation, Scope, Spec, typed
from ..records.pairs import ATTENTIONS
from ..records.tensors import ORDINARY, is_dense, spec_of
from ..torch_internals import (
    COMPILER,
    DisableTorchDispatch,
    DisableTorchFunction,
    current_graph_task_id,
    is_any_autocast_enabled,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    saved_tensors_hooks,
)
from . import forwards
from .compiler import is_importing_compiler
from .fast import QUERIES
from .functions import origin_of
from .modes import transformed
from .observe import Observer
from .operators import QUERY, VIEW
from .phases import FORWARD, OPTIMIZER
from .plans import NAMED, Unknown, key_of
from .spelling import WRITTEN_AS
from .stack import Running

QUERY_KEY_VALUE = 3


PROPERTIES = (
    "device",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_leaf",
    "grad_fn",
    "is_sparse",
    "is_quantized",
    "itemsize",
    "nbytes",
    "grad",
    "_version",
)
ASKED = QUERIES | {getattr(torch.Tensor, name).__get__ for name in PROPERTIES}
"""Functions that compute nothing, and dispatch no operator."""


class Known(NamedTuple):
    """The operation of calls of one kind.

    ``makes`` tells whether its result may have a storage of its own, as that of a ``reshape`` that copies has. ``passing`` are specs and bytes of the storages that live
    only within such a call, at its peak; None if it leaves more than its result.
    """

    operation: Operation
    makes: bool
    passing: tuple[tuple[Spec, int], ...] | None


class LiveObserver(Observer):
    """The observer of ``profile()``.

    ``device`` is that of the profiled models: of tensors that were there before, only those on it are entered. It is None for
    models whose weights are all on meta, as those of a model are that loads them for each call: their results show
    where they ran, and ``ran_on`` is the device of the first one.
    """

    _storages: LiveStorages
    device: torch.device | None = None
    ran_on: torch.device | None = None

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
        if func in ASKED:  # over before the clock could be read
            return func(*args, **kwargs)
        if not self._stack.leaf_depth:
            self._meet(args, kwargs)
        if self._stack.leaf_depth or not self._metadata_suffices(modes=0):  # ours is off in its handler
            return super().function(func, args, kwargs)
        try:
            written = self._spelling.of(func) if func in WRITTEN_AS else func
            key = _key(written, args, kwargs)
            known = self._known.get(key)
        except (Unknown, TypeError):
            return super().function(func, args, kwargs)
        if known is None:
            return self._learn(key, func, args, kwargs)
        with self.lock:
            with DisableTorchDispatch() if known.passing is not None else self._within(True, self._in_node):
                out, seconds = self.stopwatch.timed(func, args, kwargs)
            path, running = self.path, self._stack.running
            if running:
                path, running[-1].inside = running[-1].path, running[-1].inside + seconds
            if _is(out, known.operation.out):
                self._repeated(known, path, seconds, out, args)
            else:
                self._storages.add_all(out, len(self.calls))
                specs = spec_of(args), spec_of(kwargs), spec_of(out)
                self.log.call(self._registry.find(func), written, specs, path, seconds, origin=origin_of(func))
                self._owns((out, args))
        return out

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self._in_call or self._inside_leaf()):
            self._meet(args, kwargs)
        return super().operator(func, args, kwargs)

    def _meet(self, args: Any, kwargs: Any) -> None:
        """Enter the tensors that a call is given and that were there before the block, by where it runs.

        Outside of the models these are targets of a loss and data that is cut into batches; in a model, what it holds by
        other means than as buffers; in a backward pass, activations of an earlier forward.
        """
        with DisableTorchFunction():
            if not kwargs and self._storages.has_all(args):  # most are the results of earlier calls
                return
            with self.lock:
                phase = self.phases.now()
                if phase == FORWARD:
                    category = "buffers" if self._stack.running else "inputs"
                else:
                    category = "optimizer" if phase == OPTIMIZER else ""
                self._storages.add_given(tensors_given((args, kwargs)), category, self.device)

    def _end_step(self, number: int, module: nn.Module, out: Any) -> None:
        super()._end_step(number, module, out)
        if self.device is None and self.ran_on is None:
            with DisableTorchFunction():
                self.ran_on = device_of(out)

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
        left, passing = self._storages.end(span, seen[:2])
        if entry is None or len(self.calls) != first + 1 or _has_values(entry, seen):
            return
        operation = self.calls[first].operation
        # What is not torch's own may look at modes, or switch some on.
        is_torchs = entry.is_ours and (not isinstance(operation.target, type) or forwards.is_torchs(operation.target))
        is_all = is_torchs and left == self._storages.bytes_since(entered, seen)
        self._known[key] = Known(operation, left > 0 or entry.reason != VIEW, passing if is_all else None)

    def _repeated(self, known: Known, path: str, seconds: float, out: Any, args: Any) -> str:
        """Record a call of a kind that is known, and track its tensors; return its phase."""
        (operation, makes, passing), storages, calls = known, self._storages, self.calls
        storages.call = len(calls)
        if passing:
            storages.add_transient(passing)
        if makes:
            if type(out) in ORDINARY:
                storages.add(out, operation.out)
            else:
                storages.add_all(out)
        phase = self.phases.now()
        calls.append(tuple.__new__(Call, (operation, path, "", "", seconds, phase, origin_of(operation.target))))
        if torch.is_grad_enabled():
            self._owns((out, args))
        return phase

    # Modules: those that run for a count in this thread pass, as its operations do

    def _enter_module(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if get_ident() not in counting(module):
            super()._enter_module(module, args, kwargs)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if get_ident() not in counting(module):
            super()._leave_module(module, args, kwargs, out)

    def _begin_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any) -> None:
        # Its weights, too: others may have been put in their place for this call.
        self._meet((*args, *module._parameters.values(), *module._buffers.values()), kwargs)
        if module._modules or not self._metadata_suffices(modes=1):
            super()._begin_leaf(module, running, args, kwargs)
            return
        try:
            with DisableTorchFunction():
                settings = self._settings.of(module)
                own = module._parameters.values() if torch.is_grad_enabled() else ()
                learning = tuple([p is not None and p.requires_grad for p in own])
                key = _key((type(module), settings, learning), args, kwargs)
                known = self._known.get(key)
        except (Unknown, TypeError):
            return
        begun = self._begun_call() if known is None else None
        running.known = known, key, settings.params, begun
        if known is not None and known.passing is not None:
            running.turn_off(DisableTorchFunction(), DisableTorchDispatch())

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
        if self._repeated(known, running.path, took, out, args) == FORWARD:
            self.scopes.append(tuple.__new__(Scope, (running.path, known.operation, params, False, None)))

    def _leave_container(self, module: nn.Module, running: Running, args: Any, kwargs: Any, out: Any) -> None:
        """Record a call of a module that is no leaf."""
        settings, first = self._settings.of(module), len(self.scopes)
        key = type(module), settings, _outline(args), _outline(kwargs)
        operation = self._containers.get(key)
        if operation is not None and _is(out, operation.out):
            _, _, took = self._pop(module)
            self._owns_rest(running.path, out)
            self._scoped(
                running.path, operation, settings.params, bool(module._modules), max(took - running.inside, 0.0)
            )
            return
        super()._leave(module, args, kwargs, out)
        if len(self.scopes) == first + 1:
            self._containers[key] = self.scopes[first].operation

    def _metadata_suffices(self, modes: int) -> bool:
        """Return whether the record of a call follows from metadata now: not inside another call, in a backward pass, with
        uninitialized memory around, in several threads, under autocast, a functorch transform, hooks of saved tensors or
        modes of somebody else's. ``modes`` is the number of function modes of ours that are on."""
        return not (
            self._in_call
            or len_torch_function_stack() != modes
            or len_torch_dispatch_stack() != 1
            or self._threads.by_thread
            or self._plain_functions.running
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or current_graph_task_id() != -1
            or (torch.is_grad_enabled() and saved_tensors_hooks(False) is not None)
            or transformed()
            or (sys.modules.get(COMPILER) is not self._compiler and self._is_importing())
        )

    def _is_importing(self) -> bool:
        """Return whether torch's compiler is being imported; once it is loaded nobody need look."""
        if is_importing_compiler():
            return True
        self._compiler = sys.modules[COMPILER]
        return False


def _has_values(entry: Formula, seen: Any) -> bool:
    """Return whether the record of such a call depends on more than metadata, or leaves memory unwritten."""
    masked = entry.op in ATTENTIONS and len(tensors_given(seen[:2])) > QUERY_KEY_VALUE
    return masked or entry.op in EMPTY or entry.reason in (QUERY, ESCAPE)


def _key(what: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return the key of a call of ``what``: all that its operation, and the tensors made in it, depend on.

    Raises Unknown if that is more than metadata.
    """
    key = [what, torch.is_grad_enabled()]
    for value in args:
        kind = type(value)
        if kind in ORDINARY:
            key += _form(value)
        else:
            key.append(value if kind is int else key_of(value, _form))
    if kwargs:
        key += NAMED, *kwargs, *[key_of(value, _form) for value in kwargs.values()]
    return tuple(key)


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the metadata of a tensor; raises Unknown for all but plain ones."""
    dtype = tensor.dtype
    if (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_neg()
        or (dtype.is_complex and tensor.is_conj())
    ):
        raise Unknown  # sparse, or with a bit that shape and strides do not show
    return tensor.shape, dtype, tensor.stride(), tensor.requires_grad, tensor.device


def _outline(value: Any) -> Any:
    """Return a key of what the spec of a value tells."""
    kind = type(value)
    if kind in ORDINARY and is_dense(value):
        return kind, value.shape, value.dtype
    if kind is tuple or kind is list:
        return tuple([_outline(item) for item in value])
    if kind is dict:
        return kind, *value, *[_outline(item) for item in value.values()]
    return value if kind is int or value is None else (kind, typed(spec_of(value)))


def _is(value: Any, known: Any) -> bool:
    """Return whether a result has these specs."""
    kind = type(value)
    if kind in ORDINARY:
        return (
            type(known) is Spec
            and value.layout is torch.strided
            and not value.is_nested
            and value.shape == known
            and value.dtype is known.dtype
        )
    if value is None:
        return known is None
    if kind is tuple or kind is list:
        return type(known) is tuple and len(known) == len(value) and all(map(_is, value, known))
    return bool(typed(spec_of(value)) == typed(known))
