"""The half of an observer that sees operators, by a dispatch mode, and runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops import Formula
from ..ops._rules import UNWATCHED
from ..ops._traits import EMPTY
from ..ops.shapes import held_unwatched
from ..records import SCRIPT, Operation, specs_in
from ..records.pairs import ATTENTION, ATTENTIONS, LOOKUP
from ..records.tensors import spec_of
from ..torch_internals import (
    STOPS_RECOMPUTING,
    DisableTorchFunction,
    EnableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    current_graph_task_id,
    disable_current_modes,
    dispatched,
    is_below_autograd,
    is_control_flow,
    of_checkpoint,
    python_kernel,
)
from .attention_pairs import has_causal_bias, with_learning, with_pairs_left
from .autocast import Autocast
from .autograd_owners import loss_in, roots_of
from .call_log import Made
from .compiler import run_operator
from .composed import composing_kernel
from .device_mirror import DeviceMirror
from .functions import PYTHON_FUNCTIONS, callables_in, origin_of, with_callables, writes
from .lookups import with_row
from .modes import AtenMode, ResultsMode, dispatch_mode_on, transformed
from .modules import ModuleObserver
from .phases import FORWARD
from .processes import communicates, copies_gathered, is_between_processes
from .stack import ModuleStack
from .uninitialized_reads import Unwritten

QUERY, VIEW, RNN_BACKWARD = "query", "view", "rnn_backward"


class OperatorObserver(ModuleObserver):
    """Records the operators that calls without formula dispatch. :class:`~.observe.Observer` adds functions.

    ``_in_call`` tells that operators are part of a recorded call, ``_in_node`` that they are part of a node of the
    recorded graph. ``_inside`` is the function without formula that dispatches them, None if no function does.
    """

    _autocast: Autocast | None
    _device_mirror: DeviceMirror | None
    _announce: Callable[..., None]
    _entered: Callable[[], AbstractContextManager[None]]
    _launches_noted: Callable[[], AbstractContextManager[None]]
    _functions_observed: Callable[[], AbstractContextManager[None]]
    _facts: bool
    _unwritten: Unwritten

    def _of_thread(self, stack: ModuleStack) -> None:
        super()._of_thread(stack)
        self.aten = AtenMode(self.operator, self.stopwatch)
        self._in_call = self._in_node = self._in_higher_order = False
        self._inside: Any = None
        self._parts: list[tuple[Any, Made]] = []

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator that was dispatched, and record it unless it is part of a recorded call."""
        with self.lock, DisableTorchFunction():
            self.phases.on_operator(func, args)
            if communicates(func):
                return self._communicated(func, args, kwargs)
            if self._in_call or self._inside_leaf():
                self._announce(func, args, kwargs)  # F.embedding(max_norm=) writes to its weight
                out = self._track(self._kernel(func, args, kwargs))
                if current_graph_task_id() != -1:  # kept in case checkpoint stops the call halfway: see _stopped
                    self._parts.append((func, (spec_of(args), spec_of(kwargs), spec_of(out))))
                return out
            given = args, kwargs
            if self._mirror is not None:
                args, kwargs = self._mirror.replace(args, kwargs, func)
            self._announce(func, args, kwargs)
            entry = self._registry.find(func)
            specs, kwspecs = spec_of(args), spec_of(kwargs)
            if entry is not None and entry.op == RNN_BACKWARD:
                specs = with_learning(args, specs)
            copies = self._unwritten.is_copied_by(entry, *given)
            if not copies:
                self._check(entry, func, *given)
            # A composite operator without formula counts as the operators that it is made of.
            if entry is None and isinstance(func, OpOverload) and func._can_decompose():
                with self._dispatching(func), dispatch_mode_on(self.aten):
                    return self.stopwatch.run(func.decompose, args, kwargs)
            node_args = self._before(args, kwargs)
            start = self.stopwatch.now()
            out = self._run(func, args, kwargs)
            if copies_gathered(func) and self._storages is not None:
                self._storages.add_gathered(kwargs["out"], self._collectives.cause() or self._here())
            if not isinstance(func, HigherOrderOperator) if entry is None else entry.reason != QUERY:
                made = specs, kwspecs, self._result(entry, func, given, out)
                origin = self._origin(func, self.phases.now())
                self._record(entry, func, made, self.stopwatch.now() - start, origin)
                self._owns((out, args))
            if copies or (entry is not None and entry.op in EMPTY):
                self._unwritten.add(out)
            if node_args is not None and self._recorder is not None:
                self._recorder.function(func, node_args, out, self._stack.keys())
            return out

    def _origin(self, func: Any, phase: str) -> str:
        """Return the origin of an operator that was dispatched: a function's, the model's own code, or compiled code."""
        if self._inside is None:
            return SCRIPT if phase == FORWARD else ""  # in a backward pass it is autograd that calls operators
        return origin_of(self._inside) if self._inside in (func, getattr(func, "overloadpacket", None)) else ""

    @contextmanager
    def _dispatching(self, func: Any) -> Iterator[None]:
        """Mark operators in this block as dispatched by a function."""
        before, self._inside = self._inside, func
        try:
            yield
        finally:
            self._inside = before

    def _communicated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record an operator that sends or receives, also one that is part of another call."""
        if self._mirror is not None:
            args, kwargs = self._mirror.replace(args, kwargs, func)
        self._announce(func, args, kwargs)
        entry = self._registry.find(func)
        self._check(entry, func, args, kwargs)
        node_args = self._before(args, kwargs)
        group = self._collectives.group_of(func, args, kwargs)
        start = self.stopwatch.now()
        out = self._run(func, args, kwargs)
        made = spec_of(args), spec_of(kwargs) | group, spec_of(out)
        cause = self._collectives.cause()
        seconds = self.stopwatch.now() - start
        self.log.call(entry, func, made, self._here() if cause is None else cause, seconds, is_placed=cause is not None)
        self._owns((out, args))
        if node_args is not None and self._recorder is not None:
            self._recorder.function(func, node_args, out, self._stack.keys())
        return out

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass from the loss, or the sum of the outputs, and record its operators.

        ``run(roots, ones)`` runs it. Raises InputError if no output requires a gradient.
        """
        self.path = ""
        self._in_node = True  # no part of a recorded graph
        if not issubclass(type(out), torch.Tensor) and (loss := loss_in(out)) is not None:
            out = loss
        roots, ones = roots_of(out if self._mirror is None else self._mirror.written(out))
        self._track(ones)
        if self._mirror is not None:  # an output may be an input; newer versions of torch call the function mode for it
            with DisableTorchFunction():
                (roots, ones), _ = self._mirror.replace((roots, ones), {}, run)
        with dispatch_mode_on(self.aten), self._launches_noted():
            run(roots, ones)

    def _result(self, entry: Formula | None, func: Any, given: tuple[tuple[Any, ...], dict[str, Any]], out: Any) -> Any:
        if entry is not None and entry.op in ATTENTIONS and (self._facts or has_causal_bias(given)):
            return with_pairs_left(entry, func, given, out, must=self._facts and self._mirror is not None)
        is_lookup = self._mirror is not None and entry is not None and entry.op == LOOKUP
        return with_row(spec_of(out), given[0]) if is_lookup else spec_of(out)

    def _check(self, entry: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call without formula if a function reads memory that no observed call has written."""
        if is_between_processes(func):  # neither a schema nor a name tells what it writes to
            self._unwritten.wrote((args, kwargs))
        elif self._unwritten.is_read_by(entry, func, args, kwargs):
            self.log.call(None, "unseen write to torch.empty", (*spec_of((args, kwargs)), None), self._here(), 0.0)

    def _stopped(self, path: str, entry: Formula | None = None, target: Any = None, given: Any = ((), {})) -> None:
        """Handle that a call in the module of this path raised; of a function, ``entry`` is the formula."""
        # Checkpoint stops recomputing by an exception inside a call: the operators that ran until then are calls.
        for func, (*specs, out) in (
            self._parts if isinstance(sys.exc_info()[1], of_checkpoint(STOPS_RECOMPUTING)) else ()
        ):
            part = self._registry.find(func)
            if entry is not None and part is not None and entry.op == part.op == ATTENTION:
                out = self._result(entry, target, given, out)  # its kernel may have been given a mask without values
            self.log.call(part, func, (*specs, out), path, 0.0)
        self._parts.clear()

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._autocast is not None:
            args, kwargs = self._autocast.cast(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            self._unwritten.clear()
            with disable_current_modes():
                out = self._run_higher_order(func, args, kwargs)
        else:
            out = self._unwatched(func, args, kwargs) if func in UNWATCHED else NotImplemented
            if out is NotImplemented:
                out = self._kernel(func, args, kwargs)
        self._register(func, args, kwargs, out)
        return self._track(out)

    def _unwatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that computes more while a mode is on with all modes off; its rule tells what it holds meanwhile.

        Return NotImplemented if this call goes the same way in both cases.
        """
        tensors = tensors_given((args, kwargs))
        if self._storages is None or not tensors or transformed():
            return NotImplemented
        device = tensors[0].device if self._device_mirror is None else self._device_mirror.device
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        ran = Operation("", func, spec_of(args), spec_of(kwargs), None)
        lying = [(tensor.shape, tensor.stride()) for tensor in tensors]
        held = held_unwatched(ran, lying, device.type, learns)
        if held is None:
            return NotImplemented
        with disable_current_modes():
            out = self._kernel(func, args, kwargs)
        self._storages.call = len(self.calls)
        self._storages.add_transient([(spec, spec.nbytes) for spec in (*held, *specs_in(spec_of(out)))])
        return out

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator, so that what it calls is observed."""
        calls_others = any(not isinstance(each, PYTHON_FUNCTIONS) for each in callables_in((args, kwargs)))
        if is_control_flow(func) or self._registry.find(func) is not None or not calls_others:
            # All modes are off around its functions, which turn them on again for themselves.
            args, kwargs = with_callables((args, kwargs), self._entered)
            # What it makes itself, the rows and their stack, it makes by functions.
            tracked = is_control_flow(func) and self._storages is not None
            with (
                EnableTorchFunction() if tracked else nullcontext(),
                ResultsMode(self._track) if tracked else nullcontext(),
            ):
                return self.stopwatch.run(python_kernel(func), args, kwargs)
        # Operators and modules stay what they are, since it looks at more than their results: its own kernel calls them
        # under the function mode. Many refuse to be called under a dispatch mode.
        args, kwargs = with_callables((args, kwargs), self._entered, PYTHON_FUNCTIONS)
        with self._within(False, True), self._functions_observed():
            return self.stopwatch.run(dispatched, (func, args, kwargs), {}, work=func)

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._storages is not None and type(func) is OpOverload and is_below_autograd():
            device = None if self._device_mirror is None else self._device_mirror.device
            kernel = composing_kernel(func, args, kwargs, device)
            if kernel is not None:
                return self._composed(kernel, func, args, kwargs)
        return self.stopwatch.run(run_operator, (func, args, kwargs), {}, work=func)

    def _composed(self, kernel: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator by those that it is made of, as parts of it, so that the tensors they make are tracked."""
        parts = len(self._parts)
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            out = self.stopwatch.run(kernel, args, kwargs, work=func)
        del self._parts[parts:]
        return out

    def _register(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._mirror is not None:
            if writes(func, kwargs):  # x.resize_(3), x.data = y
                self._mirror.forget((args, kwargs))
            self._mirror.register(out)

    def _before(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a call as nodes of the recorded graph; None if it is no node of its own there.

        What a gradient that the forward takes runs, hooks and recomputation, is part of the node that takes it.
        """
        if self._recorder is None or self._in_node or current_graph_task_id() != -1:
            return None
        return self._recorder.before(args, kwargs)

    @contextmanager
    def _within(self, in_call: bool, in_node: bool) -> Iterator[None]:
        """Mark operators in this block as parts of a recorded call (``in_call``) or of a graph's node (``in_node``)."""
        before = self._in_call, self._in_node
        self._in_call, self._in_node = in_call, in_node
        try:
            yield
        finally:
            self._in_call, self._in_node = before
