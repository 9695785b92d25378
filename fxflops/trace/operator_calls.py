"""Observe operators, which the dispatch mode sees in the backward pass and in calls without a formula."""

from __future__ import annotations

from typing import Any

from ..ops import QUERY
from ..ops._traits import UNINITIALIZED
from ..records import FORWARD, SCRIPT, Operation
from ..records.facts import RNN_BACKWARD
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, HigherOrderOperator, OpOverload, current_graph_task_id
from .attention_pairs import with_requires_grad
from .call_runner import CallRunner
from .functions import origin_of
from .memo import NewCall, Unknown
from .memo_use import MemoUse
from .modes import dispatch_mode_on
from .observer_state import SharedState, ThreadPart, ThreadState
from .processes import communicates
from .recording import Recording


class OperatorCalls(ThreadPart):
    """Receives the dispatch mode's calls in one thread: :meth:`operator` runs each operator; it records those outside recorded calls."""

    def __init__(
        self, shared: SharedState, state: ThreadState, recording: Recording, memo_use: MemoUse, runner: CallRunner
    ) -> None:
        super().__init__(shared, state)
        self._recording = recording
        self._memo_use = memo_use
        self._runner = runner

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a dispatched operator; record it unless it is part of a recorded call."""
        with DisableTorchFunction():
            key = key_tensors = recipe = None
            world = self._world
            is_call = not self._state.inside_call()
            # If no model has been called in this run, a backward pass uses activations from before the run.
            # After a model call, unknown tensors come from unobserved code within the run, e.g. DDP's buckets or the buffers of collectives.
            if is_call and world.is_block and not self._shared.has_called:
                self._recording.enter_earlier_tensors(args, kwargs)
            # If the memo may remember the running function, do not look up its operators: the next call will not run them.
            if world.memo is not None and not (
                self._unwritten.storages or (self._state.may_remember_function and not is_call)
            ):
                try:
                    key, key_tensors = world.operator_key(func, args, kwargs)
                    recipe = None if key is None else world.memo.get(key)
                except (Unknown, TypeError):
                    key = None
            if key is None:
                return self._observe_operator(func, args, kwargs)
            if recipe is None or (is_call and recipe.is_part):
                return self._run_new_operator(key, is_call, func, args, kwargs)
            with self._lock:
                self._phases.on_operator(func, args)
                self._storages.begin_next_call()
                out = world.repeat_operator(recipe, key, func, args, kwargs, key_tensors)
                if is_call:
                    self._state.call_operators.clear()
                    phase, path = self._call_log.take_phase_and_path(self._state.innermost_path())
                    # The clock runs in a profile of a simulated rank (FakeWorld), where no kernel takes time.
                    seconds = 0.0 if self._stopwatch.runs else None
                    origin = self._origin(func, phase)
                    self._call_log.add(recipe.operation, path, seconds, phase, origin)
                    self._recording.own_nodes_behind(out, args)
                elif current_graph_task_id() != -1:  # checkpoint may stop a call halfway, but only in a backward pass
                    operation = recipe.operation
                    self._state.call_operators.append((func, (operation.args, operation.kwargs, operation.out)))
                return out

    def _run_new_operator(
        self, key: Any, is_call: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator that has no recipe yet. Add a recipe to the memo if the operator's record depends only on metadata."""
        before = self._memo_use.begin()
        out = self._observe_operator(func, args, kwargs)
        memory_effect = self._memo_use.memory_effect(before, (args, kwargs))
        formula = self._registry.find(func)
        if formula is not None and len(self._calls) == before.calls + is_call and not communicates(func):
            if is_call:
                operation = self._calls[before.calls].operation
            else:
                operation = Operation(formula.op, func, spec_of(args), spec_of(kwargs), spec_of(out))
            call = NewCall(key, formula, func, func, args, kwargs)
            self._world.keep_operator_recipe(call, operation, out, memory_effect, is_part=not is_call)
        return out

    def _observe_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without using the memo; record it unless it is part of a recorded call."""
        with self._lock:
            self._phases.on_operator(func, args)
            if communicates(func):
                return self._run_communication(func, args, kwargs)
            if self._state.inside_call():
                self._shared.announce_writes(func, args, kwargs)  # F.embedding(max_norm=) writes to its weight
                out = self._recording.track(self._runner.run_kernel(func, args, kwargs))
                if current_graph_task_id() != -1:
                    self._state.call_operators.append((func, (spec_of(args), spec_of(kwargs), spec_of(out))))
                return out
            original = args, kwargs
            args, kwargs = self._world.tensors.replace(args, kwargs, func)
            self._shared.announce_writes(func, args, kwargs)
            formula = self._registry.find(func)
            specs, kwspecs = spec_of(args), spec_of(kwargs)
            if formula is not None and formula.op == RNN_BACKWARD:
                specs = with_requires_grad(args, specs)
            copies_unwritten = self._unwritten.is_copied_by(formula, *original)
            if not copies_unwritten:
                self._recording.check_reads(formula, func, *original)
            # For a composite operator without a formula, record the operators of its decomposition.
            if formula is None and isinstance(func, OpOverload) and func._can_decompose():
                with self._state.dispatching(func), dispatch_mode_on(self._state.operator_mode):
                    return self._stopwatch.run(func.decompose, args, kwargs)
            node_args = self._recording.graph_arguments(args, kwargs)
            start = self._stopwatch.now()
            out = self._runner.run(func, args, kwargs)
            # Do not record a higher-order operator, since the calls inside it are recorded. Do not record a query, since it computes nothing.
            is_recorded = not isinstance(func, HigherOrderOperator) if formula is None else formula.reason != QUERY
            if is_recorded:
                call_specs = specs, kwspecs, self._recording.result_spec(formula, func, original, out)
                origin = self._origin(func, self._phases.now())
                self._recording.record(formula, func, call_specs, self._stopwatch.now() - start, origin)
                self._recording.own_nodes_behind(out, args)
            if copies_unwritten or (formula is not None and formula.op in UNINITIALIZED):
                self._unwritten.add(out)
            if node_args is not None:
                self._graph_listener.function(func, node_args, out, self._stack.keys())
            return out

    def _origin(self, func: Any, phase: str) -> str:
        """Return the origin of a dispatched operator: SCRIPT if no function called it, OPERATOR if the model called it directly, else ""."""
        if self._state.dispatcher is None:
            return SCRIPT if phase == FORWARD else ""  # in a backward pass autograd calls the operators
        is_called_directly = self._state.dispatcher in (
            func,
            getattr(func, "overloadpacket", None),
        )  # torch.ops.aten.mm(...)
        return origin_of(self._state.dispatcher) if is_called_directly else ""

    def _run_communication(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record an operator that sends or receives data, even inside another recorded call."""
        args, kwargs = self._world.tensors.replace(args, kwargs, func)
        self._shared.announce_writes(func, args, kwargs)
        formula = self._registry.find(func)
        self._recording.check_reads(formula, func, args, kwargs)
        node_args = self._recording.graph_arguments(args, kwargs)
        group = self._shared.collectives.group_of(func, args, kwargs)
        start = self._stopwatch.now()
        out = self._runner.run(func, args, kwargs)
        call_specs = spec_of(args), spec_of(kwargs) | group, spec_of(out)
        cause = self._shared.collectives.cause()
        seconds = self._stopwatch.now() - start
        self._stack.add_communication(seconds, is_in_function=self._state.in_call)
        self._call_log.call(
            formula,
            func,
            call_specs,
            self._state.innermost_path() if cause is None else cause,
            seconds,
            phase="" if cause is None else self._phases.now(),
        )
        self._recording.own_nodes_behind(out, args)
        if node_args is not None:
            self._graph_listener.function(func, node_args, out, self._stack.keys())
        return out
