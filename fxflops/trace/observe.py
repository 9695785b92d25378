"""The observer: it sees every call that a model makes in a run, and records Calls and Scopes.

The observer is a ``TorchFunctionMode`` plus hooks on the model's modules. A call of a function or method with a formula is
recorded as one Call. So is a call of a module with a formula, which is named a leaf. A function without a formula is not
recorded; the calls inside it are. If the function is written in Python, the function mode sees these calls. Otherwise a
dispatch mode sees them as operators. Under vmap and the other functorch transforms, only operators get the full shapes,
so the dispatch mode observes all functions.

A world (:mod:`.worlds`) decides which tensors a call gets and how the call runs. A world may have a memo of earlier calls.
:meth:`Observer.function` sends a call one of four ways:

===============================================  ================================  ============================================
the call                                         goes through                      which records it by
===============================================  ================================  ============================================
is like an earlier one: its key is in the memo   ``_repeat``                       ``_add_call``: the memo has the operation
is new, and the world has a rule for its result  ``recipe_by_rule``, ``_repeat``   ``_add_call``
is new, without a rule, in a world with a memo   ``_learn``                        ``_add_call`` if it costs 0; else as below
depends on more than its tensors' metadata       ``_observe_call``, ``_run``       ``log.call``: specs of arguments and result
===============================================  ================================  ============================================

Operators and leaves go the same ways through other methods:

=============================  ===========================  ===========================  ============================
what runs                      begins in                    in the memo, or has a rule   new
=============================  ===========================  ===========================  ============================
a leaf in a count, on meta     ``_call_leaf``               ``_skip_leaf``               ``_call_module``, as below
a leaf seen by hooks           ``_begin_leaf``              ``_leave_by_recipe``         ``_leave_leaf``
an operator                    ``operator``                 in ``operator`` itself       ``_learn_operator``
=============================  ===========================  ===========================  ============================

All these methods end in :meth:`.call_log.CallLog.add`, the only place that makes a ``Call``. For a function without a formula,
``_observe_call`` does not record the function, but the calls inside it.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
from torch import nn
from torch.overrides import handle_torch_function
from torch.utils.hooks import RemovableHandle

from ..meters.live_storages import LiveStorages
from ..meters.stopwatch import MODULE, PhaseTimes, Stopwatch
from ..model.pytree import caches_in, device_of, tensors_given, tensors_in, walk
from ..model.snapshot import threads_counting
from ..names import Absent
from ..ops import ESCAPE, QUERY, VIEW, Formula, FormulaRegistry
from ..ops._libraries import LibraryFunction
from ..ops._rules import UNWATCHED
from ..ops._traits import UNINITIALIZED
from ..ops.einsum import PATH, path_taken
from ..ops.shapes import held_unwatched
from ..records import EMPTY_MAPPING, SCRIPT, TRITON, Operation, Scope, Spec, Step, specs_in
from ..records.pairs import ATTENTION, ATTENTIONS, LOOKUP, with_facts
from ..records.tensors import spec_of
from ..torch_internals import (
    STOPS_RECOMPUTING,
    DisableTorchDispatch,
    DisableTorchFunction,
    EnableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    current_graph_task_id,
    disable_current_modes,
    dispatched,
    is_any_autocast_enabled,
    is_below_autograd,
    is_control_flow,
    is_torch_function_enabled,
    is_tracing,
    len_torch_function_stack,
    of_checkpoint,
    python_kernel,
)
from .attention_pairs import Masks, with_learning
from .autograd_owners import NoOwners, loss_in, roots_of
from .call_log import CallLog, CallSpecs
from .compiler import is_importing_compiler, run_operator, unseen
from .composed import composing_kernel
from .device_kernels import SPELLED_BY_OPERATOR
from .forwards import (
    UNKNOWN,
    ObservedModule,
    has_plain_call,
    hidden_kernels,
    is_hooked,
    is_missed_by_hooks,
    is_torch_module,
)
from .functions import (
    GIVES_MEMORY,
    GIVES_STORAGE,
    PYTHON_FUNCTIONS,
    Bodies,
    callables_in,
    computes,
    is_integral,
    origin_of,
    qualified_name,
    sets_property_or_reads_grad,
    with_callables,
    without_torch_function_guard,
)
from .graph_recorder import NoRecorder
from .kernel_launches import function_of, grid_of, launches_noted, names_of
from .leaves import Hooks, Leaves, ModuleSettings, Settings, holds_tensors
from .library_functions import (
    handed_to,
    has_values,
    nodes_between,
    replace_in_modules,
    result_by_rule,
    run_original,
    run_without_values,
    tensors_of,
)
from .memo import NOTHING, LeafLookup, MemoryEffect, Recipe, RunState, Unknown, call_key
from .modes import (
    AtenMode,
    FunctionMode,
    ResultsMode,
    are_others_on,
    beneath_others,
    dispatch_mode_on,
    function_mode_on,
    transformed,
)
from .phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, Phases, is_comparing
from .processes import Collectives, communicates, has_shards, is_between_processes, is_gathering, runs_in_parts
from .python_functions import PlainFunctions
from .real_world import QUERY_KEY_VALUE, is_like
from .spelling import WRITTEN_AS, Spelling
from .stack import ModuleStack, OpenCall
from .tasks import handed_over
from .threads import Threads, Watched, drop
from .uninitialized_reads import Unwritten, address_of, before_write_hook
from .worlds import RNN_BACKWARD, Arguments, World

ADDRESS = "data_ptr"
INPUT_DEPTH = 6
"""How many levels of nested containers and objects are searched for a model's inputs."""


