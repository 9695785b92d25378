"""The observer: it sees every call of a model in a run, and records Calls and Scopes.

It is a ``TorchFunctionMode`` plus hooks on the model's modules. A module with a formula (a leaf) is one Call; so is a
function or method with a formula. In a function without a formula the calls inside are recorded: by the function mode
if it is written in Python, otherwise by a dispatch mode, as operators. Under vmap and the other functorch transforms
every function is observed by the dispatch mode, since only operators see the full shapes.

A world (:mod:`.worlds`) decides which tensors a call gets and how it runs, and may remember earlier calls.
:meth:`Observer.function` sends a call one of four ways:

===============================================  =========================  ============================================
the call                                         goes through               which records it by
===============================================  =========================  ============================================
is like an earlier one: its key is in the memo   ``_repeat``                ``_add_call``: the memo has the operation
is new, and the world has a rule for its result  ``by_rule``, ``_repeat``   ``_add_call``
is new to a world with a memo                    ``_learn``                 ``_add_call`` if it is free; else as below
must be watched: metadata is not enough          ``_observed``, ``_run``    ``log.call``: specs of arguments and result
===============================================  =========================  ============================================

Operators and leaves go the same ways through other methods:

=============================  ===========================  ===========================  ============================
what runs                      begins in                    in the memo, or has a rule   new
=============================  ===========================  ===========================  ============================
a leaf in a count, on meta     ``_call_leaf``               ``_skip_leaf``               ``_call_module``, as below
a leaf seen by hooks           ``_begin_leaf``              ``_leave_known``             ``_leave_leaf``
an operator                    ``operator``                 in ``operator`` itself       ``_learn_operator``
=============================  ===========================  ===========================  ============================

All of them end in :meth:`.call_log.CallLog.add`, the only place that makes a ``Call``. ``_observed`` may also record nothing, and leave
the calls inside a function to be recorded.
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
from ..ops._traits import EMPTY
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
from .call_log import CallLog, Made
from .compiler import is_importing_compiler, run_operator, unseen
from .composed import composing_kernel
from .device_kernels import SPELLED_BY_OPERATOR
from .forwards import UNKNOWN, ModuleRecord, has_plain_call, hidden_kernels, is_hooked, is_torchs, is_unhooked
from .functions import (
    GIVES_MEMORY,
    GIVES_STORAGE,
    PYTHON_FUNCTIONS,
    Bodies,
    belongs_to_tensor,
    callables_in,
    computes,
    is_integral,
    origin_of,
    qualified_name,
    unguarded,
    with_callables,
)
from .kernel_launches import function_of, grid_of, launches_noted, names_of
from .leaves import Hooks, Leaves, ModuleSettings, Settings, holds_tensors
from .library_functions import (
    handed_to,
    has_values,
    nodes_between,
    replace,
    result_by_rule,
    run_original,
    run_without_values,
    tensors_of,
)
from .memo import NOTHING, Begun, Ended, Known, LeafLookup, Unknown, call_key
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
from .record import NoRecorder
from .spelling import WRITTEN_AS, Spelling
from .stack import ModuleStack, Running
from .tasks import handed_over
from .threads import Threads, Watched, drop
from .uninitialized_reads import Unwritten, address_of, before_write_hook
from .worlds import RNN_BACKWARD, Arguments, World

ADDRESS = "data_ptr"
INPUT_DEPTH = 6
"""How many levels of containers and objects are searched for a model's inputs."""


