"""Observe module calls, by hooks, or by replaced calls that can skip a module's forward."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from ..meters.stopwatch import OF_MODULE
from ..model.locks import threads_counting
from ..ops import VIEW, Formula
from ..records import EMPTY_MAPPING, FORWARD, Operation, Scope, Spec, Step
from ..records.facts import EMBEDDING
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchDispatch, DisableTorchFunction
from .call_runner import CallRunner
from .forwards import (
    UNKNOWN,
    ObservedModule,
    hidden_kernels,
    is_hooked,
    is_missed_by_hooks,
    is_torch_module,
    uses_torchs_call,
)
from .hooks import Hooks
from .leaves import Leaves, ModuleSettings, has_tensor_attributes
from .memo import RECORD_ONLY, LeafLookup, Memo, NewCall, Recipe, Unknown, call_key, is_like
from .memo_use import MemoUse
from .modes import are_others_on, transformed
from .observer_state import SharedState, ThreadPart, ThreadState
from .processes import has_shards, runs_in_parts
from .recording import Recording
from .stack import OpenCall
from .steps import Steps


class ModuleCalls(ThreadPart):
    """The module calls of one thread.

    If another thread runs the model while hooks are set or removed, the hooks may be called without kwargs, or after the run is over.
    """

    def __init__(
        self,
        shared: SharedState,
        state: ThreadState,
        recording: Recording,
        memo_use: MemoUse,
        runner: CallRunner,
        steps: Steps,
    ) -> None:
        super().__init__(shared, state)
        self._recording = recording
        self._memo_use = memo_use
        self._runner = runner
        self._steps = steps
        self._thread = state.thread
        self._leaves = Leaves(shared.registry)
        self._hooks = Hooks()

    def attach(self, pre_hook: Callable[..., None], post_hook: Callable[..., None]) -> None:
        """Attach to each module either hooks, or a replacement for its call that can skip its forward.

        ``pre_hook(module, args, kwargs)`` and ``post_hook(module, args, kwargs, out)`` find the parts of the thread that calls them.
        """
        self._pre_hook, self._post_hook = pre_hook, post_hook
        if self._graph_listener.writes_graph:
            for observed in self._shared.observed_modules.values():
                observed.initial = self._settings_but_mode(observed) if self.formula_of(observed) is not None else None
        hooked: list[nn.Module] = []
        class_uses_torchs_call = cache(uses_torchs_call)
        replaces_calls = self._world.is_meta and self._world.memo is not None
        call_leaf, call_module = self._call_leaf, self._call_module
        for observed in self._shared.observed_modules.values():
            module = observed.module
            cls: Any = type(module)
            if replaces_calls and class_uses_torchs_call(cls) and not is_hooked(module):
                observed.attach(call_module if self.formula_of(observed) is None else call_leaf)
            else:
                hooked.append(module)
        self._hooks.attach(hooked, pre_hook, post_hook)

    def detach(self) -> None:
        """Remove the hooks and the replaced calls."""
        self._hooks.detach()
        for observed in self._shared.observed_modules.values():
            observed.detach()

    def formula_of(self, observed: ObservedModule) -> Formula | None:
        """Return the formula that counts a module as a whole; None if the module is not a leaf."""
        if observed.formula is UNKNOWN:
            observed.formula = self._leaves.of(observed.module)
        formula: Formula | None = observed.formula
        return formula

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a module call, with the clock stopped."""
        if self.is_ignored(module):
            return
        stopped = self._stopwatch.stop(OF_MODULE)
        try:
            self._begin_module(module, args, kwargs)
        finally:
            if stopped:
                # If guards have turned the modes off, no handler runs until this call ends. So all device work until then belongs to the module.
                open_calls = self._stack.open
                is_unseen = bool(open_calls) and open_calls[-1].runs_unobserved
                self._stopwatch.go(type(module) if is_unseen else None)

    def end(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Record a finished module call, with the clock stopped."""
        if self.is_ignored(module):
            return
        stopped = self._stopwatch.stop()
        try:
            self._end_module(module, args, kwargs, out)
        finally:
            if stopped:
                self._stopwatch.go()

    def is_ignored(self, module: nn.Module) -> bool:
        """Return whether a module call is not part of the run.

        This is so if the module is a copy that the model's forward made, hooks included, or if this thread is counting the module inside
        a profiled block.
        """
        is_ours = id(module) in self._shared.observed_modules
        return not is_ours or (self._world.is_block and threading.get_ident() in threads_counting(module))

    def _begin_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a module call."""
        stack, observed = self._stack, self._shared.observed_modules[id(module)]
        if len(sys.modules) != self._shared.imported:
            self._shared.follow_imports()
        if not stack.open:
            self._steps.begin(args, kwargs)
        open_call = stack.enter(module, observed.path)
        # The module's forward may have been replaced since the run began.
        if self.formula_of(observed) is not None and "forward" not in module.__dict__ and not stack.leaf_depth:
            self._begin_leaf(observed, open_call, args, kwargs)
        # A call that runs unobserved is like an earlier call of a module without hidden kernels.
        for op in () if open_call.runs_unobserved else hidden_kernels(module):
            self._recording.record_unobservable(op, module, (args, kwargs))
        open_call.start = self._stopwatch.now()

    def _begin_leaf(self, observed: ObservedModule, open_call: OpenCall, args: Any, kwargs: Any) -> None:
        """Prepare for the call of a module that has a formula and hooks, if the call is to be recorded as a whole."""
        module = observed.module
        # On meta, _call_leaf looks up the calls that may be skipped.
        looks_up = not self._world.is_meta and not module._modules
        memo = self._memo_use.memo_now(is_our_mode_popped=False) if looks_up else None
        lookup = None if memo is None else self._look_up(memo, observed, args, kwargs)
        # A call with a recipe is like an earlier call that was recorded as a whole.
        recipe = None if lookup is None else lookup.recipe
        if recipe is None and not self._is_recorded_whole(observed, args, kwargs):
            return
        self._stack.leaf_depth = len(self._stack.open)
        if not self._world.is_meta:  # and the weights, which may have been swapped for this call
            self._recording.enter_earlier_tensors(
                (*args, *module._parameters.values(), *module._buffers.values()), kwargs
            )
        if recipe is not None:
            open_call.lookup = lookup
            if recipe.leaves_only_its_result:
                open_call.turn_off(DisableTorchFunction(), DisableTorchDispatch())
        elif lookup is not None:
            open_call.lookup = lookup._replace(before=self._memo_use.begin())
        elif memo is None:  # while the memo may be used, there is no unwritten memory, no graph and no backward pass
            self._state.call_operators.clear()
            self._recording.check_reads(self.formula_of(observed), module, args, kwargs)
            if not self._state.plain_functions.current:
                with DisableTorchFunction():
                    open_call.node_args = self._recording.graph_arguments(args, kwargs)

    def _look_up(self, memo: Memo, observed: ObservedModule, args: Any, kwargs: Any) -> LeafLookup | None:
        """Look up a leaf's call in the memo; return None if the call has no key."""
        module, world = observed.module, self._world
        try:
            with DisableTorchFunction():
                settings = self._shared.settings.of(observed)
                parameters = module._parameters.values() if torch.is_grad_enabled() else ()
                requires_grad = tuple([parameter is not None and parameter.requires_grad for parameter in parameters])
                key = call_key(
                    (type(module), settings, requires_grad, *world.torch_settings(type(module))),
                    args,
                    kwargs,
                    world.tensors.form,
                )
                return LeafLookup(memo.get(key), key, settings.params, None)
        except (Unknown, TypeError):
            return None

    def _is_recorded_whole(self, observed: ObservedModule, args: Any, kwargs: Any) -> bool:
        """Return whether a call of a module that has a formula is recorded as one call, not operator by operator."""
        module = observed.module
        is_changed = transformed() or are_others_on() or has_tensor_attributes(module)
        return (
            not (is_changed or has_shards(module) or runs_in_parts(args, kwargs))
            # A graph node can replay only the settings that the module had when the run began.
            and (observed.initial is None or observed.initial == self._settings_but_mode(observed))
        )

    def _settings_but_mode(self, observed: ObservedModule) -> dict[str, Any]:
        """Return a module's settings without ``training``, which another thread may change to count the module."""
        return {name: value for name, value in self._shared.settings.of(observed).by_name.items() if name != "training"}

    def _end_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Record a finished module call; if it was an outermost call, end its step."""
        with self._lock:
            self._record_module(module, args, kwargs, out)
            if not self._stack.open:
                self._steps.end(module, out)

    def _record_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        innermost = self._stack.open[-1] if self._stack.open else None
        if innermost is not None and innermost.module is module:
            innermost.exit_guards()  # turns the modes on again
            if innermost.lookup is not None and self._leave_by_recipe(innermost, innermost.lookup, module, args, out):
                return
        phase = self._phases.now()  # while the module is open: outside all modules, the phase may be another
        open_call, is_leaf, seconds = self._pop(module)
        if self._state.inside_whole_call():  # the module is part of a leaf's call
            return
        with DisableTorchFunction():
            if sys.exc_info()[1] is not open_call.handled:  # a new exception: the module raised
                self._shared.note_failure(type(module).__qualname__, open_call.path, (spec_of(args), spec_of(kwargs)))
                self._recording.call_raised(open_call.path)
            elif is_leaf:
                seconds -= open_call.communication  # collectives are calls of their own
                self._leave_leaf(
                    self._shared.observed_modules[id(module)], open_call, phase, seconds, args, kwargs, out
                )
            else:
                settings = self._shared.settings.of(self._shared.observed_modules[id(module)])
                # Threads overlap, so the calls inside may add up to more time than the module took.
                own_seconds = max(seconds - open_call.inside, 0.0) if self._stopwatch.runs else None
                operation = self._container_operation(module, settings, args, kwargs, out)
                has_children = bool(module._modules) or is_missed_by_hooks(module, self._stack.open)
                self._add_scope(phase, open_call.path, operation, settings.params, has_children, own_seconds)
                self._recording.own_end_of_module(open_call.path, out)

    def _leave_by_recipe(self, open_call: OpenCall, lookup: LeafLookup, module: nn.Module, args: Any, out: Any) -> bool:
        """Record a finished leaf call by its recipe. Return False if the call has no recipe, or if its result differs from the recipe's."""
        recipe, params = lookup.recipe, lookup.params
        with DisableTorchFunction():
            if recipe is None or not is_like(out, recipe.operation.out):
                return False
            _, _, seconds = self._pop(module)
            self._world.track_repeated(recipe, out)
            self._recording.add_repeated(recipe.operation, open_call.path, seconds, "", out, args)
            self._add_scope(self._calls[-1].phase, open_call.path, recipe.operation, params, False, None)
            return True

    def _leave_leaf(
        self,
        observed: ObservedModule,
        open_call: OpenCall,
        phase: str,
        seconds: float,
        args: Any,
        kwargs: Any,
        out: Any,
    ) -> None:
        """Record a finished leaf call."""
        module: Any = observed.module
        formula, settings = self.formula_of(observed), self._shared.settings.of(observed)
        table = (module.weight,) if formula is not None and formula.op == EMBEDDING else ()
        result = self._world.spec_of_result(formula, (*args, *table), out)
        call_specs = self._world.spec(args), self._world.spec(kwargs) if kwargs else EMPTY_MAPPING, result
        self._storages.begin_next_call()  # storages freed from now on count as freed by this call
        self._state.call_operators.clear()
        operation = self._call_log.call(
            formula, type(module), call_specs, open_call.path, seconds, settings, phase=phase
        )
        self._add_scope(phase, open_call.path, operation, settings.params, bool(module._modules), None)
        self._recording.own_nodes_behind(out, args)
        if open_call.node_args is not None:
            self._graph_listener.module(open_call.path, open_call.node_args, out, self._stack.keys(open_call))
        lookup = open_call.lookup
        if lookup is not None and lookup.before is not None and formula is not None:
            cls = type(module)
            self._memo_use.end(NewCall(lookup.key, formula, cls, cls, args, kwargs), lookup.before, out)

    def _container_operation(
        self, module: nn.Module, settings: ModuleSettings, args: Any, kwargs: Any, out: Any
    ) -> Operation:
        """Return the operation of a non-leaf module's call, which is recorded only as a scope."""
        cls, world = type(module), self._world
        key = None
        # The module has run, so the memo only saves making the specs anew, whatever else the call depends on. On meta, specs are shared already.
        memo = None if world.is_meta else world.memo
        if memo is not None:
            try:
                # Without requires_grad and torch's settings, on which only the record of a leaf depends.
                key = call_key((cls, settings), args, kwargs, world.tensors.form)
                recipe = memo.get(key)
            except (Unknown, TypeError):
                key = recipe = None
            if recipe is not None and is_like(out, recipe.operation.out):
                return recipe.operation
        call_specs = world.spec(args), world.spec(kwargs) if kwargs else EMPTY_MAPPING, world.spec(out)
        if world.is_meta:
            return tuple.__new__(Operation, (cls.__name__, cls, *call_specs, settings.by_name))
        operation = self._call_log.operation(cls.__name__, cls, call_specs, settings)
        if memo is not None and key is not None:
            memo[key] = Recipe(operation, RECORD_ONLY)
        return operation

    def _pop(self, module: nn.Module) -> tuple[OpenCall, bool, float]:
        """End a module call. Return the call, whether it is a leaf's call, and its seconds."""
        open_call, is_leaf = self._stack.leave(module)
        seconds = self._stopwatch.now() - open_call.start
        if self._stack.open:
            self._stack.open[-1].inside += seconds
        else:
            self._steps.arguments = None
            self._state.times.end(FORWARD)
        return open_call, is_leaf, seconds

    def _add_scope(
        self,
        phase: str,
        path: str,
        operation: Operation,
        params: Mapping[str, Spec],
        has_children: bool,
        own_seconds: float | None,
    ) -> None:
        """Record a module call as a scope, if its phase is the forward."""
        if phase == FORWARD:
            self._shared.scopes.append(tuple.__new__(Scope, (path, operation, params, has_children, own_seconds)))

    def _call_module(self, observed: ObservedModule, /, *args: Any, **kwargs: Any) -> Any:
        """Call a module; before and after the call, do the work of the observer's hooks."""
        module = observed.module
        is_own_thread = threading.get_ident() == self._thread
        # Not begin and end, which also stop the clock and ignore copies of modules: a count is not timed, and this module is no copy.
        enter, leave = (self._begin_module, self._end_module) if is_own_thread else (self._pre_hook, self._post_hook)
        enter(module, args, kwargs)
        out = None  # stays None if the module raises
        try:
            out = module._call_impl(*args, **kwargs)
        finally:
            leave(module, args, kwargs, out)
        return out

    def _call_leaf(self, observed: ObservedModule, /, *args: Any, **kwargs: Any) -> Any:
        """Call a leaf module, or skip its forward if there is a recipe for the result."""
        module = observed.module
        if threading.get_ident() != self._thread:  # the hooks find the other thread's observer
            return self._call_module(observed, *args, **kwargs)
        if "forward" in module.__dict__ or is_hooked(module):  # the module was changed after the run began
            observed.formula = UNKNOWN
            return self._call_module(observed, *args, **kwargs)
        key = None
        with self._lock, DisableTorchFunction():
            may_be_skipped = not (module._modules or are_others_on())
            memo = self._memo_use.memo_now(is_our_mode_popped=False) if may_be_skipped else None
            if memo is not None:
                settings = self._shared.settings.of(observed)
                try:
                    # Without requires_grad and torch's settings: the memo serves leaves on meta only while gradients are off. A leaf with a
                    # recipe has the attributes of the first one, so it needs none of the first one's checks; sharded models do not run on meta.
                    key = call_key((type(module), settings), args, kwargs, self._world.tensors.form)
                    recipe = memo.get(key) or self._leaf_recipe(key, observed, settings, args, kwargs)
                except Unknown:
                    key = recipe = None
                if recipe is not None:
                    return self._skip_leaf(recipe, observed, settings, args, kwargs)
        formula = self.formula_of(observed)
        if key is None or formula is None or not is_torch_module(type(module)):
            return self._call_module(observed, *args, **kwargs)
        before = self._memo_use.begin()
        out = self._call_module(observed, *args, **kwargs)
        if self.formula_of(observed) is formula:
            cls = type(module)
            self._memo_use.end(NewCall(key, formula, cls, cls, args, kwargs), before, out, scopes=1)
        return out

    def _leaf_recipe(
        self, key: Any, observed: ObservedModule, settings: ModuleSettings, args: Any, kwargs: Any
    ) -> Recipe | None:
        """Return a leaf call's recipe, from a shape rule or, if the forward only makes a view, from running the forward; else None."""
        module, formula, world = observed.module, self.formula_of(observed), self._world
        cls = type(module)
        if formula is None or not settings.contiguous or has_tensor_attributes(module):
            return None
        call = NewCall(key, formula, cls, cls, args, kwargs, settings.by_name)
        recipe = world.recipe_by_rule(call)
        if recipe is None and formula.reason == VIEW and is_torch_module(cls):
            recipe = world.recipe_by_forward(call, module)
        return recipe

    def _skip_leaf(
        self, recipe: Recipe, observed: ObservedModule, settings: ModuleSettings, args: Any, kwargs: Any
    ) -> Any:
        """Make the result of a leaf call from its recipe, without running the forward, and record the call."""
        module, path, call_number = observed.module, observed.path, len(self._calls)
        out, operation, _ = self._world.repeat_call(
            recipe, type(module).forward, args, kwargs, self._runner.run_timed, module
        )
        # The operation is never None here: forwards are skipped only on meta, where the memo's recipe makes the result.
        assert operation is not None
        # Forwards are skipped only if gradients are off, so there are no autograd nodes to assign, and the phase is the forward.
        self._call_log.add(operation, path, None, FORWARD)
        self._shared.scopes.append(tuple.__new__(Scope, (path, operation, settings.params, False, None)))
        if not self._stack.open:
            self._shared.steps.append(Step(path, range(call_number, call_number + 1)))
        return out