class Observer:
    """Observes the calls made in a ``with`` block: in the thread that runs the block, and in threads that the model starts.

    modules: the modules to hook, with their paths.
    world: where the tensors are, and how calls get their results; by default real tensors, without a memo.
    storages: tracks the memory of every tensor that a call returns.
    before_write: called with the tensors that a call may write to, before the call runs.
    recorder: writes a graph of all calls; by default no graph is written.
    observe_dispatch: keep the dispatch mode on. It also sees operators called from C++ or TorchScript, without a torch function.
    must_read_masks: raise NotImplementedError if an attention mask on meta has no values. Masks that have values are always read.
    owners: assigns each call of the backward pass to the module whose gradient the call computes.
    new_stopwatch: makes a stopwatch for each thread.
    on_leaf: called with each leaf tensor that existed before the run and requires a gradient.

    ``calls`` and ``scopes`` are the records; ``steps`` are the outermost module calls, named by the module's path.
    ``stopwatch`` shows the run's time without the observer's overhead. ``lock`` is held while a call runs and is recorded, so that
    threads take turns. ``ran_on`` is the device of the first model output. ``path`` is recorded for calls outside all modules: see
    :meth:`be_at`. ``failed`` has the name, path and argument specs of the first call that raised.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        *,
        world: World | None = None,
        storages: LiveStorages | None = None,
        before_write: Callable[[Any], None] | None = None,
        recorder: NoRecorder | None = None,
        observe_dispatch: bool = True,
        must_read_masks: bool = False,
        owners: NoOwners | None = None,
        new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
        on_leaf: Callable[[torch.Tensor], None] = lambda tensor: None,
    ) -> None:
        self.on_leaf = on_leaf
        self.lock = threading.RLock()
        self.path = ""
        self.failed: tuple[str, str, Any] | None = None
        self.scopes: list[Scope] = []
        self.steps: list[Step] = []
        self.ran_on: torch.device | None = None
        self.bodies: Bodies = {}
        self._observed_modules = {id(module): ObservedModule(module, path) for module, path in modules.items()}
        self._registry = registry
        self._new_stopwatch = new_stopwatch
        self._world = World() if world is None else world
        self._storages = LiveStorages() if storages is None else storages
        self._recorder = NoRecorder() if recorder is None else recorder
        self._owners = NoOwners() if owners is None else owners
        self._announce_writes = before_write_hook(before_write, self._storages.was_made)
        self._observe_dispatch = observe_dispatch
        self._must_read_masks = must_read_masks
        self._masks = Masks()
        self._threads = Threads()
        self._of_thread(ModuleStack())
        self.phases = Phases(self._stack, self.times)
        self.log = CallLog(self.phases, self._owners)
        self.calls = self.log.calls
        self._world.begin(self.log, self._storages)
        self._leaves = Leaves(registry)
        self._settings = Settings(self._world.forms_of_own, self._world.spec, self._world.readers)
        self._collectives = Collectives(modules)
        self._hooks = Hooks()
        self._library_hooks: list[RemovableHandle] = []
        self._unwritten = Unwritten()
        self._spelling = Spelling()
        self._without_guard = cache(without_torch_function_guard)
        # The running step (outermost module call): its number, the number of its first call, and its arguments.
        self._step_number: int | None = None
        self._step_first_call = 0
        self._step_arguments: Any = None
        # Whether any module has been called yet.
        self._has_called = False

    def _of_thread(self, stack: ModuleStack) -> None:
        """Set the per-thread attributes."""
        self._thread = threading.get_ident()
        self._stack = stack
        self.stopwatch = self._new_stopwatch()
        self.times = PhaseTimes(self.stopwatch.now)
        self.mode = FunctionMode(self)
        self.aten = AtenMode(self.operator, self.stopwatch)
        self._plain_functions = PlainFunctions(
            self._registry.python_functions, self._begin_function, self._end_function
        )
        # Whether operators now run inside a recorded call, inside a graph node, or under a higher-order operator.
        self._in_call = self._in_node = self._in_higher_order = False
        self._is_learning_function = False
        # True while a library function's backward runs: the calls of its autograd nodes are part of the backward.
        self._in_library_backward = False
        # The function that dispatches the operators being recorded, if any.
        self._dispatcher: Any = None
        # Python functions whose bodies are running observed. If such a function calls itself, the inner call is recorded by operators.
        self._bodies_under_way: set[Any] = set()
        # The operators of the current call, kept in case checkpoint stops the call halfway: see _call_raised.
        self._call_operators: list[tuple[Any, CallSpecs]] = []

    def __enter__(self) -> Observer:
        self._attach()
        self.switch_on()
        return self

    def __exit__(self, *exception: Any) -> None:
        for open_call in self._stack.open:  # calls left open by an interrupt
            open_call.let_go()
        self.switch_off(*exception)
        self._hooks.detach()
        for handle in self._library_hooks:
            handle.remove()
        for observed in self._observed_modules.values():
            observed.leave()
        self.phases.leave()

    def be_at(self, path: str) -> None:
        """Assign later calls that run outside all modules to the module at this path: one of the module's graph nodes runs next."""
        self.path = path

    def begin_thread(self, parent: Observer) -> None:
        """Observe the current thread with this copy of ``parent``, as part of the module calls that are open in ``parent``."""
        self._of_thread(parent._stack.copy())
        self.switch_on()

    def switch_on(self) -> None:
        """Turn the modes on in this thread."""
        world_contexts = self._world.contexts()  # before our modes are on: a world may look at the other modes
        self._modes = ExitStack()
        if self._observe_dispatch:
            self._modes.enter_context(self.aten)
        self._modes.enter_context(beneath_others(self.mode))
        self._modes.enter_context(self._plain_functions)
        self._modes.enter_context(self._launches_noted())
        self._modes.enter_context(handed_to(self._library_function, self._registry.library_functions))
        self._imported = len(sys.modules)
        self._modes.enter_context(handed_over(self._task, self._thread_of_calls))
        for context in world_contexts:
            self._modes.enter_context(context)

    def _task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function for another thread, so that it is observed there as part of the module calls that are open now."""
        if self._world.is_block and not self._stack.open:  # a block observes other threads only inside models
            return function
        return self._threads.observed_task(self._copy_with_open_calls(), function)

    def _thread_of_calls(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a thread's function so that each of its torch calls is observed as a separate task: the thread may outlive this run.

        A daemon thread started outside models, such as tqdm's monitor, is not observed. The process exits without waiting for
        daemons, and would abort if a torch mode were still on in a daemon.
        """
        is_daemon = getattr(getattr(run, "__self__", None), "daemon", False)
        if not self._stack.open and (self._world.is_block or is_daemon):
            return run
        return Watched(run, partial(self._threads.observed_task, self._copy_with_open_calls()))

    def _copy_with_open_calls(self) -> Observer:
        """Return a copy of this observer with the module calls that are open now."""
        observer = copy.copy(self)
        observer._stack = self._stack.copy()
        return observer

    def switch_off(self, *exception: Any) -> None:
        """Turn the modes off in this thread."""
        self._modes.__exit__(*(exception or (None, None, None)))

    def _attach(self) -> None:
        """Attach a hook to each module, or a stand-in for its call, which can skip its forward."""
        if self._recorder.writes_graph:
            for observed in self._observed_modules.values():
                observed.initial = self._settings_but_mode(observed) if self._formula_of(observed) is not None else None
        hooked: list[nn.Module] = []
        class_has_plain_call = cache(has_plain_call)
        uses_stand_ins = self._world.skips_forwards and self._world.memo is not None
        call_leaf, call_module = self._call_leaf, self._call_module
        for observed in self._observed_modules.values():
            module = observed.module
            cls: Any = type(module)
            if uses_stand_ins and class_has_plain_call(cls) and not is_hooked(module):
                observed.attach(call_module if self._formula_of(observed) is None else call_leaf)
            else:
                hooked.append(module)
        self._hooks.attach(hooked, self._pre_hook, self._post_hook)

    def _formula_of(self, observed: ObservedModule) -> Formula | None:
        """Return the formula that counts a module as a whole; None if the module is not a leaf."""
        if observed.formula is UNKNOWN:
            observed.formula = self._leaves.of(observed.module)
        formula: Formula | None = observed.formula
        return formula

    # Module calls. If another thread runs the model while hooks are set or removed, the hooks may be called without kwargs,
    # or after the run is over.

    def _pre_hook(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() == self._thread:
            if not self._is_no_call(module):
                self._begin_with_clock_stopped(module, args, kwargs)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._is_no_call(module):
                observer = self._threads.enter(host, module, (args, kwargs))
                if observer is not None:
                    observer._begin_with_clock_stopped(module, args, kwargs)

    def _begin_with_clock_stopped(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        stopped = self.stopwatch.stop(MODULE)
        try:
            self._begin_module(module, args, kwargs)
        finally:
            if stopped:
                # With guards on, no handler runs before the module's call ends, so all device work until then belongs to the module.
                open_calls = self._stack.open
                is_unseen = bool(open_calls and open_calls[-1].guards)
                self.stopwatch.go(type(module) if is_unseen else None)

    def _post_hook(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() == self._thread:
            if not self._is_no_call(module):
                self._end_with_clock_stopped(module, args, kwargs, out)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._is_no_call(module):
                observer = self._threads.leave(host, module)
                if observer is not None:
                    observer._end_with_clock_stopped(module, args, kwargs, out)
                    self._threads.left()

    def _end_with_clock_stopped(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        stopped = self.stopwatch.stop()
        try:
            self._end_module(module, args, kwargs, out)
        finally:
            if stopped:
                self.stopwatch.go()

    def _is_no_call(self, module: nn.Module) -> bool:
        """Return whether a module call is not part of the run.

        Either the module is a copy, with our hooks, that the model's forward made, or this thread counts the module inside a profiled
        block.
        """
        is_ours = id(module) in self._observed_modules
        return not is_ours or (self._world.is_block and threading.get_ident() in threads_counting(module))

    def release(self) -> None:
        """Delete all attributes once no other thread is in a hook, except the two that a late hook still reads."""
        self._threads.close(partial(drop, self, "_thread", "_threads"))

    def _begin_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a module call."""
        stack, observed = self._stack, self._observed_modules[id(module)]
        self._follow_imports()
        if not stack.open:
            self._begin_step(args, kwargs)
        open_call = stack.enter(module, observed.path)
        # The module's forward may have been replaced since the run began.
        is_leaf = self._formula_of(observed) is not None and "forward" not in module.__dict__
        if (
            is_leaf
            and not (stack.inside_leaf() or transformed() or are_others_on())
            and not (holds_tensors(module) or has_shards(module) or runs_in_parts((args, kwargs)))
            # A graph node can replay only the settings that the module had when the run began.
            and (observed.initial is None or observed.initial == self._settings_but_mode(observed))
        ):
            self._begin_leaf(observed, open_call, args, kwargs)
            stack.leaf_depth = len(stack.open)
        for op in hidden_kernels(module):
            self.record_unobservable(op, module, (args, kwargs))
        open_call.start = self.stopwatch.now()

    def _begin_leaf(self, observed: ObservedModule, open_call: OpenCall, args: Any, kwargs: Any) -> None:
        """Prepare for the call of a leaf module that has hooks."""
        world, module = self._world, observed.module
        if world.enters_earlier_tensors:  # and the weights, which may have been swapped for this call
            self._enter_earlier_tensors((*args, *module._parameters.values(), *module._buffers.values()), kwargs)
        # Where forwards are skipped, _call_leaf has looked the call up already.
        looks_up = world.memo is not None and not world.skips_forwards and not module._modules
        if not (looks_up and self._memo_applies(in_handler=False)):
            self._call_operators.clear()
            self._check_reads(self._formula_of(observed), module, args, kwargs)
            if not self._plain_functions.current:
                with DisableTorchFunction():
                    open_call.node_args = self._node_arguments(args, kwargs)
            return
        try:
            with DisableTorchFunction():
                settings = self._settings.of(observed)
                parameters = module._parameters.values() if torch.is_grad_enabled() else ()
                requires_grad = tuple([parameter is not None and parameter.requires_grad for parameter in parameters])
                key = call_key(
                    (type(module), settings, requires_grad, *world.torch_settings(type(module))),
                    args,
                    kwargs,
                    world.form,
                )
                recipe = world.memo.get(key)  # type: ignore[union-attr]
        except (Unknown, TypeError):
            return
        open_call.lookup = LeafLookup(recipe, key, settings.params, self._begin_learning() if recipe is None else None)
        if recipe is not None and recipe.transients is not None:  # no call inside needs to be observed
            open_call.turn_off(DisableTorchFunction(), DisableTorchDispatch())

    def _begin_step(self, args: Any, kwargs: Any) -> None:
        """Prepare for an outermost module call."""
        self._step_first_call, self._step_arguments = len(self.calls), (args, kwargs)
        self._has_called = True
        if not self._stack.in_backward():
            self.times.end(BACKWARD)  # still open if the backward pass raised
            with self.lock:
                self._note_inputs((args, kwargs))
                self._step_number = len(self.steps)
                self.steps.append(Step("", range(self._step_first_call, self._step_first_call), self.times.next_step()))
            self.times.begin(FORWARD)

    def _note_inputs(self, step_arguments: Any) -> None:
        """Track the inputs of an outermost module call that existed before the run, and label them as inputs.

        Inputs that a call outside all models made, such as a collated batch, get the same label; another model's output does not.
        """
        with DisableTorchFunction():
            tensors = [part for _, part in walk(step_arguments, INPUT_DEPTH) if issubclass(type(part), torch.Tensor)]
            self._storages.add_given([tensor for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)])
            self._storages.label(caches_in(step_arguments), "cache")  # before "inputs": a storage keeps its first label
            made_outside = [tensor for tensor in tensors if self._is_made_outside(self._storages.maker_of(tensor))]
            self._storages.label([("", tensor) for tensor in made_outside], "inputs")

    def _is_made_outside(self, number: int) -> bool:
        """Return whether the call with this number ran in the forward phase, outside all modules."""
        if not 0 <= number < len(self.calls) or self.calls[number].phase != FORWARD:
            return False
        # Steps are sorted by their calls, so only the last step that began before this call can contain it.
        for step in reversed(self.steps):
            if step.calls and step.calls.start <= number:
                return number not in step.calls
        return True

    def _end_step(self, number: int, module: nn.Module, out: Any) -> None:
        """Record which calls an outermost module call contains, even if the module raised, and label its KV cache."""
        with DisableTorchFunction():
            self._storages.label(caches_in(out), "cache")
            self.ran_on = self.ran_on or device_of(out)
        calls = range(self._step_first_call, len(self.calls))
        self.steps[number] = self.steps[number]._replace(name=self._observed_modules[id(module)].path, calls=calls)
        self._step_number = None
        self._check_reads(None, module, (out,), {})

    def _settings_but_mode(self, observed: ObservedModule) -> dict[str, Any]:
        """Return a module's settings without ``training``, which another thread may change to count the module."""
        return {name: value for name, value in self._settings.of(observed).by_name.items() if name != "training"}

    def _end_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Record a finished module call; if it was an outermost call, end its step."""
        with self.lock:
            if self.calls and torch.is_grad_enabled():
                with DisableTorchFunction():
                    self._owners.own_function(len(self.calls) - 1, out)
            self._record_module(module, args, kwargs, out)
            if self._step_number is not None and not self._stack.open:
                self._end_step(self._step_number, module, out)

    def _record_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        innermost = self._stack.open[-1] if self._stack.open else None
        if innermost is not None and innermost.module is module:
            innermost.let_go()  # turns the modes on again
            if innermost.lookup is not None and self._leave_by_recipe(innermost, innermost.lookup, module, args, out):
                return
        open_call, is_leaf, seconds = self._pop(module)
        if self._inside_leaf():  # the module is part of a leaf's call
            return
        with DisableTorchFunction():
            if sys.exc_info()[1] is not open_call.handled:  # a new exception: the module raised
                specs = spec_of(args), spec_of(kwargs)
                self.failed = self.failed or (type(module).__qualname__, open_call.path, specs)
                self._call_raised(open_call.path)
            elif is_leaf:
                self._leave_leaf(self._observed_modules[id(module)], open_call, seconds, args, kwargs, out)
            else:
                settings = self._settings.of(self._observed_modules[id(module)])
                # Threads overlap, so the calls inside may add up to more time than the module took.
                own_seconds = max(seconds - open_call.inside, 0.0) if self.stopwatch.runs else None
                operation = self._container_operation(module, settings, args, kwargs, out)
                has_children = bool(module._modules) or is_missed_by_hooks(module, self._stack.open)
                self._add_scope(open_call.path, operation, settings.params, has_children, own_seconds)
                self._own_rest_of_module(open_call.path, out)

    def _leave_by_recipe(self, open_call: OpenCall, lookup: LeafLookup, module: nn.Module, args: Any, out: Any) -> bool:
        """Record a finished leaf call by its recipe. Return False if the call has no recipe, or a result that differs from it."""
        recipe, params = lookup.recipe, lookup.params
        with DisableTorchFunction():
            if recipe is None or not is_like(out, recipe.operation.out):
                return False
            _, _, seconds = self._pop(module)
            self._world.track(recipe, out)
            self._add_call(recipe.operation, open_call.path, seconds, "", (out, args))
            self._add_scope(open_call.path, recipe.operation, params, False, None)
            return True

    def _leave_leaf(
        self, observed: ObservedModule, open_call: OpenCall, seconds: float, args: Any, kwargs: Any, out: Any
    ) -> None:
        """Record a finished leaf call."""
        module: Any = observed.module
        entry, settings = self._formula_of(observed), self._settings.of(observed)
        table = (module.weight,) if entry is not None and entry.op == LOOKUP else ()
        result = self._world.spec_of_result(entry, (*args, *table), out)
        call_specs = self._world.spec(args), self._world.spec(kwargs) if kwargs else EMPTY_MAPPING, result
        self._storages.current_call = len(self.calls)  # storages freed from now on count as freed by this call
        self._call_operators.clear()
        operation = self.log.call(entry, type(module), call_specs, open_call.path, seconds, settings)
        self._add_scope(open_call.path, operation, settings.params, bool(module._modules), None)
        self._own_nodes_behind((out, args))
        if open_call.node_args is not None:
            self._recorder.module(open_call.path, open_call.node_args, out, self._stack.keys(open_call))
        lookup = open_call.lookup
        if lookup is not None and lookup.before is not None and entry is not None:
            self._keep_lesson(lookup.key, entry, type(module), lookup.before, (args, kwargs), out)

    def _container_operation(
        self, module: nn.Module, settings: ModuleSettings, args: Any, kwargs: Any, out: Any
    ) -> Operation:
        """Return the operation of a non-leaf module's call, which is recorded only as a scope."""
        cls, world = type(module), self._world
        key = None
        if world.memo is not None and not world.skips_forwards:
            try:
                key = call_key((cls, settings), args, kwargs, world.form)
                recipe = world.memo.get(key)
            except (Unknown, TypeError):
                key = recipe = None
            if recipe is not None and is_like(out, recipe.operation.out):
                return recipe.operation
        call_specs = world.spec(args), world.spec(kwargs) if kwargs else EMPTY_MAPPING, world.spec(out)
        if world.is_meta:
            return tuple.__new__(Operation, (cls.__name__, cls, *call_specs, settings.by_name))
        operation = self.log.operation(cls.__name__, cls, call_specs, settings)
        if key is not None:
            world.memo[key] = Recipe(operation, NOTHING)  # type: ignore[index]
        return operation

    def _pop(self, module: nn.Module) -> tuple[OpenCall, bool, float]:
        """End a module call. Return the call, whether it is a leaf's call, and its seconds."""
        open_call, is_leaf = self._stack.leave(module)
        seconds = self.stopwatch.now() - open_call.start
        if self._stack.open:
            self._stack.open[-1].inside += seconds
        else:
            self._step_arguments = None
            self.times.end(FORWARD)
        return open_call, is_leaf, seconds

    def _add_scope(
        self, path: str, operation: Operation, params: Mapping[str, Spec], has_children: bool, own_seconds: float | None
    ) -> None:
        """Record a module call of the forward phase as a scope."""
        if self.phases.now() == FORWARD:
            self.scopes.append(tuple.__new__(Scope, (path, operation, params, has_children, own_seconds)))

    # Module calls by stand-ins, which skip a module's forward if there is a recipe for the result

    def _call_module(self, observed: ObservedModule, /, *args: Any, **kwargs: Any) -> Any:
        """Call a module; before and after the call, do the work of the observer's hooks."""
        module = observed.module
        is_own_thread = threading.get_ident() == self._thread
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
        with self.lock, DisableTorchFunction():
            if not (module._modules or are_others_on()) and self._memo_applies(in_handler=False):
                world, settings = self._world, self._settings.of(observed)
                try:
                    key = call_key((type(module), settings), args, kwargs, world.form)
                    recipe = world.memo.get(key) or self._leaf_recipe(key, observed, settings, args, kwargs)  # type: ignore[union-attr]
                except Unknown:
                    key = recipe = None
                if recipe is not None:
                    return self._skip_leaf(recipe, observed, settings, args, kwargs)
        before = self._begin_learning()
        out = self._call_module(observed, *args, **kwargs)
        entry = self._formula_of(observed)
        if key is not None and entry is not None and is_torch_module(type(module)):
            self._keep_lesson(key, entry, type(module), before, (args, kwargs), out, scopes=1)
        return out

    def _leaf_recipe(
        self, key: Any, observed: ObservedModule, settings: ModuleSettings, args: Any, kwargs: Any
    ) -> Recipe | None:
        """Return a recipe for a leaf call by a shape rule or, if the leaf's forward only makes a view, by the forward; else None."""
        module, entry, world = observed.module, self._formula_of(observed), self._world
        cls = type(module)
        if entry is None or not settings.contiguous or holds_tensors(module):
            return None
        recipe = world.recipe_by_rule(key, entry.op, cls, cls, args, kwargs, settings.by_name)
        if recipe is None and entry.reason == VIEW and is_torch_module(cls):
            recipe = world.recipe_by_forward(key, entry.op, module, settings.by_name, args, kwargs)
        return recipe

    def _skip_leaf(
        self, recipe: Recipe, observed: ObservedModule, settings: ModuleSettings, args: Any, kwargs: Any
    ) -> Any:
        """Make the result of a leaf call from its recipe, without running the forward, and record the call."""
        module, path, number = observed.module, observed.path, len(self.calls)
        out, operation, _ = self._world.repeat_call(recipe, type(module).forward, args, kwargs, self._run_timed, module)
        # The operation is never None here: forwards are skipped only on meta, where the recipe makes the result.
        assert operation is not None
        # Forwards are skipped only without gradients: there are no owners, and the phase is the forward.
        self.log.add(operation, path, None, FORWARD)
        self.scopes.append(tuple.__new__(Scope, (path, operation, settings.params, False, None)))
        if not self._stack.open:
            self.steps.append(Step(path, range(number, number + 1)))
        return out

    # Functions, which the function mode sees

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the function mode, and record the call."""
        world = self._world
        self._follow_imports()
        if func in world.unrecorded:
            return func(*args, **kwargs)
        if self._in_library_backward:  # a library function's backward may first rerun a checkpointed forward
            if self.phases.now() != RECOMPUTE:
                return func(*args, **kwargs)
            with self._outside_library():
                return self.function(func, args, kwargs)
        if func in world.answers and not self._owners.follows_backward and not transformed():
            return world.answers[func]  # in all other cases _observe_call decides what to answer
        if world.enters_earlier_tensors and not self._stack.leaf_depth:
            self._enter_earlier_tensors(args, kwargs)
        if world.memo is None or type(func) is LibraryFunction or not self._memo_applies(in_handler=True):
            return self._observe_call(func, args, kwargs)
        # x + y and x.add(y) are the same method here; only the caller's bytecode distinguishes them.
        target = self._spelling.of(func) if func in WRITTEN_AS else func
        try:
            key = call_key((target, *world.torch_settings(func)), args, kwargs, world.form)
            recipe = world.memo.get(key)
        except (Unknown, TypeError):
            return self._observe_call(func, args, kwargs)
        if recipe is None:
            entry = self._registry.find(func)
            if entry is None:  # no formula: the calls inside the function are recorded
                return self._observe_call(func, args, kwargs)
            with self.lock:
                recipe = world.recipe_by_rule(key, entry.op, target, func, args, kwargs)
                if recipe is None:
                    return self._learn(key, entry, target, func, args, kwargs)
        with self.lock:
            return self._repeat(recipe, target, func, args, kwargs)

    def _enter_earlier_tensors(self, args: Any, kwargs: Any) -> None:
        """Track the arguments of a call that are older than the run. Their memory category depends on where the call runs.

        Outside models, such tensors are inputs: loss targets, or data to be cut into batches. In a model, they are tensors that
        the model uses without registering them, and get the category of buffers. In a backward pass, they are activations of an
        earlier forward.
        """
        with DisableTorchFunction():
            if not kwargs and self._storages.has_all(args):  # most arguments are results of earlier calls
                return
            if self.aten.is_faking():  # DTensor infers the shapes of its results on its own fake tensors
                return
            with self.lock:
                phase = self.phases.now()
                if phase == FORWARD:
                    category = "buffers" if self._stack.open else "inputs"
                else:
                    category = "optimizer" if phase == OPTIMIZER else ""
                tensors = tensors_given((args, kwargs))
                self._storages.add_given(tensors, category, self._world.device)
                for tensor in tensors:
                    if tensor.requires_grad and tensor.is_leaf and not self._storages.was_made(tensor):
                        self.on_leaf(tensor)

    def _memo_applies(self, in_handler: bool) -> bool:
        """Return whether a call's record currently depends only on its tensors' metadata.

        The record depends on more inside another call or a higher-order operator, while uninitialized memory exists, with several
        threads, under autocast or a functorch transform, or if the world says so. ``in_handler``: our function mode is off because
        it is handling a call.
        """
        return self._world.may_ask_memo(in_handler) and not (
            self._stack.leaf_depth
            or self._in_call
            or self._in_higher_order  # the function mode is on inside a higher-order operator, too
            or self._threads.by_thread
            or self._plain_functions.current
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or transformed()
        )

    def _repeat(self, recipe: Recipe, target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call that has a recipe, and return its result, made by the recipe or by running the call."""
        out, operation, seconds = self._world.repeat_call(recipe, func, args, kwargs, self._run_timed)
        if (
            operation is not None
            and operation.op in ATTENTIONS
            and len(tensors_given((args, kwargs))) > QUERY_KEY_VALUE
        ):
            # The number of pairs that a mask leaves depends on the mask's values, which may differ from the first call's.
            operation = self._with_mask_of(operation, func, args, kwargs, out)
        path, open_calls = self.path, self._stack.open
        if open_calls:
            path = open_calls[-1].path
            if seconds is not None:
                open_calls[-1].inside += seconds
        if operation is not None:
            self._add_call(operation, path, seconds, origin_of(func), (out, args))
        else:  # the result differs from the first call's
            self._track(out)
            call_specs = spec_of(args), spec_of(kwargs), spec_of(out)
            self.log.call(self._registry.find(func), target, call_specs, path, seconds or 0.0, origin=origin_of(func))
            self._own_nodes_behind((out, args))
        return out

    def _run_timed(self, recipe: Recipe, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """Run and time a call that has a recipe. Do not observe its operators if the call leaves only its result in memory."""
        with DisableTorchDispatch() if recipe.transients is not None else self._within(True, self._in_node):
            return self.stopwatch.timed(func, args, kwargs)

    def _add_call(self, operation: Operation, path: str, seconds: float | None, origin: str, owned: Any) -> None:
        """Record a call whose operation is known. ``owned`` has the result, and the arguments, which the call may have written to."""
        # Where the dispatch mode is off, there is no backward pass.
        phase = self.phases.now() if self._observe_dispatch else FORWARD
        self.log.add(operation, path, seconds, phase, origin)
        if torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, owned)

    def _learn(
        self, key: Any, entry: Formula, target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call that has no recipe yet. Add a recipe to the memo if the call's record depends only on metadata."""
        out, operation = self._world.run_views(key, entry, target, func, args, kwargs)
        if operation is not None:
            self._add_call(operation, self._innermost_path(), None, origin_of(func), ())
            return out
        before, self._is_learning_function = self._begin_learning(), True
        try:
            out, operation = self._world.run_free(key, entry, target, func, args, kwargs, self._run_tracked)
            if operation is None:
                out = self._observe_call(func, args, kwargs)
            else:
                self._add_call(operation, self._innermost_path(), None, origin_of(func), ())
        finally:
            self._is_learning_function = False
        self._keep_lesson(key, entry, target, before, (args, kwargs), out, scopes=0)
        return out

    def _begin_learning(self) -> RunState:
        """Return the run's state before a call, for :meth:`_keep_lesson`."""
        storages = self._storages
        return RunState(len(self.calls), len(self.scopes), storages.entered, storages.begin())

    def _keep_lesson(
        self,
        key: Any,
        entry: Formula,
        target: Any,
        before: RunState,
        arguments: Arguments,
        out: Any,
        scopes: int | None = None,
    ) -> None:
        """Let the world learn a finished call if it was recorded as exactly one call, whose target is ``target``.

        ``scopes`` is the number of scopes that must have been recorded in the call; None allows any number. A call with more scopes
        must not be skipped later, or the scopes of the modules inside it would be missing.
        """
        memory_effect = MemoryEffect(*self._storages.end(before.span, arguments), before.storages)
        is_only_call = len(self.calls) == before.calls + 1
        if scopes is not None:
            is_only_call = is_only_call and len(self.scopes) == before.scopes + scopes
        if is_only_call:
            operation = self.calls[before.calls].operation
            if operation.target is target:
                self._world.learn(key, entry, operation, arguments, out, memory_effect)

    def _observe_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call without using the memo. Record either the call or the calls inside it."""
        if is_importing_compiler():
            with unseen():
                return self.stopwatch.run(func, args, kwargs)
        # DTensor infers shapes, or a higher-order operator traces a function that it runs later: neither computes.
        if self.aten.is_faking() or (self._in_higher_order and is_tracing()):
            return self.stopwatch.run(func, args, kwargs)
        if transformed():
            return self._run_transformed(func, args, kwargs)
        world, original = self._world, (args, kwargs)
        if func == GIVES_MEMORY:
            self._storages.may_leave(args[0])
        if func in GIVES_STORAGE:
            self._watch_size(args[0])
        if sets_property_or_reads_grad(func):
            args = world.holding_gradient(func, args)
        else:
            args, kwargs = world.replace(args, kwargs, func)
            # Autograd and checkpoint compare the devices of meta tensors, so they need the true answer.
            if world.is_meta and not (
                self._owners.follows_backward and (self.phases.now() == BACKWARD or is_comparing())
            ):
                answer = world.answer(func, args, kwargs)
                if answer is not NotImplemented:
                    return self._record_answer(func, args, kwargs, answer)
        self._announce_writes(func, args, kwargs)
        if self._inside_leaf():
            return self._run(func, *world.redirect(func, args, kwargs))  # e.g. an RNN cell's initial state
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return self._run_plain(func, args, kwargs)
        entry = self._registry.find(func)
        in_parts = runs_in_parts((args, kwargs))
        if entry is not None and entry.op == ADDRESS:
            if self._spelling.is_compared(ADDRESS):
                return address_of(args[0])
            if world.is_meta and args[0].is_meta:
                raise NotImplementedError(
                    "cannot read memory at a tensor's address: tensors on the meta device have no values"
                )
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:  # x.type() returns a name, x.type(dtype) casts
            return self.stopwatch.run(func, args, kwargs)
        # tolist() of integers (positions, lengths) is treated like a query; tolist() of floating values moves data out of torch.
        if entry is not None and (entry.reason == QUERY or (entry.reason == ESCAPE and is_integral(args[0]))):
            with self._within(True, self._in_node):
                return self.stopwatch.run(func, args, kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._bodies_under_way:
            return self._observe_body(func, args, kwargs)
        with self.lock:
            return self._run_and_record(func, args, kwargs, original, None if in_parts else entry, in_parts)

    def _run_and_record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Arguments,
        entry: Formula | None,
        in_parts: bool,
    ) -> Any:
        """Run a function and record it as one call. If ``entry`` is None, record the operators that the function dispatches instead.

        With ``in_parts``, ``entry`` is always None, because this process computes only some operators of the function. For a sharded
        tensor, it computes the operators on its own shard; in selective checkpointing, the operators whose results were not saved.
        ``original`` has the arguments that the model passed.
        """
        self._world.called_unseen()
        args, kwargs = self._world.redirect(func, args, kwargs)
        copies_unwritten = self._unwritten.is_copied_by(entry, *original)
        if not (copies_unwritten or in_parts):
            self._check_reads(entry, func, *original)
        specs, kwspecs = self._specs_of(func, args, kwargs)
        node_args = self._node_arguments(args, kwargs)
        target = self._spelling.of(func) if func in WRITTEN_AS else func
        self._call_operators.clear()
        start = self.stopwatch.now()
        try:
            if entry is None:
                out = self._run_by_operators(func, args, kwargs, specs, kwspecs, in_parts)
            else:
                with self._within(True, self._in_node):
                    out = self._run(func, args, kwargs)
        except Exception:
            self.failed = self.failed or (qualified_name(func), self._innermost_path(), (specs, kwspecs))
            self._call_raised(self._innermost_path(), entry, func, original)
            raise
        if entry is not None:
            call_specs = specs, kwspecs, self._result(entry, func, original, out)
            self._record(entry, target, call_specs, self.stopwatch.now() - start, origin_of(func))
            if type(func) is LibraryFunction:
                self._follow_backward(func, args, kwargs, call_specs, out)
            self._own_nodes_behind((out, args))
            if entry.op in UNINITIALIZED or copies_unwritten:
                self._unwritten.add(out)
        elif in_parts and self.calls:
            self._own_nodes_behind((out, args))
        if node_args is not None:
            self._recorder.function(target, node_args, out, self._stack.keys())
        return out

    def _watch_size(self, tensor: torch.Tensor) -> None:
        """Watch the size of a storage that the model asks for. If FSDP gathers a parameter there, label the storage as gathered."""
        with DisableTorchFunction(), self.lock:
            self._storages.may_resize(tensor)
            if is_gathering() and (self._storages.was_made(tensor) or not tensor.untyped_storage().nbytes()):
                self._storages.label([(self._collectives.cause() or self._innermost_path(), tensor)], "gathered")

    def raised(self, error: Exception) -> None:
        """Note an error that a call raised: the model may catch the error."""
        self._world.raised(error)

    def _run_plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that computes nothing, but may return a tensor, such as ``x.T`` or ``x.data``."""
        node_args = self._node_arguments(args, kwargs)
        with self._within(True, self._in_node):
            out = self.stopwatch.run(func, args, kwargs)
        self._world.returned(func, args, kwargs, out)
        if node_args is not None:
            self._recorder.plain(func, node_args, out, self._stack.keys())
        return out

    def _record_answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        """Return the world's answer to a call. If the answer is a tensor, as for ``x.cpu()``, record the call."""
        entry = self._registry.find(func) if isinstance(answer, torch.Tensor) and not self._inside_leaf() else None
        if entry is not None:
            self.log.call(entry, func, (spec_of(args), spec_of(kwargs), spec_of(answer)), self._innermost_path(), 0.0)
        return answer

    def _run_by_operators(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any, kwspecs: Any, in_parts: bool
    ) -> Any:
        """Run a function without a formula. Record the operators that the function dispatches or, if it dispatches none, the function."""
        calls_before = len(self.calls)
        with self._within(self._in_call, True), self._dispatching(func), dispatch_mode_on(self.aten):
            out = self._run(func, args, kwargs)
        may_dispatch_nothing = in_parts or is_between_processes(func)
        if len(self.calls) > calls_before or may_dispatch_nothing:
            return out
        call_specs = specs, kwspecs, spec_of(out)
        if computes(func, *call_specs):
            self.log.call(None, func, call_specs, self._innermost_path(), 0.0, origin=origin_of(func))
        return out

    def _run_transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function under a functorch transform. Record the operators that it dispatches, since these get the full shapes."""
        answer = self._world.answer(func, args, kwargs)
        if answer is not NotImplemented:
            return answer
        args, kwargs = self._world.redirect(func, args, kwargs)
        entry = self._registry.find(func)
        if self._inside_leaf() or (entry is not None and entry.reason == QUERY):
            return self.stopwatch.run(func, args, kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._bodies_under_way:
            return self._observe_body(func, args, kwargs)
        with self._dispatching(func), dispatch_mode_on(self.aten):
            out = self._world.composite(func, args, kwargs)
            return self.stopwatch.run(func, args, kwargs) if out is NotImplemented else out

    def _observe_body(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function so that the calls inside it reach the function mode."""
        self._bodies_under_way.add(func)
        try:
            with self.phases.within(func), FunctionMode(self):
                return self.stopwatch.run(self._without_guard(func), args, kwargs)
        finally:
            self._bodies_under_way.discard(func)

    # Operators, which the dispatch mode sees in the backward pass and in calls without a formula

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a dispatched operator; record it unless it is part of a recorded call."""
        with DisableTorchFunction():
            key = key_tensors = recipe = None
            world = self._world
            is_call = not (self._in_call or self._inside_leaf())
            # If no model has been called in this run, a backward pass uses activations from before the run. After a model call,
            # unknown tensors were made unseen within the run, e.g. DDP's buckets or the buffers of collectives.
            if is_call and world.is_block and not self._has_called:
                self._enter_earlier_tensors(args, kwargs)
            # While a function is being learned, do not look up its operators: they will not run again.
            if world.memo is not None and not (
                self._unwritten.storages or (self._is_learning_function and not is_call)
            ):
                try:
                    key, key_tensors = world.operator_key(func, args, kwargs)
                    recipe = None if key is None else world.memo.get(key)
                except (Unknown, TypeError):
                    key = None
            if key is None:
                return self._observe_operator(func, args, kwargs)
            if recipe is None or (is_call and recipe.is_part):
                return self._learn_operator(key, is_call, func, args, kwargs)
            with self.lock:
                self.phases.on_operator(func, args)
                self._storages.current_call = len(self.calls)
                out = world.repeat_operator(recipe, key, func, args, kwargs, key_tensors)
                if is_call:
                    self._call_operators.clear()
                    phase, path = self.log.phase_and_path(self._innermost_path())
                    seconds = 0.0 if self.stopwatch.runs else None
                    origin = self._origin(func, phase)
                    self.log.add(recipe.operation, path, seconds, phase, origin)
                    self._own_nodes_behind((out, args))
                elif current_graph_task_id() != -1:  # only in a backward pass may checkpoint stop a call halfway
                    call_specs = recipe.operation[2:5]  # its args, kwargs and out
                    self._call_operators.append((func, call_specs))
                return out

    def _learn_operator(self, key: Any, is_call: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that has no recipe yet. Add a recipe to the memo if the operator's record depends only on metadata."""
        before = self._begin_learning()
        out = self._observe_operator(func, args, kwargs)
        memory_effect = MemoryEffect(*self._storages.end(before.span, (args, kwargs)), before.storages)
        entry = self._registry.find(func)
        if entry is not None and len(self.calls) == before.calls + is_call and not communicates(func):
            if is_call:
                operation = self.calls[before.calls].operation
            else:
                operation = Operation(entry.op, func, spec_of(args), spec_of(kwargs), spec_of(out))
            self._world.learn_operator(key, entry, operation, (args, kwargs), out, memory_effect, is_part=not is_call)
        return out

    def _observe_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without using the memo; record it unless it is part of a recorded call."""
        with self.lock:
            self.phases.on_operator(func, args)
            if communicates(func):
                return self._run_communication(func, args, kwargs)
            if self._in_call or self._inside_leaf():
                self._announce_writes(func, args, kwargs)  # F.embedding(max_norm=) writes to its weight
                out = self._track(self._run_kernel(func, args, kwargs))
                if current_graph_task_id() != -1:
                    self._call_operators.append((func, (spec_of(args), spec_of(kwargs), spec_of(out))))
                return out
            original = args, kwargs
            args, kwargs = self._world.replace(args, kwargs, func)
            self._announce_writes(func, args, kwargs)
            entry = self._registry.find(func)
            specs, kwspecs = spec_of(args), spec_of(kwargs)
            if entry is not None and entry.op == RNN_BACKWARD:
                specs = with_learning(args, specs)
            copies_unwritten = self._unwritten.is_copied_by(entry, *original)
            if not copies_unwritten:
                self._check_reads(entry, func, *original)
            # For a composite operator without a formula, record the operators of its decomposition.
            if entry is None and isinstance(func, OpOverload) and func._can_decompose():
                with self._dispatching(func), dispatch_mode_on(self.aten):
                    return self.stopwatch.run(func.decompose, args, kwargs)
            node_args = self._node_arguments(args, kwargs)
            start = self.stopwatch.now()
            out = self._run(func, args, kwargs)
            # A higher-order operator is not recorded, since the calls inside it are; a query computes nothing.
            is_recorded = not isinstance(func, HigherOrderOperator) if entry is None else entry.reason != QUERY
            if is_recorded:
                call_specs = specs, kwspecs, self._result(entry, func, original, out)
                origin = self._origin(func, self.phases.now())
                self._record(entry, func, call_specs, self.stopwatch.now() - start, origin)
                self._own_nodes_behind((out, args))
            if copies_unwritten or (entry is not None and entry.op in UNINITIALIZED):
                self._unwritten.add(out)
            if node_args is not None:
                self._recorder.function(func, node_args, out, self._stack.keys())
            return out

    def _origin(self, func: Any, phase: str) -> str:
        """Return the origin of a dispatched operator: SCRIPT if no function called it, OPERATOR if the model called it directly, else ""."""
        if self._dispatcher is None:
            return SCRIPT if phase == FORWARD else ""  # in a backward pass autograd calls the operators
        is_called_directly = self._dispatcher in (func, getattr(func, "overloadpacket", None))  # torch.ops.aten.mm(...)
        return origin_of(self._dispatcher) if is_called_directly else ""

    @contextmanager
    def _dispatching(self, func: Any) -> Iterator[None]:
        """Mark operators in this block as dispatched by a function."""
        before, self._dispatcher = self._dispatcher, func
        try:
            yield
        finally:
            self._dispatcher = before

    def _run_communication(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record an operator that sends or receives data, even inside another recorded call."""
        args, kwargs = self._world.replace(args, kwargs, func)
        self._announce_writes(func, args, kwargs)
        entry = self._registry.find(func)
        self._check_reads(entry, func, args, kwargs)
        node_args = self._node_arguments(args, kwargs)
        group = self._collectives.group_of(func, args, kwargs)
        start = self.stopwatch.now()
        out = self._run(func, args, kwargs)
        call_specs = spec_of(args), spec_of(kwargs) | group, spec_of(out)
        cause = self._collectives.cause()
        seconds = self.stopwatch.now() - start
        self.log.call(
            entry,
            func,
            call_specs,
            self._innermost_path() if cause is None else cause,
            seconds,
            keeps_path=cause is not None,
        )
        self._own_nodes_behind((out, args))
        if node_args is not None:
            self._recorder.function(func, node_args, out, self._stack.keys())
        return out

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass from the loss, or from the sum of the outputs, and record its operators.

        ``run(roots, ones)`` must run the backward pass. Raises InputError if no output requires a gradient.
        """
        self.path = ""
        self._in_node = True  # a backward pass is not part of a recorded graph
        if not issubclass(type(out), torch.Tensor) and (loss := loss_in(out)) is not None:
            out = loss
        roots, ones = roots_of(self._world.written(out))
        self._track(ones)
        with DisableTorchFunction():  # newer versions of torch call the function mode for an output that is an input
            (roots, ones), _ = self._world.replace((roots, ones), {}, run)
        with dispatch_mode_on(self.aten), self._launches_noted():
            run(roots, ones)

    # Running a call

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator, and track the tensors that it returns."""
        is_operator = isinstance(func, OpOverload) and func not in SPELLED_BY_OPERATOR
        is_whole = not is_operator and (self._in_call or self._inside_leaf())
        if is_whole and self._world.makes_more(func, args, kwargs):
            return self._run_tracked(func, args, kwargs, self._run_and_track)
        return self._run_and_track(func, args, kwargs)

    def _run_tracked(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any] | None = None
    ) -> Any:
        """Run a call; observe its operators as parts of the call, so that intermediate tensors are tracked."""
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            return func(*args, **kwargs) if run is None else run(func, args, kwargs)

    def _run_and_track(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Cast the arguments as autocast does, run a function or an operator, and track the tensors that it returns."""
        args, kwargs = self._world.cast(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            self._unwritten.clear()  # the operator's writes are not observed in detail
            with disable_current_modes():
                out = self._run_higher_order(func, args, kwargs)
        else:
            out = self._run_unwatched(func, args, kwargs) if func in UNWATCHED else NotImplemented
            if out is NotImplemented:
                out = self._run_kernel(func, args, kwargs)
        self._world.returned(func, args, kwargs, out)
        return self._track(out)

    def _run_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator by the world's kernel, or by the operators that it decomposes into."""
        if type(func) is LibraryFunction:
            return self._run_library(func, args, kwargs)
        if type(func) is OpOverload and is_below_autograd():
            kernel = composing_kernel(func, args, kwargs, self._world.device if self._world.is_meta else None)
            if kernel is not None:
                return self._run_composed(kernel, func, args, kwargs)
        return self._world.kernel(func, args, kwargs, self._run_on_clock)

    def _run_composed(self, kernel: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator by its decomposition; observe the inner operators as parts of it, so that intermediate tensors are tracked."""
        operators_before = len(self._call_operators)
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            out = self.stopwatch.run(kernel, args, kwargs, work=func)
        del self._call_operators[operators_before:]  # the operator itself is added instead
        return out

    def _run_on_clock(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator as torch would, with the clock running."""
        return self.stopwatch.run(run_operator, (func, args, kwargs), {}, work=func)

    def _run_unwatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with all modes off, because it would compute more under a mode. Its rule gives its temporary tensors.

        Return NotImplemented if modes make no difference for this call.
        """
        tensors = tensors_given((args, kwargs))
        if not tensors or transformed():
            return NotImplemented
        device = (self._world.device if self._world.is_meta else None) or tensors[0].device
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        operation = Operation("", func, spec_of(args), spec_of(kwargs), None)
        strided = [(tensor.shape, tensor.stride()) for tensor in tensors]
        temporaries = held_unwatched(operation, strided, device.type, learns)
        if temporaries is None:
            return NotImplemented
        with disable_current_modes():
            out = self._run_kernel(func, args, kwargs)
        self._storages.current_call = len(self.calls)
        self._storages.add_transients([(spec, spec.nbytes) for spec in (*temporaries, *specs_in(spec_of(out)))])
        return out

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator so that the calls inside it are observed."""
        calls_other_callables = any(
            not isinstance(function, PYTHON_FUNCTIONS) for function in callables_in((args, kwargs))
        )
        if is_control_flow(func) or self._registry.find(func) is not None or not calls_other_callables:
            # All modes are off here; each wrapped function turns our modes on again while it runs.
            args, kwargs = with_callables((args, kwargs), self._observed_inside)
            # A control flow operator itself slices rows and stacks results with torch functions: track their results.
            is_tracked = is_control_flow(func)
            with (
                EnableTorchFunction() if is_tracked else nullcontext(),
                ResultsMode(self._track) if is_tracked else nullcontext(),
            ):
                return self.stopwatch.run(python_kernel(func), args, kwargs)
        # Operators and modules are not wrapped, since the higher-order operator inspects them. Its kernel calls them with the
        # function mode on, but without a dispatch mode: many higher-order operators refuse to run under a dispatch mode.
        args, kwargs = with_callables((args, kwargs), self._observed_inside, PYTHON_FUNCTIONS)
        with self._within(False, True), self._functions_observed():
            return self.stopwatch.run(dispatched, (func, args, kwargs), {}, work=func)

    @contextmanager
    def _observed_inside(self) -> Iterator[None]:
        """Observe the calls inside a function that a higher-order operator calls.

        To differentiate the function, the operator may first trace it, and then run the traced graph. Only the traced graph is observed.
        """
        if is_tracing():
            yield
            return
        with self._within(False, True), self._functions_observed(), dispatch_mode_on(self.aten):
            yield

    @contextmanager
    def _functions_observed(self) -> Iterator[None]:
        """Observe functions and operators that Python calls inside a higher-order operator."""
        before, self._in_higher_order = self._in_higher_order, True
        try:
            with EnableTorchFunction(), function_mode_on(self):
                yield
        finally:
            self._in_higher_order = before

    @contextmanager
    def _within(self, in_call: bool, in_node: bool) -> Iterator[None]:
        """Mark operators in this block as parts of a recorded call (``in_call``) or of a graph's node (``in_node``)."""
        before = self._in_call, self._in_node
        self._in_call, self._in_node = in_call, in_node
        try:
            yield
        finally:
            self._in_call, self._in_node = before

    # Recording a call

    def _record(
        self, entry: Formula | None, target: Any, call_specs: CallSpecs, seconds: float, origin: str = ""
    ) -> None:
        """Record a call that ran in the innermost module."""
        if self._stack.open:
            self._stack.open[-1].inside += seconds
        self._call_operators.clear()
        self.log.call(entry, target, call_specs, self._innermost_path(), seconds, origin=origin)

    def record_unobservable(self, op: str, module: nn.Module, arguments: Any) -> None:
        """Record a module call that could not be observed, as a call of the op ``op``, which has no formula."""
        with self.lock, DisableTorchFunction():
            self.log.call(None, op, (*spec_of(arguments), None), self._observed_modules[id(module)].path, 0.0)

    def _node_arguments(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a call as nodes of the recorded graph; None if the call is not a separate node.

        A gradient that the forward computes is a single node, which includes the hooks and recomputations of its backward pass.
        """
        if self._in_node or current_graph_task_id() != -1:
            return None
        return self._recorder.before(args, kwargs)

    def _result(self, entry: Formula | None, func: Any, arguments: Arguments, out: Any) -> Any:
        """Return a result's spec, with the facts that a formula needs besides the shape."""
        if type(func) is LibraryFunction:
            return self._result_of_library(entry, func, arguments, out)
        if entry is not None and entry.op in ATTENTIONS:
            must = self._must_read_masks and entry.op == ATTENTION  # the backward pass reuses its forward's pairs
            return self._masks.with_pairs_left(entry, func, self._with_values(arguments), out, must)
        if func is torch.einsum:
            return with_facts(self._world.spec(out), **{PATH: path_taken(spec_of(arguments[0]))})
        return self._world.spec_of_result(entry, arguments[0], out)

    def _with_values(self, arguments: Arguments) -> Arguments:
        """Return the arguments. Each tensor that a call on meta has written to is replaced by its meta tensor."""
        args, kwargs = arguments
        return tuple(map(self._world.current, args)), {name: self._world.current(arg) for name, arg in kwargs.items()}

    def _with_mask_of(self, operation: Operation, func: Any, args: Any, kwargs: Any, out: Any) -> Operation:
        """Return an attention operation from the memo, with the number of pairs that this call's own mask leaves."""
        entry = self._registry.find(func)
        if entry is None:
            return operation
        return operation._replace(out=self._result(entry, func, (args, kwargs), out))

    def _check_reads(self, entry: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """If a function reads memory that no observed call has written, record a call without formula for the unseen write."""
        if is_between_processes(func):  # neither schema nor name shows which arguments it writes to
            self._unwritten.wrote((args, kwargs))
        elif self._unwritten.is_read_by(entry, func, args, kwargs):
            self.log.call(
                None, "unseen write to torch.empty", (*spec_of((args, kwargs)), None), self._innermost_path(), 0.0
            )

    def _call_raised(
        self, path: str, entry: Formula | None = None, target: Any = None, arguments: Any = ((), {})
    ) -> None:
        """Handle an exception from a call in the module at this path.

        ``entry`` is the formula of the function that raised; None if the function has no formula, or a module raised.
        """
        # Checkpoint stops recomputing by raising inside a call: record the operators of the call that have already run.
        if isinstance(sys.exc_info()[1], of_checkpoint(STOPS_RECOMPUTING)):
            if type(target) is LibraryFunction and target.kernel.result is not None:
                _, specs = self._specs_of(target, *arguments)
                result = self._facts_of_library(entry, target, arguments, result_by_rule(target, specs))
                self.log.call(entry, target, ((), specs, result), path, 0.0)
                self._call_operators.clear()
                return
            for func, (*specs, out) in self._call_operators:
                part = self._registry.find(func)
                if entry is not None and part is not None and entry.op == part.op == ATTENTION:
                    out = self._result(entry, target, arguments, out)  # the kernel may have got a mask without values
                self.log.call(part, func, (*specs, out), path, 0.0)
        self._call_operators.clear()

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made in this run, or is an input of the run or of the open outermost module call."""
        return any(tensor is other for other in tensors_in(self._step_arguments)) or self._storages.has_made(tensor)

    def _track(self, out: Any) -> Any:
        """Track tensors as made by the call that is recorded next; return them."""
        self._storages.add_all(out, len(self.calls))
        return out

    def _own_nodes_behind(self, value: Any) -> None:
        """Assign the autograd nodes behind the tensors in ``value`` to the last recorded call."""
        if torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, value)

    def _own_rest_of_module(self, path: str, out: Any) -> None:
        """Assign unowned autograd nodes behind a module's result to the last call in the module.

        TorchScript's operators are seen below autograd: when the last operator returns, its autograd node does not exist yet.
        """
        if not self.calls or not torch.is_grad_enabled():
            return
        is_inside = not path or f"{self.calls[-1].path}.".startswith(f"{path}.")
        if is_inside:
            self._own_nodes_behind(out)

    def _innermost_path(self) -> str:
        """Return the path of the innermost open module call; outside all modules, the path set by :meth:`be_at`."""
        return self._stack.open[-1].path if self._stack.open else self.path

    def _inside_leaf(self) -> bool:
        """Return whether a leaf, or a plain Python function that has a formula, is running: the calls inside are part of it."""
        return self._plain_functions.current is not None or self._stack.inside_leaf()

    # Functions of other libraries

    def _follow_imports(self) -> None:
        """Start to observe functions of libraries that the model's code has imported since the last call."""
        if len(sys.modules) != self._imported:
            self._imported = len(sys.modules)
            replace_in_modules(self._registry.library_functions)

    def _library_function(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record a library function called in this thread."""
        func.arguments(args, kwargs)  # raises TypeError if the function does not accept these arguments
        if is_torch_function_enabled() and len_torch_function_stack():
            return handle_torch_function(func, (), *args, **kwargs)
        if self._in_call or self._inside_leaf():  # part of another call
            with self._within(True, self._in_node):
                return self._run_library(func, args, kwargs)
        return self.function(func, args, kwargs)

    def _run_library(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a library's function; if its tensors have no values, make the result by the function's rule."""
        if func.kernel.result is not None:
            named_arguments = self._described(func, args, kwargs)
            if not has_values(named_arguments):
                return run_without_values(func, named_arguments)
        return self.stopwatch.run(run_original, (func, args, kwargs), {}, work=func)

    def _described(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a library's function by the names in its formula, with this world's tensors."""
        _, arguments = self._world.replace((), func.described(args, kwargs), func)
        return arguments

    def _specs_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the specs of a call's arguments."""
        if type(func) is LibraryFunction:
            return (), spec_of(self._described(func, args, kwargs))
        return spec_of(args), spec_of(kwargs)

    def _result_of_library(self, entry: Formula | None, func: LibraryFunction, arguments: Arguments, out: Any) -> Any:
        """Return the spec of the result of a library's function, with the facts that depend on its arguments' values."""
        result = spec_of(out)
        if out is None and func.kernel.writes:  # the result is the tensor that the function writes to
            result = spec_of(func.arguments(*arguments).get(func.kernel.writes[0]))
        return self._facts_of_library(entry, func, arguments, result)

    def _facts_of_library(self, entry: Formula | None, func: LibraryFunction, arguments: Arguments, result: Any) -> Any:
        facts = func.kernel.facts
        if facts is None or not any(True for _ in specs_in(result)):
            return result
        try:
            return with_facts(result, **facts(func.described(*self._with_values(arguments))))
        except NotImplementedError:
            if self._must_read_masks and entry is not None and entry.op == ATTENTION:
                raise
            return result

    @contextmanager
    def _outside_library(self) -> Iterator[None]:
        """Record calls in this block, although a library function's backward is running."""
        self._in_library_backward = False
        try:
            with self._within(False, self._in_node):
                yield
        finally:
            self._in_library_backward = True

    def _follow_backward(
        self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call_specs: CallSpecs, out: Any
    ) -> None:
        """Record the backward of a library's function as one call, whatever operators its autograd nodes run."""
        entry = self._registry.find(func.backward)
        if not torch.is_grad_enabled() or (entry is None and func.kernel.result is None):
            return
        named_arguments = self._described(func, args, kwargs)
        needing_grad = tuple(
            name for name, value in named_arguments.items() if any(t.requires_grad for t in tensors_of(value))
        )
        nodes = nodes_between(out, named_arguments) if needing_grad else []
        if not nodes:
            return
        _, specs, result = call_specs
        facts = next((spec.facts for spec in specs_in(result)), {})
        grads = with_facts(tuple(specs[name] for name in needing_grad), **facts)
        backward_specs = (), {"grad": result, **specs, "needs": needing_grad}, grads
        call_numbers = dict[int, int]()  # the number of the call recorded for a backward pass, by the pass's id
        states_before = list[tuple[bool, bool, float]]()

        def begin(*_: Any) -> None:
            backward_pass = current_graph_task_id()
            if backward_pass not in call_numbers:
                with self.lock, DisableTorchFunction():
                    call_numbers[backward_pass] = len(self.calls)
                    self.log.call(entry, func.backward, backward_specs, self._innermost_path(), 0.0)
            states_before.append((self._in_call, self._in_library_backward, self.stopwatch.now()))
            self._in_call = self._in_library_backward = True

        def end(*_: Any) -> None:
            if states_before:
                self._in_call, self._in_library_backward, start = states_before.pop()
                number = call_numbers[current_graph_task_id()]
                call = self.calls[number]
                self.calls[number] = call._replace(seconds=(call.seconds or 0.0) + self.stopwatch.now() - start)

        self._owners.own_nodes(len(self.calls) - 1, nodes)
        for node in nodes:
            self._library_hooks += node.register_prehook(begin), node.register_hook(end)

    # Triton kernels, and plain Python functions with a user's formula (seen by sys.setprofile)

    def _launches_noted(self) -> AbstractContextManager[None]:
        return launches_noted(self._launched)

    def _launched(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], launch: Callable[[], Any]
    ) -> Any:
        """Record a Triton kernel's launch; launch the kernel if its tensors have values. All its arguments are assumed to be written to."""
        with DisableTorchFunction():
            computes = not self._world.is_meta and has_values((args, kwargs))
            if self._in_call or self._inside_leaf():
                return launch() if computes else None
            function = function_of(kernel)
            name = Absent(f"{TRITON}{function.__name__}")
            registered = next((own for own in (kernel, function) if self._registry.find(own) is not None), None)
            start = self.stopwatch.now()
            with self._within(True, self._in_node):
                out = launch() if computes else None
            with self.lock:
                self._unwritten.wrote((args, kwargs))
                # A formula for the kernel object gets arguments by position; a formula for the kernel's name gets them by name.
                names = () if registered is not None else names_of(kernel)[: len(args)]
                by_name = {**dict(zip(names, spec_of(args), strict=False)), **spec_of(kwargs)}
                call_specs = spec_of(args[len(names) :]), {**by_name, "grid": grid_of(kernel, grid, args, kwargs)}, None
                target = name if registered is None else kernel
                self._record(self._registry.find(registered or name), target, call_specs, self.stopwatch.now() - start)
            return out

    def _begin_function(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf() or self._in_call:
            return None
        with DisableTorchFunction():
            return spec_of(args), spec_of(kwargs), self._node_arguments(args, kwargs), self.stopwatch.now()

    def _end_function(self, function: FunctionType, beginning: Any, value: Any) -> None:
        specs, kwspecs, node_args, start = beginning
        with DisableTorchFunction():
            call_specs = specs, kwspecs, spec_of(value)
            self._record(self._registry.find(function), function, call_specs, self.stopwatch.now() - start)
            self._own_nodes_behind(value)
            if node_args is not None:
                self._recorder.function(function, node_args, value, self._stack.keys())