class Observer:
    """Observes the calls made in a ``with`` block by the thread that entered it, and by threads that the model starts.

    modules: the modules to hook, with their paths.
    world: where the tensors are, and how calls get their results; by default real tensors, without a memo.
    storages: gets every tensor that a call returns.
    before_write: called with the tensors that a call may write to, before it does.
    recorder: gets every call, to write a graph; by default no graph is written.
    observe_dispatch: keep the dispatch mode on, which also sees operators that no torch function called: from C++, from TorchScript.
    must_read_masks: raise NotImplementedError if an attention mask on meta has no values. Masks that have values are always read.
    owners: assigns calls of the backward pass to the modules whose gradients they compute.
    new_stopwatch: makes the stopwatch of a thread.
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
        self._records = {id(module): ModuleRecord(module, path) for module, path in modules.items()}
        self._registry = registry
        self._new_stopwatch = new_stopwatch
        self._world = World() if world is None else world
        self._storages = LiveStorages() if storages is None else storages
        self._recorder = NoRecorder() if recorder is None else recorder
        self._owners = NoOwners() if owners is None else owners
        self._announce = before_write_hook(before_write, self._storages.was_made)
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
        self._unguarded = cache(unguarded)
        # The outermost module call now running: its number, its first call, and its arguments.
        self._step: int | None = None
        self._has_called = False
        self._begun = 0
        self._given: Any = None

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
        # A library function's backward is running: calls from its nodes are part of it.
        self._in_library = False
        # The function without a formula that is dispatching operators, and the functions whose bodies run observed.
        self._inside: Any = None
        self._bodies_under_way: set[Any] = set()
        # The operators of the current call, kept in case checkpoint stops it halfway: see _call_raised.
        self._parts: list[tuple[Any, Made]] = []

    def __enter__(self) -> Observer:
        self._attach()
        self.switch_on()
        return self

    def __exit__(self, *exception: Any) -> None:
        for running in self._stack.open:  # left open by an interrupt
            running.let_go()
        self.switch_off(*exception)
        self._hooks.detach()
        for handle in self._library_hooks:
            handle.remove()
        for record in self._records.values():
            record.leave()
        self.phases.leave()

    def be_at(self, path: str) -> None:
        """Assign later calls outside all modules to the module at this path, whose graph node is running."""
        self.path = path

    def begin_thread(self, over: Observer) -> None:
        """Observe the current thread with this copy of ``over``, inside the module calls that ``over`` has open."""
        self._of_thread(over._stack.copy())
        self.switch_on()

    def switch_on(self) -> None:
        """Turn the modes on in this thread."""
        of_world = self._world.contexts()
        self._modes = ExitStack()
        if self._observe_dispatch:
            self._modes.enter_context(self.aten)
        self._modes.enter_context(beneath_others(self.mode))
        self._modes.enter_context(self._plain_functions)
        self._modes.enter_context(self._launches_noted())
        self._modes.enter_context(handed_to(self._library_function, self._registry.library_functions))
        self._imported = len(sys.modules)
        self._modes.enter_context(handed_over(self._task, self._thread_of_calls))
        for context in of_world:
            self._modes.enter_context(context)

    def _task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for another thread that is observed there, inside the module calls that are open now."""
        if self._world.is_block and not self._stack.open:  # a block observes other threads only inside models
            return function
        return self._threads.observed(self._as_now(), function)

    def _thread_of_calls(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a thread's function with each of its torch calls observed as a task: the thread may outlive this run.

        A daemon started outside models, such as tqdm's monitor, is not observed: the process exits without waiting for it, and aborts
        if a torch mode is on in the daemon then.
        """
        is_daemon = getattr(getattr(run, "__self__", None), "daemon", False)
        if not self._stack.open and (self._world.is_block or is_daemon):
            return run
        return Watched(run, partial(self._threads.observed, self._as_now()))

    def _as_now(self) -> Observer:
        """Return a copy of this observer with the module calls that are open now."""
        over = copy.copy(self)
        over._stack = self._stack.copy()
        return over

    def switch_off(self, *exception: Any) -> None:
        """Turn the modes off in this thread."""
        self._modes.__exit__(*(exception or (None, None, None)))

    def _attach(self) -> None:
        """Put hooks on the modules, or stand-ins that can skip their forward."""
        if self._recorder.writes_graph:
            for record in self._records.values():
                record.initial = self._settings_but_mode(record) if self._formula_of(record) is not None else None
        hooked, is_plain = list[nn.Module](), cache(has_plain_call)
        stands_in = (
            self._world.skips_forwards and self._world.memo is not None
        )  # torch calls the record in place of a module
        leaf, other = self._call_leaf, self._call_module
        for record in self._records.values():
            module = record.module
            cls: Any = type(module)
            if stands_in and is_plain(cls) and not is_hooked(module):
                record.attach(other if self._formula_of(record) is None else leaf)
            else:
                hooked.append(module)
        self._hooks.attach(hooked, self._pre_hook, self._post_hook)

    def _formula_of(self, record: ModuleRecord) -> Formula | None:
        """Return the formula that counts a module as a whole, None if it is not a leaf."""
        if record.formula is UNKNOWN:
            record.formula = self._leaves.of(record.module)
        formula: Formula | None = record.formula
        return formula

    # Module calls. If another thread runs the model while hooks are set or removed, they may be called without kwargs,
    # and after the run is over.

    def _pre_hook(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() == self._thread:
            if not self._is_no_call(module):
                self._begin_timed(module, args, kwargs)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._is_no_call(module):
                observer = self._threads.enter(host, module, (args, kwargs))
                if observer is not None:
                    observer._begin_timed(module, args, kwargs)

    def _begin_timed(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        stopped = self.stopwatch.stop(MODULE)
        try:
            self._begin_module(module, args, kwargs)
        finally:
            if stopped:
                running = self._stack.open
                is_unseen = bool(running and running[-1].guards)  # no handler runs before the module's call ends
                self.stopwatch.go(type(module) if is_unseen else None)

    def _post_hook(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() == self._thread:
            if not self._is_no_call(module):
                self._end_timed(module, args, kwargs, out)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._is_no_call(module):
                observer = self._threads.leave(host, module)
                if observer is not None:
                    observer._end_timed(module, args, kwargs, out)
                    self._threads.left()

    def _end_timed(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        stopped = self.stopwatch.stop()
        try:
            self._end_module(module, args, kwargs, out)
        finally:
            if stopped:
                self.stopwatch.go()

    def _is_no_call(self, module: nn.Module) -> bool:
        """Return whether a module call is not part of the run: the module is a copy that the model's forward made (our hooks included),
        or this thread counts it inside a profiled block."""
        is_ours = id(module) in self._records
        return not is_ours or (self._world.is_block and threading.get_ident() in threads_counting(module))

    def release(self) -> None:
        """Drop everything once no other thread is in a hook, except what a late hook still reads: the thread's number, and the threads."""
        self._threads.close(partial(drop, self, "_thread", "_threads"))

    def _begin_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a module call."""
        stack, record = self._stack, self._records[id(module)]
        self._follow_imports()
        if not stack.open:
            self._begin_step(args, kwargs)
        running = stack.enter(module, record.path)
        is_whole = (
            self._formula_of(record) is not None and "forward" not in module.__dict__
        )  # forward may have been replaced since the run began
        if (
            is_whole
            and not (stack.inside_leaf() or transformed() or are_others_on())
            and not (holds_tensors(module) or has_shards(module) or runs_in_parts((args, kwargs)))
            # A graph node can replay only the settings that the module had when the run began.
            and (record.initial is None or record.initial == self._settings_but_mode(record))
        ):
            self._begin_leaf(record, running, args, kwargs)
            stack.leaf_depth = len(stack.open)
        for op in hidden_kernels(module):
            self.record_unobservable(op, module, (args, kwargs))
        running.start = self.stopwatch.now()

    def _begin_leaf(self, record: ModuleRecord, running: Running, args: Any, kwargs: Any) -> None:
        """Prepare for a leaf module's call, seen by hooks."""
        world, module = self._world, record.module
        if world.meets_tensors:  # its weights too, which may have been swapped for this call
            self._meet((*args, *module._parameters.values(), *module._buffers.values()), kwargs)
        remembers = world.memo is not None and not world.skips_forwards and not module._modules
        if not (remembers and self._memo_applies(in_handler=False)):
            self._parts.clear()
            self._check_reads(self._formula_of(record), module, args, kwargs)
            if not self._plain_functions.running:
                with DisableTorchFunction():
                    running.node_args = self._node_arguments(args, kwargs)
            return
        try:
            with DisableTorchFunction():
                settings = self._settings.of(record)
                own = module._parameters.values() if torch.is_grad_enabled() else ()
                learning = tuple([p is not None and p.requires_grad for p in own])
                key = call_key(
                    (type(module), settings, learning, *world.torch_settings(type(module))), args, kwargs, world.form
                )
                known = world.memo.get(key)  # type: ignore[union-attr]
        except (Unknown, TypeError):
            return
        running.lookup = LeafLookup(known, key, settings.params, self._begin_learning() if known is None else None)
        if known is not None and known.transients is not None:
            running.turn_off(DisableTorchFunction(), DisableTorchDispatch())

    def _begin_step(self, args: Any, kwargs: Any) -> None:
        """Prepare for an outermost module call."""
        self._begun, self._given = len(self.calls), (args, kwargs)
        self._has_called = True
        if not self._stack.in_backward():
            self.times.end(BACKWARD)  # still open if it raised
            with self.lock:
                self._note_inputs((args, kwargs))
                self._step = len(self.steps)
                self.steps.append(Step("", range(self._begun, self._begun), self.times.next_step()))
            self.times.begin(FORWARD)

    def _note_inputs(self, given: Any) -> None:
        """Enter the inputs of an outermost module call that existed before the run. Label them as inputs, and also tensors made
        outside all models, such as a collated batch, but not another model's output."""
        with DisableTorchFunction():
            parts = [part for _, part in walk(given, INPUT_DEPTH) if issubclass(type(part), torch.Tensor)]
            caches = caches_in(given)
            made_before = [part for part in parts if not isinstance(part, torch.nn.Parameter)]
            self._storages.add_given(made_before)
            self._storages.label(caches, "cache")
            own = [part for part in parts if self._is_made_outside(self._storages.maker_of(part))]
            self._storages.label([("", part) for part in own], "inputs")

    def _is_made_outside(self, number: int) -> bool:
        """Return whether the call with this number ran in the forward phase, outside all modules."""
        if not 0 <= number < len(self.calls) or self.calls[number].phase != FORWARD:
            return False
        before = (step.calls for step in reversed(self.steps) if step.calls and step.calls.start <= number)
        return number not in next(before, range(0))

    def _end_step(self, number: int, module: nn.Module, out: Any) -> None:
        """Note which calls an outermost module call made, even if it raised, and label its KV cache."""
        with DisableTorchFunction():
            self._storages.label(caches_in(out), "cache")
            self.ran_on = self.ran_on or device_of(out)
        calls = range(self._begun, len(self.calls))
        self.steps[number] = self.steps[number]._replace(name=self._records[id(module)].path, calls=calls)
        self._step = None
        self._check_reads(None, module, (out,), {})

    def _settings_but_mode(self, record: ModuleRecord) -> dict[str, Any]:
        """Return a module's settings without ``training``, which another thread may change to count the module."""
        return {name: value for name, value in self._settings.of(record).settings.items() if name != "training"}

    def _end_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Record a finished module call, and the step if the call was outermost."""
        with self.lock:
            if self.calls and torch.is_grad_enabled():
                with DisableTorchFunction():
                    self._owners.own_function(len(self.calls) - 1, out)
            self._record_module(module, args, kwargs, out)
            if self._step is not None and not self._stack.open:
                self._end_step(self._step, module, out)

    def _record_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        innermost = self._stack.open[-1] if self._stack.open else None
        if innermost is not None and innermost.module is module:
            innermost.let_go()
            if innermost.lookup is not None and self._leave_known(innermost, innermost.lookup, module, args, out):
                return
        running, is_leaf, took = self._pop(module)
        if self._inside_leaf():  # the module is part of a leaf's call
            return
        with DisableTorchFunction():
            if sys.exc_info()[1] is not running.handled:  # a new exception: the module raised
                given = spec_of(args), spec_of(kwargs)
                self.failed = self.failed or (type(module).__qualname__, running.path, given)
                self._call_raised(running.path)
            elif is_leaf:
                self._leave_leaf(self._records[id(module)], running, took, args, kwargs, out)
            else:
                settings = self._settings.of(self._records[id(module)])
                # Threads overlap, so the calls inside may add up to more time than the module took.
                own = max(took - running.inside, 0.0) if self.stopwatch.runs else None
                operation = self._container_operation(module, settings, args, kwargs, out)
                has_children = bool(module._modules) or is_unhooked(module, self._stack.open)
                self._scoped(running.path, operation, settings.params, has_children, own)
                self._owns_rest(running.path, out)

    def _leave_known(self, running: Running, lookup: LeafLookup, module: nn.Module, args: Any, out: Any) -> bool:
        """Record a finished leaf call from the memo; return False if its kind is new, or its result differs."""
        known, params = lookup.known, lookup.params
        with DisableTorchFunction():
            if known is None or not is_like(out, known.operation.out):
                return False
            _, _, took = self._pop(module)
            self._world.track(known, out)
            self._add_call(known.operation, running.path, took, "", (out, args))
            self._scoped(running.path, known.operation, params, False, None)
            return True

    def _leave_leaf(
        self, record: ModuleRecord, running: Running, took: float, args: Any, kwargs: Any, out: Any
    ) -> None:
        """Record a finished leaf call."""
        module: Any = record.module
        entry, settings = self._formula_of(record), self._settings.of(record)
        table = (module.weight,) if entry is not None and entry.op == LOOKUP else ()
        result = self._world.spec_of_result(entry, (*args, *table), out)
        made = self._world.spec(args), self._world.spec(kwargs) if kwargs else EMPTY_MAPPING, result
        self._track(())
        self._parts.clear()
        operation = self.log.call(entry, type(module), made, running.path, took, settings)
        self._scoped(running.path, operation, settings.params, bool(module._modules), None)
        self._owns((out, args))
        if running.node_args is not None:
            self._recorder.module(running.path, running.node_args, out, self._stack.keys(running))
        lookup = running.lookup
        if lookup is not None and lookup.begun is not None and entry is not None:
            self._keep_lesson(lookup.key, entry, type(module), lookup.begun, (args, kwargs), out)

    def _container_operation(
        self, module: nn.Module, settings: ModuleSettings, args: Any, kwargs: Any, out: Any
    ) -> Operation:
        """Return the operation of a non-leaf module's call, which is recorded only as a scope."""
        cls, world = type(module), self._world
        key = None
        if world.memo is not None and not world.skips_forwards:
            try:
                key = call_key((cls, settings), args, kwargs, world.form)
                known = world.memo.get(key)
            except (Unknown, TypeError):
                key = known = None
            if known is not None and is_like(out, known.operation.out):
                return known.operation
        made = world.spec(args), world.spec(kwargs) if kwargs else EMPTY_MAPPING, world.spec(out)
        if world.is_meta:
            return tuple.__new__(Operation, (cls.__name__, cls, *made, settings.settings))
        operation = self.log.operation(cls.__name__, cls, made, settings)
        if key is not None:
            world.memo[key] = Known(operation, NOTHING)  # type: ignore[index]
        return operation

    def _pop(self, module: nn.Module) -> tuple[Running, bool, float]:
        """End a module call; return it, whether it is the leaf's own, and its seconds."""
        running, is_leaf = self._stack.leave(module)
        took = self.stopwatch.now() - running.start
        if self._stack.open:
            self._stack.open[-1].inside += took
        else:
            self._given = None
            self.times.end(FORWARD)
        return running, is_leaf, took

    def _scoped(
        self, path: str, operation: Operation, params: Mapping[str, Spec], has_children: bool, own: float | None
    ) -> None:
        """Record a module call of the forward phase as a scope."""
        if self.phases.now() == FORWARD:
            self.scopes.append(tuple.__new__(Scope, (path, operation, params, has_children, own)))

    # Module calls by stand-ins, which skip a forward whose result is known

    def _call_module(self, record: ModuleRecord, /, *args: Any, **kwargs: Any) -> Any:
        """Call a module, with the work of the observer's hooks before and after."""
        module = record.module
        is_mine, out = threading.get_ident() == self._thread, None
        enter, leave = (self._begin_module, self._end_module) if is_mine else (self._pre_hook, self._post_hook)
        enter(module, args, kwargs)
        try:
            out = module._call_impl(*args, **kwargs)
        finally:
            leave(module, args, kwargs, out)
        return out

    def _call_leaf(self, record: ModuleRecord, /, *args: Any, **kwargs: Any) -> Any:
        """Call a leaf, or skip it if its result is known."""
        module = record.module
        if threading.get_ident() != self._thread:  # the hooks find the other thread's observer
            return self._call_module(record, *args, **kwargs)
        if "forward" in module.__dict__ or is_hooked(module):  # changed since the run began
            record.formula = UNKNOWN
            return self._call_module(record, *args, **kwargs)
        key = None
        with self.lock, DisableTorchFunction():
            if not (module._modules or are_others_on()) and self._memo_applies(in_handler=False):
                world, settings = self._world, self._settings.of(record)
                try:
                    key = call_key((type(module), settings), args, kwargs, world.form)
                    known = world.memo.get(key) or self._leaf_by_rule(key, record, settings, args, kwargs)  # type: ignore[union-attr]
                except Unknown:
                    key = known = None
                if known is not None:
                    return self._skip_leaf(known, record, settings, args, kwargs)
        begun = self._begin_learning()
        out = self._call_module(record, *args, **kwargs)
        entry = self._formula_of(record)
        if key is not None and entry is not None and is_torchs(type(module)):
            self._keep_lesson(key, entry, type(module), begun, (args, kwargs), out, scopes=1)
        return out

    def _leaf_by_rule(
        self, key: Any, record: ModuleRecord, settings: ModuleSettings, args: Any, kwargs: Any
    ) -> Known | None:
        """Return an entry for a leaf by its class's shape rule, or by its forward if that only makes a view; None for other leaves."""
        module, entry, world = record.module, self._formula_of(record), self._world
        cls = type(module)
        if entry is None or not settings.contiguous or holds_tensors(module):
            return None
        known = world.by_rule(key, entry.op, cls, cls, args, kwargs, settings.settings)
        if known is None and entry.reason == VIEW and is_torchs(cls):
            known = world.by_forward(key, entry.op, module, settings.settings, args, kwargs)
        return known

    def _skip_leaf(self, known: Known, record: ModuleRecord, settings: ModuleSettings, args: Any, kwargs: Any) -> Any:
        """Return the result of a leaf call from the memo, and record the call."""
        module, path, first = record.module, record.path, len(self.calls)
        out, operation, _ = self._world.make_known(known, type(module).forward, args, kwargs, self._timed, module)
        # Never None: forwards are skipped only on meta, where the result is made from the memo.
        assert operation is not None
        # Forwards are skipped only without gradients: there are no owners, and the phase is the forward.
        self.log.add(operation, path, None, FORWARD)
        self.scopes.append(tuple.__new__(Scope, (path, operation, settings.params, False, None)))
        if not self._stack.open:
            self.steps.append(Step(path, range(first, first + 1)))
        return out

    # Functions, from the function mode

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the mode, and record it."""
        world = self._world
        self._follow_imports()
        if func in world.unrecorded:
            return func(*args, **kwargs)
        if self._in_library:  # its backward may first rerun a checkpointed forward
            if self.phases.now() != RECOMPUTE:
                return func(*args, **kwargs)
            with self._outside_library():
                return self.function(func, args, kwargs)
        if func in world.answers and not self._owners.follows_backward and not transformed():
            return world.answers[func]
        if world.meets_tensors and not self._stack.leaf_depth:
            self._meet(args, kwargs)
        if world.memo is None or type(func) is LibraryFunction or not self._memo_applies(in_handler=True):
            return self._observed(func, args, kwargs)
        # x + y and x.add(y) are the same method here; only the caller's bytecode distinguishes them.
        target = self._spelling.of(func) if func in WRITTEN_AS else func
        try:
            key = call_key((target, *world.torch_settings(func)), args, kwargs, world.form)
            known = world.memo.get(key)
        except (Unknown, TypeError):
            return self._observed(func, args, kwargs)
        if known is None:
            entry = self._registry.find(func)
            if entry is None:  # the calls inside it count
                return self._observed(func, args, kwargs)
            with self.lock:
                known = world.by_rule(key, entry.op, target, func, args, kwargs)
                if known is None:
                    return self._learn(key, entry, target, func, args, kwargs)
        with self.lock:
            return self._repeat(known, target, func, args, kwargs)

    def _meet(self, args: Any, kwargs: Any) -> None:
        """Enter a call's arguments that existed before the run, in a category that depends on where the call runs.

        Outside models they are loss targets and data to be cut into batches; in a model, tensors that it holds without
        registering them as buffers; in a backward pass, activations of an earlier forward.
        """
        with DisableTorchFunction():
            if not kwargs and self._storages.has_all(args):  # most are the results of earlier calls
                return
            if self.aten.is_faking():  # DTensor infers the shapes of its results on its own fake tensors
                return
            with self.lock:
                phase = self.phases.now()
                if phase == FORWARD:
                    category = "buffers" if self._stack.open else "inputs"
                else:
                    category = "optimizer" if phase == OPTIMIZER else ""
                given = tensors_given((args, kwargs))
                self._storages.add_given(given, category, self._world.device)
                for tensor in given:
                    if tensor.requires_grad and tensor.is_leaf and not self._storages.was_made(tensor):
                        self.on_leaf(tensor)

    def _memo_applies(self, in_handler: bool) -> bool:
        """Return whether a call's record currently depends only on its tensors' metadata.

        It depends on more inside another call or a higher-order operator, while uninitialized memory exists, with several threads,
        under autocast or a functorch transform, or if the world says so. ``in_handler``: our function mode is handling a call, so it
        is off.
        """
        return self._world.may_ask_memo(in_handler) and not (
            self._stack.leaf_depth
            or self._in_call
            or self._in_higher_order  # the mode is on there, too
            or self._threads.by_thread
            or self._plain_functions.running
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or transformed()
        )

    def _repeat(self, known: Known, target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make and record a call whose kind is in the memo."""
        out, operation, seconds = self._world.make_known(known, func, args, kwargs, self._timed)
        if (
            operation is not None
            and operation.op in ATTENTIONS
            and len(tensors_given((args, kwargs))) > QUERY_KEY_VALUE
        ):
            # The pairs that a mask leaves depend on its values, which may differ from the first call's.
            operation = self._with_mask_of(operation, func, args, kwargs, out)
        path, running = self.path, self._stack.open
        if running:
            path = running[-1].path
            if seconds is not None:
                running[-1].inside += seconds
        if operation is not None:
            self._add_call(operation, path, seconds, origin_of(func), (out, args))
        else:  # the result differs from the first call's
            self._track(out)
            made = spec_of(args), spec_of(kwargs), spec_of(out)
            self.log.call(self._registry.find(func), target, made, path, seconds or 0.0, origin=origin_of(func))
            self._owns((out, args))
        return out

    def _timed(self, known: Known, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """Run and time a call whose kind is in the memo; do not observe its operators if it leaves nothing but its result."""
        with DisableTorchDispatch() if known.transients is not None else self._within(True, self._in_node):
            return self.stopwatch.timed(func, args, kwargs)

    def _add_call(self, operation: Operation, path: str, seconds: float | None, origin: str, seen: Any) -> None:
        """Record a call of a known operation; ``seen`` are its result and its arguments."""
        # Where the dispatch mode is off, there is no backward pass.
        phase = self.phases.now() if self._observe_dispatch else FORWARD
        self.log.add(operation, path, seconds, phase, origin)
        if torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, seen)

    def _learn(
        self, key: Any, entry: Formula, target: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call of a new kind, and add it to the memo if metadata determines its record."""
        out, operation = self._world.run_views(key, entry, target, func, args, kwargs)
        if operation is not None:
            self._add_call(operation, self._here(), None, origin_of(func), ())
            return out
        begun, self._is_learning_function = self._begin_learning(), True
        try:
            out, operation = self._world.run_free(key, entry, target, func, args, kwargs, self._run_tracked)
            if operation is None:
                out = self._observed(func, args, kwargs)
            else:
                self._add_call(operation, self._here(), None, origin_of(func), ())
        finally:
            self._is_learning_function = False
        self._keep_lesson(key, entry, target, begun, (args, kwargs), out, scopes=0)
        return out

    def _begin_learning(self) -> Begun:
        storages = self._storages
        return Begun(len(self.calls), len(self.scopes), storages.entered, storages.begin())

    def _keep_lesson(
        self, key: Any, entry: Formula, target: Any, begun: Begun, given: Arguments, out: Any, scopes: int | None = None
    ) -> None:
        """Let the world learn from a finished call, if exactly one call was recorded, for its target.

        ``scopes`` is the number of scopes that it must have recorded, None for any: a skipped call would lose the scopes of modules
        inside it.
        """
        ended = Ended(*self._storages.end(begun.span, given), begun.storages)
        is_alone = len(self.calls) == begun.calls + 1
        if scopes is not None:
            is_alone = is_alone and len(self.scopes) == begun.scopes + scopes
        if is_alone:
            operation = self.calls[begun.calls].operation
            if operation.target is target:
                self._world.learn(key, entry, operation, given, out, ended)

    def _observed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call without using the memo, and record it or the calls inside it."""
        if is_importing_compiler():
            with unseen():
                return self.stopwatch.run(func, args, kwargs)
        if self.aten.is_faking() or (self._in_higher_order and is_tracing()):
            return self.stopwatch.run(func, args, kwargs)
        if transformed():
            return self._transformed(func, args, kwargs)
        world, given = self._world, (args, kwargs)
        if func == GIVES_MEMORY:
            self._storages.may_leave(args[0])
        if func in GIVES_STORAGE:
            self._watch_size(args[0])
        if belongs_to_tensor(func):
            args = world.holding_gradient(func, args)
        else:
            args, kwargs = world.replace(args, kwargs, func)
            # Autograd and checkpoint compare the devices of meta tensors, so they need the true answer.
            if world.is_meta and not (
                self._owners.follows_backward and (self.phases.now() == BACKWARD or is_comparing())
            ):
                answer = world.answer(func, args, kwargs)
                if answer is not NotImplemented:
                    return self._answered(func, args, kwargs, answer)
        self._announce(func, args, kwargs)
        if self._inside_leaf():
            return self._run(func, *world.redirect(func, args, kwargs))  # e.g. an RNN cell's initial state
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return self._plain(func, args, kwargs)
        entry = self._registry.find(func)
        in_parts = runs_in_parts((args, kwargs))
        if entry is not None and entry.op == ADDRESS:
            if self._spelling.is_compared(ADDRESS):
                return address_of(args[0])
            if world.is_meta and args[0].is_meta:
                raise NotImplementedError("the memory at a tensor's address has no values on the meta device")
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return self.stopwatch.run(func, args, kwargs)
        # tolist() of integers (positions, lengths) is like a query; with floating values, data leaves torch.
        if entry is not None and (entry.reason == QUERY or (entry.reason == ESCAPE and is_integral(args[0]))):
            with self._within(True, self._in_node):
                return self.stopwatch.run(func, args, kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._bodies_under_way:
            return self._observe_body(func, args, kwargs)
        with self.lock:
            return self._run_and_record(func, args, kwargs, given, None if in_parts else entry, in_parts)

    def _run_and_record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Arguments,
        entry: Formula | None,
        in_parts: bool,
    ) -> Any:
        """Run a function and record it as one call, or, if ``entry`` is None, record the operators that it dispatches.

        ``entry`` is also None ``in_parts``: on a sharded tensor this process computes only the operators on its shard, and in selective
        checkpointing only those whose results were not saved. ``given`` are the arguments as the model passed them.
        """
        self._world.called_unseen()
        args, kwargs = self._world.redirect(func, args, kwargs)
        copies = self._unwritten.is_copied_by(entry, *given)
        if not (copies or in_parts):
            self._check_reads(entry, func, *given)
        specs, kwspecs = self._specs_of(func, args, kwargs)
        node_args = self._node_arguments(args, kwargs)
        target = self._spelling.of(func) if func in WRITTEN_AS else func
        self._parts.clear()
        start = self.stopwatch.now()
        try:
            if entry is None:
                out = self._dispatched(func, args, kwargs, specs, kwspecs, in_parts)
            else:
                with self._within(True, self._in_node):
                    out = self._run(func, args, kwargs)
        except Exception:
            self.failed = self.failed or (qualified_name(func), self._here(), (specs, kwspecs))
            self._call_raised(self._here(), entry, func, given)
            raise
        if entry is not None:
            made = specs, kwspecs, self._result(entry, func, given, out)
            self._record(entry, target, made, self.stopwatch.now() - start, origin_of(func))
            if type(func) is LibraryFunction:
                self._follow_backward(func, args, kwargs, made, out)
            self._owns((out, args))
            if entry.op in EMPTY or copies:
                self._unwritten.add(out)
        elif in_parts and self.calls:
            self._owns((out, args))
        if node_args is not None:
            self._recorder.function(target, node_args, out, self._stack.keys())
        return out

    def _watch_size(self, tensor: torch.Tensor) -> None:
        """Watch the size of a storage that the model asks for; label parameters that FSDP gathers: it frees their memory by resizing."""
        with DisableTorchFunction(), self.lock:
            self._storages.may_resize(tensor)
            if is_gathering() and (self._storages.was_made(tensor) or not tensor.untyped_storage().nbytes()):
                self._storages.label([(self._collectives.cause() or self._here(), tensor)], "gathered")

    def raised(self, error: Exception) -> None:
        """Note the error of a call: the model may catch it."""
        self._world.raised(error)

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that computes nothing, but may return a tensor: ``x.T``, ``x.data``."""
        node_args = self._node_arguments(args, kwargs)
        with self._within(True, self._in_node):
            out = self.stopwatch.run(func, args, kwargs)
        self._world.returned(func, args, kwargs, out)
        if node_args is not None:
            self._recorder.plain(func, node_args, out, self._stack.keys())
        return out

    def _answered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        """Return the world's answer; record a call if the answer is a tensor (``x.cpu()``)."""
        entry = self._registry.find(func) if isinstance(answer, torch.Tensor) and not self._inside_leaf() else None
        if entry is not None:
            self.log.call(entry, func, (spec_of(args), spec_of(kwargs), spec_of(answer)), self._here(), 0.0)
        return answer

    def _dispatched(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any, kwspecs: Any, in_parts: bool
    ) -> Any:
        """Run a call that has no formula, and record the operators that it dispatches; if it dispatches none, record the call."""
        first = len(self.calls)
        with self._within(self._in_call, True), self._dispatching(func), dispatch_mode_on(self.aten):
            out = self._run(func, args, kwargs)
        is_silent = in_parts or is_between_processes(func)
        if len(self.calls) == first and not is_silent and computes(func, specs, kwspecs, spec_of(out)):
            self.log.call(None, func, (specs, kwspecs, spec_of(out)), self._here(), 0.0, origin=origin_of(func))
        return out

    def _transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call under a functorch transform, and record the operators that it dispatches on whole tensors."""
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
        """Run a Python function so that the calls inside it reach the mode."""
        self._bodies_under_way.add(func)
        try:
            with self.phases.within(func), FunctionMode(self):
                return self.stopwatch.run(self._unguarded(func), args, kwargs)
        finally:
            self._bodies_under_way.discard(func)

    # Operators, from the dispatch mode: in the backward pass, and in calls without a formula

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator that was dispatched, and record it unless it is part of a recorded call."""
        with DisableTorchFunction():
            key = given = known = None
            world = self._world
            is_call = not (self._in_call or self._inside_leaf())
            # Without a model call in this run, a backward pass uses activations from before the run. After one, unknown tensors
            # were made unseen within the run: buckets, buffers of collectives.
            if is_call and world.is_block and not self._has_called:
                self._meet(args, kwargs)
            # No lookup inside a call that is being learned: these operators run only this once.
            if world.memo is not None and not (
                self._unwritten.storages or (self._is_learning_function and not is_call)
            ):
                try:
                    key, given = world.operator_key(func, args, kwargs)
                    known = None if key is None else world.memo.get(key)
                except (Unknown, TypeError):
                    key = None
            if key is None:
                return self._observed_operator(func, args, kwargs)
            if known is None or (is_call and known.is_part):
                return self._learn_operator(key, is_call, func, args, kwargs)
            with self.lock:
                self.phases.on_operator(func, args)
                self._storages.call = len(self.calls)
                out = world.make_known_operator(known, key, func, args, kwargs, given)
                if is_call:
                    self._parts.clear()
                    phase, path = self.log.placed(self._here())
                    seconds = 0.0 if self.stopwatch.runs else None
                    origin = self._origin(func, phase)
                    self.log.add(known.operation, path, seconds, phase, origin)
                    self._owns((out, args))
                elif current_graph_task_id() != -1:
                    self._parts.append((func, known.operation[2:5]))
                return out

    def _learn_operator(self, key: Any, is_call: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of a new kind, and add it to the memo if metadata determines its record."""
        begun = self._begin_learning()
        out = self._observed_operator(func, args, kwargs)
        ended = Ended(*self._storages.end(begun.span, (args, kwargs)), begun.storages)
        entry = self._registry.find(func)
        if entry is not None and len(self.calls) == begun.calls + is_call and not communicates(func):
            if is_call:
                operation = self.calls[begun.calls].operation
            else:
                operation = Operation(entry.op, func, spec_of(args), spec_of(kwargs), spec_of(out))
            self._world.learn_operator(key, entry, operation, (args, kwargs), out, ended, is_part=not is_call)
        return out

    def _observed_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without using the memo, and record it unless it is part of a recorded call."""
        with self.lock:
            self.phases.on_operator(func, args)
            if communicates(func):
                return self._communicated(func, args, kwargs)
            if self._in_call or self._inside_leaf():
                self._announce(func, args, kwargs)  # F.embedding(max_norm=) writes to its weight
                out = self._track(self._run_kernel(func, args, kwargs))
                if current_graph_task_id() != -1:
                    self._parts.append((func, (spec_of(args), spec_of(kwargs), spec_of(out))))
                return out
            given = args, kwargs
            args, kwargs = self._world.replace(args, kwargs, func)
            self._announce(func, args, kwargs)
            entry = self._registry.find(func)
            specs, kwspecs = spec_of(args), spec_of(kwargs)
            if entry is not None and entry.op == RNN_BACKWARD:
                specs = with_learning(args, specs)
            copies = self._unwritten.is_copied_by(entry, *given)
            if not copies:
                self._check_reads(entry, func, *given)
            # A composite operator without a formula counts as the operators of its decomposition.
            if entry is None and isinstance(func, OpOverload) and func._can_decompose():
                with self._dispatching(func), dispatch_mode_on(self.aten):
                    return self.stopwatch.run(func.decompose, args, kwargs)
            node_args = self._node_arguments(args, kwargs)
            start = self.stopwatch.now()
            out = self._run(func, args, kwargs)
            if not isinstance(func, HigherOrderOperator) if entry is None else entry.reason != QUERY:
                made = specs, kwspecs, self._result(entry, func, given, out)
                origin = self._origin(func, self.phases.now())
                self._record(entry, func, made, self.stopwatch.now() - start, origin)
                self._owns((out, args))
            if copies or (entry is not None and entry.op in EMPTY):
                self._unwritten.add(out)
            if node_args is not None:
                self._recorder.function(func, node_args, out, self._stack.keys())
            return out

    def _origin(self, func: Any, phase: str) -> str:
        """Return the origin of an operator that was dispatched: a function's, the model's own code, or compiled code."""
        if self._inside is None:
            return SCRIPT if phase == FORWARD else ""  # in a backward pass autograd calls the operators
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
        """Run and record an operator that sends or receives, even inside another call."""
        args, kwargs = self._world.replace(args, kwargs, func)
        self._announce(func, args, kwargs)
        entry = self._registry.find(func)
        self._check_reads(entry, func, args, kwargs)
        node_args = self._node_arguments(args, kwargs)
        group = self._collectives.group_of(func, args, kwargs)
        start = self.stopwatch.now()
        out = self._run(func, args, kwargs)
        made = spec_of(args), spec_of(kwargs) | group, spec_of(out)
        cause = self._collectives.cause()
        seconds = self.stopwatch.now() - start
        self.log.call(entry, func, made, self._here() if cause is None else cause, seconds, is_placed=cause is not None)
        self._owns((out, args))
        if node_args is not None:
            self._recorder.function(func, node_args, out, self._stack.keys())
        return out

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass from the loss, or the sum of the outputs, and record its operators.

        ``run(roots, ones)`` runs it. Raises InputError if no output requires a gradient.
        """
        self.path = ""
        self._in_node = True  # not part of a recorded graph
        if not issubclass(type(out), torch.Tensor) and (loss := loss_in(out)) is not None:
            out = loss
        roots, ones = roots_of(self._world.written(out))
        self._track(ones)
        with DisableTorchFunction():  # an output may be an input; newer versions of torch call the function mode for it
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
        """Run a call with its operators observed as parts of it, so that intermediate tensors are tracked."""
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            return func(*args, **kwargs) if run is None else run(func, args, kwargs)

    def _run_and_track(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator with its arguments cast by autocast, and track the tensors that it returns."""
        args, kwargs = self._world.cast(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            self._unwritten.clear()
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
                return self._composed(kernel, func, args, kwargs)
        return self._world.kernel(func, args, kwargs, self._run_on_clock)

    def _composed(self, kernel: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator by its decomposition, observed as parts of it, so that intermediate tensors are tracked."""
        parts = len(self._parts)
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            out = self.stopwatch.run(kernel, args, kwargs, work=func)
        del self._parts[parts:]
        return out

    def _run_on_clock(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator as torch would, with the clock running."""
        return self.stopwatch.run(run_operator, (func, args, kwargs), {}, work=func)

    def _run_unwatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with all modes off, since it computes more under a mode; its rule gives the memory it holds meanwhile.

        Return NotImplemented if modes make no difference for this call.
        """
        tensors = tensors_given((args, kwargs))
        if not tensors or transformed():
            return NotImplemented
        device = (self._world.device if self._world.is_meta else None) or tensors[0].device
        learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        ran = Operation("", func, spec_of(args), spec_of(kwargs), None)
        strided = [(tensor.shape, tensor.stride()) for tensor in tensors]
        held = held_unwatched(ran, strided, device.type, learns)
        if held is None:
            return NotImplemented
        with disable_current_modes():
            out = self._run_kernel(func, args, kwargs)
        self._storages.call = len(self.calls)
        self._storages.add_transient([(spec, spec.nbytes) for spec in (*held, *specs_in(spec_of(out)))])
        return out

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator so that the calls inside it are observed."""
        calls_others = any(not isinstance(each, PYTHON_FUNCTIONS) for each in callables_in((args, kwargs)))
        if is_control_flow(func) or self._registry.find(func) is not None or not calls_others:
            # All modes are off here; the wrapped functions turn them on again inside.
            args, kwargs = with_callables((args, kwargs), self._observed_inside)
            # The operator itself cuts rows and stacks results by torch functions: track the results of these.
            tracked = is_control_flow(func)
            with (
                EnableTorchFunction() if tracked else nullcontext(),
                ResultsMode(self._track) if tracked else nullcontext(),
            ):
                return self.stopwatch.run(python_kernel(func), args, kwargs)
        # Operators and modules are not wrapped, since the higher-order operator inspects them: its own kernel calls them
        # under the function mode. Many higher-order operators refuse to run under a dispatch mode.
        args, kwargs = with_callables((args, kwargs), self._observed_inside, PYTHON_FUNCTIONS)
        with self._within(False, True), self._functions_observed():
            return self.stopwatch.run(dispatched, (func, args, kwargs), {}, work=func)

    @contextmanager
    def _observed_inside(self) -> Iterator[None]:
        """Observe the calls inside a function that a higher-order operator calls.

        To differentiate the function, the operator may first trace it (not observed), and then run the traced graph.
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

    def _record(self, entry: Formula | None, target: Any, made: Made, seconds: float, origin: str = "") -> None:
        """Record a call that ran in the innermost module."""
        if self._stack.open:
            self._stack.open[-1].inside += seconds
        self._parts.clear()
        self.log.call(entry, target, made, self._here(), seconds, origin=origin)

    def record_unobservable(self, op: str, module: nn.Module, given: Any) -> None:
        """Record a module call that could not be observed, as a call without formula under the name ``op``."""
        with self.lock, DisableTorchFunction():
            self.log.call(None, op, (*spec_of(given), None), self._records[id(module)].path, 0.0)

    def _node_arguments(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a call as nodes of the recorded graph; None if the call is not a separate node.

        If the forward takes a gradient, the hooks and recomputation that run for it are part of that one node.
        """
        if self._in_node or current_graph_task_id() != -1:
            return None
        return self._recorder.before(args, kwargs)

    def _result(self, entry: Formula | None, func: Any, given: Arguments, out: Any) -> Any:
        """Return a result's spec, with facts that its shape does not show."""
        if type(func) is LibraryFunction:
            return self._result_of_library(entry, func, given, out)
        if entry is not None and entry.op in ATTENTIONS:
            must = self._must_read_masks and entry.op == ATTENTION  # the backward pass reuses its forward's pairs
            return self._masks.with_pairs_left(entry, func, self._with_values(given), out, must)
        if func is torch.einsum:
            return with_facts(self._world.spec(out), **{PATH: path_taken(spec_of(given[0]))})
        return self._world.spec_of_result(entry, given[0], out)

    def _with_values(self, given: Arguments) -> Arguments:
        """Return the arguments, with its meta tensor in place of each tensor that a call on meta has written to."""
        args, kwargs = given
        return tuple(map(self._world.current, args)), {name: self._world.current(arg) for name, arg in kwargs.items()}

    def _with_mask_of(self, known: Operation, func: Any, args: Any, kwargs: Any, out: Any) -> Operation:
        """Return an attention operation from the memo, with the pairs that this call's own mask leaves."""
        entry = self._registry.find(func)
        if entry is None:
            return known
        return known._replace(out=self._result(entry, func, (args, kwargs), out))

    def _check_reads(self, entry: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call without formula if a function reads memory that no observed call has written."""
        if is_between_processes(func):  # neither its schema nor its name shows what it writes to
            self._unwritten.wrote((args, kwargs))
        elif self._unwritten.is_read_by(entry, func, args, kwargs):
            self.log.call(None, "unseen write to torch.empty", (*spec_of((args, kwargs)), None), self._here(), 0.0)

    def _call_raised(self, path: str, entry: Formula | None = None, target: Any = None, given: Any = ((), {})) -> None:
        """Handle an exception from a call in the module at this path; ``entry`` is the function's formula, None if a module raised or there is none."""
        # Checkpoint stops recomputing by raising inside a call: the operators that ran until then are recorded.
        if isinstance(sys.exc_info()[1], of_checkpoint(STOPS_RECOMPUTING)):
            if type(target) is LibraryFunction and target.kernel.result is not None:
                _, specs = self._specs_of(target, *given)
                result = self._facts_of_library(entry, target, given, result_by_rule(target, specs))
                self.log.call(entry, target, ((), specs, result), path, 0.0)
                self._parts.clear()
                return
            for func, (*specs, out) in self._parts:
                part = self._registry.find(func)
                if entry is not None and part is not None and entry.op == part.op == ATTENTION:
                    out = self._result(entry, target, given, out)  # the kernel may have got a mask without values
                self.log.call(part, func, (*specs, out), path, 0.0)
        self._parts.clear()

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made in this run, or passed to the run or its outermost module call."""
        return any(tensor is other for other in tensors_in(self._given)) or self._storages.has_made(tensor)

    def _track(self, out: Any) -> Any:
        self._storages.add_all(out, len(self.calls))
        return out

    def _owns(self, value: Any) -> None:
        """Assign the autograd nodes behind the tensors in ``value`` to the last recorded call."""
        if torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, value)

    def _owns_rest(self, path: str, out: Any) -> None:
        """Assign unowned autograd nodes behind a module's result to the last call in the module.

        TorchScript's operators are seen below autograd: when the last one returns, its node does not exist yet.
        """
        if self.calls and torch.is_grad_enabled() and f"{self.calls[-1].path}.".startswith(f"{path}." if path else ""):
            self._owns(out)

    def _here(self) -> str:
        return self._stack.open[-1].path if self._stack.open else self.path

    def _inside_leaf(self) -> bool:
        return self._plain_functions.running is not None or self._stack.inside_leaf()

    # Functions of other libraries

    def _follow_imports(self) -> None:
        """Replace the functions of libraries that the model's own code has imported since the last call."""
        if len(sys.modules) != self._imported:
            self._imported = len(sys.modules)
            replace(self._registry.library_functions)

    def _library_function(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record a library function called in this thread."""
        func.arguments(args, kwargs)  # raises TypeError for arguments that it does not take
        if is_torch_function_enabled() and len_torch_function_stack():
            return handle_torch_function(func, (), *args, **kwargs)
        if self._in_call or self._inside_leaf():  # part of another call
            with self._within(True, self._in_node):
                return self._run_library(func, args, kwargs)
        return self.function(func, args, kwargs)

    def _run_library(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a library's function; if its tensors have no values, return the result by its rule."""
        if func.kernel.result is not None:
            arguments = self._described(func, args, kwargs)
            if not has_values(arguments):
                return run_without_values(func, arguments)
        return self.stopwatch.run(run_original, (func, args, kwargs), {}, work=func)

    def _described(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a library's function as its formula names them, with this world's tensors."""
        _, arguments = self._world.replace((), func.described(args, kwargs), func)
        return arguments

    def _specs_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the specs of a call's arguments."""
        if type(func) is LibraryFunction:
            return (), spec_of(self._described(func, args, kwargs))
        return spec_of(args), spec_of(kwargs)

    def _result_of_library(self, entry: Formula | None, func: LibraryFunction, given: Arguments, out: Any) -> Any:
        """Return the spec of the result of a library's function, with the facts that depend on its arguments' values."""
        result = spec_of(out)
        if out is None and func.kernel.writes:  # its result is the tensor that it writes to
            result = spec_of(func.arguments(*given).get(func.kernel.writes[0]))
        return self._facts_of_library(entry, func, given, result)

    def _facts_of_library(self, entry: Formula | None, func: LibraryFunction, given: Arguments, result: Any) -> Any:
        facts = func.kernel.facts
        if facts is None or not any(True for _ in specs_in(result)):
            return result
        try:
            return with_facts(result, **facts(func.described(*self._with_values(given))))
        except NotImplementedError:
            if self._must_read_masks and entry is not None and entry.op == ATTENTION:
                raise
            return result

    @contextmanager
    def _outside_library(self) -> Iterator[None]:
        """Record calls in this block, although a library function's backward is running."""
        self._in_library = False
        try:
            with self._within(False, self._in_node):
                yield
        finally:
            self._in_library = True

    def _follow_backward(
        self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any], made: Made, out: Any
    ) -> None:
        """Record the backward of a library's function as one call, whatever operators its autograd nodes run."""
        entry = self._registry.find(func.backward)
        if not torch.is_grad_enabled() or (entry is None and func.kernel.result is None):
            return
        arguments = self._described(func, args, kwargs)
        needs = tuple(name for name, value in arguments.items() if any(t.requires_grad for t in tensors_of(value)))
        nodes = nodes_between(out, arguments) if needs else []
        if not nodes:
            return
        _, specs, result = made
        facts = next((spec.facts for spec in specs_in(result)), {})
        grads = with_facts(tuple(specs[name] for name in needs), **facts)
        ran = (), {"grad": result, **specs, "needs": needs}, grads
        rows = dict[int, int]()  # call numbers, by backward pass
        before = list[tuple[bool, bool, float]]()

        def begin(*_: Any) -> None:
            if (task := current_graph_task_id()) not in rows:
                with self.lock, DisableTorchFunction():
                    rows[task] = len(self.calls)
                    self.log.call(entry, func.backward, ran, self._here(), 0.0)
            before.append((self._in_call, self._in_library, self.stopwatch.now()))
            self._in_call = self._in_library = True

        def end(*_: Any) -> None:
            if before:
                self._in_call, self._in_library, start = before.pop()
                call = self.calls[(row := rows[current_graph_task_id()])]
                self.calls[row] = call._replace(seconds=(call.seconds or 0.0) + self.stopwatch.now() - start)

        self._owners.own_nodes(len(self.calls) - 1, nodes)
        for node in nodes:
            self._library_hooks += node.register_prehook(begin), node.register_hook(end)

    # Triton kernels, and plain Python functions with a user's formula, from sys.setprofile

    def _launches_noted(self) -> AbstractContextManager[None]:
        return launches_noted(self._launched)

    def _launched(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], launch: Callable[[], Any]
    ) -> Any:
        """Record a Triton kernel's launch, and launch it if its tensors have values; its arguments count as written."""
        with DisableTorchFunction():
            computes = not self._world.is_meta and has_values((args, kwargs))
            if self._in_call or self._inside_leaf():
                return launch() if computes else None
            function = function_of(kernel)
            named = Absent(f"{TRITON}{function.__name__}")
            own = next((each for each in (kernel, function) if self._registry.find(each) is not None), None)
            start = self.stopwatch.now()
            with self._within(True, self._in_node):
                out = launch() if computes else None
            with self.lock:
                self._unwritten.wrote((args, kwargs))
                # A formula for the kernel itself takes arguments by position; one for the kernel's name takes them by name.
                names = () if own is not None else names_of(kernel)[: len(args)]
                by_name = {**dict(zip(names, spec_of(args), strict=False)), **spec_of(kwargs)}
                made = spec_of(args[len(names) :]), {**by_name, "grid": grid_of(kernel, grid, args, kwargs)}, None
                target = named if own is None else kernel
                self._record(self._registry.find(own or named), target, made, self.stopwatch.now() - start)
            return out

    def _begin_function(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf() or self._in_call:
            return None
        with DisableTorchFunction():
            return spec_of(args), spec_of(kwargs), self._node_arguments(args, kwargs), self.stopwatch.now()

    def _end_function(self, function: FunctionType, begun: Any, value: Any) -> None:
        specs, kwspecs, node_args, start = begun
        with DisableTorchFunction():
            made = specs, kwspecs, spec_of(value)
            self._record(self._registry.find(function), function, made, self.stopwatch.now() - start)
            self._owns(value)
            if node_args is not None:
                self._recorder.function(function, node_args, value, self._stack.keys())
