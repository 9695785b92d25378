"""Observe the calls of functions and methods, which the function mode sees."""

from __future__ import annotations

import sys
from types import FunctionType, MethodWrapperType
from typing import Any

import torch

from ..errors import NeedsRealTensors
from ..ops import ESCAPE, QUERY, Formula
from ..ops._libraries import LibraryFunction
from ..ops._traits import UNINITIALIZED
from ..records import BACKWARD, RECOMPUTE
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, is_tracing
from .call_runner import CallRunner
from .compiler import is_importing_compiler, unseen
from .functions import (
    GIVES_MEMORY,
    GIVES_STORAGE,
    computes,
    is_integral,
    origin_of,
    qualified_name,
    sets_property_or_reads_grad,
)
from .library_calls import LibraryCalls
from .memo import NewCall, Recipe, Unknown, call_key
from .memo_use import MemoUse
from .model_tensors import Arguments
from .modes import FunctionMode, dispatch_mode_on, transformed
from .observer_state import SharedState, ThreadPart, ThreadState
from .phases import is_comparing
from .processes import is_between_processes, is_gathering, runs_in_parts
from .recording import Recording
from .spelling import WRITTEN_AS
from .uninitialized_reads import address_of

ADDRESS = "data_ptr"


class FunctionCalls(ThreadPart):
    """Receives the function mode's calls in one thread: :meth:`function` runs and records each call."""

    def __init__(
        self,
        shared: SharedState,
        state: ThreadState,
        recording: Recording,
        memo_use: MemoUse,
        library: LibraryCalls,
        runner: CallRunner,
    ) -> None:
        super().__init__(shared, state)
        self.bodies, self.stopwatch = shared.bodies, state.stopwatch  # read by the FunctionMode: see FunctionObserver
        self._recording = recording
        self._memo_use = memo_use
        self._library = library
        self._runner = runner

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the function mode, and record the call."""
        world = self._world
        if len(sys.modules) != self._shared.imported:
            self._shared.follow_imports()
        if func in world.unrecorded:
            return func(*args, **kwargs)
        if self._state.in_library_backward:  # a library function's backward may first rerun a checkpointed forward
            if self._phases.now() != RECOMPUTE:
                return func(*args, **kwargs)
            with self._state.outside_library():
                return self.function(func, args, kwargs)
        if func in world.answers and not self._owners.records_owners and not transformed():
            return world.answers[func]  # in all other cases _observe_call decides what to answer
        if not world.is_meta and not self._stack.leaf_depth:
            self._recording.enter_earlier_tensors(args, kwargs)
        memo = None if type(func) is LibraryFunction else self._memo_use.memo_now(is_our_mode_popped=True)
        if memo is None:
            return self._observe_call(func, args, kwargs)
        # x + y and x.add(y) are the same method here; only the caller's bytecode distinguishes them.
        target = self._shared.spelling.of(func) if func in WRITTEN_AS else func
        try:
            key = call_key((target, *world.torch_settings(func)), args, kwargs, world.tensors.form)
            recipe = memo.get(key)
        except (Unknown, TypeError):
            return self._observe_call(func, args, kwargs)
        if recipe is None:
            formula = self._registry.find(func)
            if formula is None:  # no formula: the calls inside the function are recorded
                return self._observe_call(func, args, kwargs)
            call = NewCall(key, formula, target, func, args, kwargs)
            with self._lock:
                recipe = world.recipe_by_rule(call)
                if recipe is None:
                    return self._run_new(call)
        with self._lock:
            return self._repeat(recipe, target, func, args, kwargs)

    def raised(self, error: Exception) -> None:
        """Note an error that a call raised: the model may catch the error."""
        if name := self._world.raised(error):
            self._call_log.call(None, name, ((), {}, None), self._state.innermost_path(), 0.0)

    def _repeat(self, recipe: Recipe, target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call's result, by its recipe or by running the call; record the call and return the result."""
        out, operation, seconds = self._world.repeat_call(recipe, func, args, kwargs, self._runner.run_timed)
        if recipe.may_have_mask and operation is not None:
            # The number of pairs that a mask keeps depends on the mask's values. They may differ from the mask's values in the first call.
            operation = self._recording.with_mask_of(operation, func, args, kwargs, out)
        path, open_calls = self._shared.path, self._stack.open
        if open_calls:
            path = open_calls[-1].path
            if seconds is not None:
                open_calls[-1].inside += seconds
        if operation is not None:
            self._recording.add_repeated(operation, path, seconds, origin_of(func), out, args)
        else:  # the result differs from the first call's
            self._recording.track(out)
            call_specs = spec_of(args), spec_of(kwargs), spec_of(out)
            self._call_log.call(
                self._registry.find(func), target, call_specs, path, seconds or 0.0, origin=origin_of(func)
            )
            self._recording.own_nodes_behind(out, args)
        return out

    def _run_new(self, call: NewCall) -> Any:
        """Run a call that has no recipe yet. Add a recipe to the memo if the call's record depends only on metadata."""
        func, args, kwargs = call.func, call.args, call.kwargs
        out, operation = self._world.run_views(call)
        if operation is not None:
            self._recording.add_repeated(operation, self._state.innermost_path(), None, origin_of(func))
            return out
        before, self._state.may_remember_function = self._memo_use.begin(), True
        try:
            out, operation = self._world.run_by_shortcut(call, self._runner.run_with_operators_observed)
            if operation is None:
                out = self._observe_call(func, args, kwargs)
            else:
                self._recording.add_repeated(operation, self._state.innermost_path(), None, origin_of(func))
        finally:
            self._state.may_remember_function = False
        self._memo_use.end(call, before, out, scopes=0)
        return out

    def _observe_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call without using the memo. Of these, the first that applies decides what is recorded:

        =======================================================  ======================  ================================================
        the call                                                 runs in                 recorded is
        =======================================================  ======================  ================================================
        belongs to torch's compiler, or only infers shapes                                nothing
        runs under a functorch transform                         ``_run_transformed``    the operators that it dispatches
        is answered by the world, e.g. ``x.device`` on meta      ``_record_answer``      the answer in the graph, if one is recorded
        is part of a call that is recorded as a whole            ``CallRunner.run``      nothing
        reads or sets a property                                 ``_run_plain``          a node of the graph
        asks for an address, a type, metadata or integers        ``_run_query``          nothing
        is a Python function without a formula                   ``_observe_body``       the calls inside it
        is any other                                             ``_run_and_record``     the call, or its operators without a formula
        =======================================================  ======================  ================================================
        """
        if is_importing_compiler():
            with unseen():
                return self._stopwatch.run(func, args, kwargs)
        # DTensor is inferring shapes, or a higher-order operator is tracing a function to run it later. So this call computes nothing.
        if self._state.operator_mode.is_faking() or (self._state.in_higher_order and is_tracing()):
            return self._stopwatch.run(func, args, kwargs)
        if transformed():
            return self._run_transformed(func, args, kwargs)
        world, original = self._world, (args, kwargs)
        if func == GIVES_MEMORY:
            self._storages.may_reassign(args[0])
        if func in GIVES_STORAGE:
            self._watch_size(args[0])
        if sets_property_or_reads_grad(func):
            args = world.tensors.holding_gradient(func, args)
        else:
            args, kwargs = world.tensors.replace(args, kwargs, func)
            # Autograd and checkpoint compare the devices of meta tensors, so let torch return the true device, meta.
            if world.is_meta and not (
                self._owners.records_owners and (self._phases.now() == BACKWARD or is_comparing())
            ):
                answer = world.answer(func, args, kwargs)
                if answer is not NotImplemented:
                    return self._record_answer(func, args, kwargs, answer)
        self._shared.announce_writes(func, args, kwargs)
        if self._state.inside_whole_call():
            return self._runner.run(func, *world.redirect(func, args, kwargs))  # e.g. an RNN cell's initial state
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return self._run_plain(func, args, kwargs)
        formula = self._registry.find(func)
        answer = self._run_query(formula, func, args, kwargs)
        if answer is not NotImplemented:
            return answer
        if formula is None and isinstance(func, FunctionType) and func not in self._state.bodies_under_way:
            return self._observe_body(func, args, kwargs)
        in_parts = runs_in_parts(args, kwargs)
        with self._lock:
            return self._run_and_record(func, args, kwargs, original, None if in_parts else formula, in_parts)

    def _run_query(self, formula: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer to a call that asks for an address, a type, metadata or integers; NotImplemented for any other call."""
        if formula is not None and formula.op == ADDRESS:
            if self._shared.spelling.is_compared(ADDRESS):
                return address_of(args[0])
            if self._world.is_meta and args[0].is_meta:
                raise NeedsRealTensors(
                    "cannot read memory at a tensor's address: tensors on the meta device have no values"
                )
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:  # x.type() returns a name, x.type(dtype) casts
            return self._stopwatch.run(func, args, kwargs)
        # tolist() of integers (positions, lengths) is treated like a query; tolist() of floating values moves data out of torch.
        if formula is not None and (formula.reason == QUERY or (formula.reason == ESCAPE and is_integral(args[0]))):
            with self._state.within_call():
                return self._stopwatch.run(func, args, kwargs)
        return NotImplemented

    def _run_and_record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Arguments,
        formula: Formula | None,
        in_parts: bool,
    ) -> Any:
        """Run a function and record it as one call. If ``formula`` is None, record the operators that the function dispatches instead.

        With ``in_parts``, ``formula`` is always None, because this process computes only some operators of the function. For a sharded
        tensor, it computes the operators on its own shard; in selective checkpointing, the operators whose results were not saved.
        ``original`` has the arguments that the model passed.
        """
        self._world.called_unseen()
        specs, kwspecs = self._recording.argument_specs(func, args, kwargs)  # with the model's own device arguments
        args, kwargs = self._world.redirect(func, args, kwargs)
        copies_unwritten = self._unwritten.is_copied_by(formula, *original)
        if not (copies_unwritten or in_parts):
            self._recording.check_reads(formula, func, *original)
        node_args = self._recording.graph_arguments(args, kwargs)
        target = self._shared.spelling.of(func) if func in WRITTEN_AS else func
        self._state.call_operators.clear()
        start = self._stopwatch.now()
        try:
            if formula is None:
                out = self._run_by_operators(func, args, kwargs, specs, kwspecs, in_parts)
            else:
                with self._state.within_call():
                    out = self._runner.run(func, args, kwargs)
        except Exception:
            path = self._state.innermost_path()
            self._shared.note_failure(qualified_name(func), path, (specs, kwspecs))
            self._recording.call_raised(path, formula, func, original)
            raise
        if formula is not None:
            call_specs = specs, kwspecs, self._recording.result_spec(formula, func, original, out)
            self._recording.record(formula, target, call_specs, self._stopwatch.now() - start, origin_of(func))
            if type(func) is LibraryFunction:
                self._library.follow_backward(func, args, kwargs, call_specs, out)
            self._recording.own_nodes_behind(out, args)
            if formula.op in UNINITIALIZED or copies_unwritten:
                self._unwritten.add(out)
        elif in_parts and self._calls:
            self._recording.own_nodes_behind(out, args)
        if node_args is not None:
            self._graph_listener.function(target, node_args, out, self._stack.keys())
        return out

    def _run_by_operators(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any, kwspecs: Any, in_parts: bool
    ) -> Any:
        """Run a function without a formula. Record the operators that the function dispatches or, if it dispatches none, the function."""
        calls_before = len(self._calls)
        with (
            self._state.within_node(),
            self._state.dispatching(func),
            dispatch_mode_on(self._state.operator_mode),
        ):
            out = self._runner.run(func, args, kwargs)
        may_dispatch_nothing = in_parts or is_between_processes(func)
        if len(self._calls) > calls_before or may_dispatch_nothing:
            return out
        call_specs = specs, kwspecs, spec_of(out)
        if computes(func, *call_specs):
            self._call_log.call(None, func, call_specs, self._state.innermost_path(), 0.0, origin=origin_of(func))
        return out

    def _run_transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function under a functorch transform. Record the operators that it dispatches, since these get the full shapes."""
        answer = self._world.answer(func, args, kwargs)
        if answer is not NotImplemented:
            return answer
        args, kwargs = self._world.redirect(func, args, kwargs)
        formula = self._registry.find(func)
        if self._state.inside_whole_call() or (formula is not None and formula.reason == QUERY):
            return self._stopwatch.run(func, args, kwargs)
        if formula is None and isinstance(func, FunctionType) and func not in self._state.bodies_under_way:
            return self._observe_body(func, args, kwargs)
        with self._state.dispatching(func), dispatch_mode_on(self._state.operator_mode):
            out = self._world.dispatch_as_device(func, args, kwargs)
            return self._stopwatch.run(func, args, kwargs) if out is NotImplemented else out

    def _observe_body(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function so that the calls inside it reach the function mode."""
        self._state.bodies_under_way.add(func)
        try:
            with self._phases.backward_during(func), FunctionMode(self):
                return self._stopwatch.run(self._shared.without_guard(func), args, kwargs)
        finally:
            self._state.bodies_under_way.discard(func)

    def _run_plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that computes nothing, but may return a tensor, such as ``x.T`` or ``x.data``."""
        node_args = self._recording.graph_arguments(args, kwargs)
        with self._state.within_call():
            out = self._stopwatch.run(func, args, kwargs)
        self._world.returned(func, args, kwargs, out)
        if node_args is not None:
            self._graph_listener.plain(func, node_args, out, self._stack.keys())
        return out

    def _record_answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        """Return the world's answer to a call. If the answer is a tensor, as for ``x.cpu()``, record the call."""
        formula = (
            self._registry.find(func)
            if isinstance(answer, torch.Tensor) and not self._state.inside_whole_call()
            else None
        )
        if formula is not None:
            self._call_log.call(
                formula, func, (spec_of(args), spec_of(kwargs), spec_of(answer)), self._state.innermost_path(), 0.0
            )
        return answer

    def _watch_size(self, tensor: torch.Tensor) -> None:
        """Watch a storage that the model asks for, since the model may resize it. If FSDP gathers a parameter in it, label it as gathered."""
        with DisableTorchFunction(), self._lock:
            self._storages.may_resize(tensor)
            if is_gathering() and (self._storages.was_made_by_call(tensor) or not tensor.untyped_storage().nbytes()):
                self._storages.label(
                    [(self._shared.collectives.cause() or self._state.innermost_path(), tensor)], "gathered"
                )
