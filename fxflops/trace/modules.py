"""The half of an observer that sees module calls, in each thread of a run, by hooks on this model's modules only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages
from ..meters.stopwatch import MODULE, PhaseTimes, Stopwatch
from ..model.modules import ByIdentity
from ..model.pytree import caches_in, tensors_in, walk
from ..ops import Formula, FormulaRegistry
from ..records import EMPTY_MAPPING, Operation, Scope, Spec, Step
from ..records.pairs import LOOKUP
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction
from .autograd_owners import AutogradOwners
from .call_log import CallLog, Made
from .forwards import hidden_kernels
from .leaves import Hooks, Leaves, Settings, forms_with_values, holds_tensors
from .lookups import with_row
from .meta_mirror import MetaMirror
from .modes import AtenMode, FunctionMode, are_others_on, transformed
from .phases import BACKWARD, FORWARD, Phases
from .processes import Collectives, has_shards, runs_in_parts
from .record import Recorder
from .stack import ModuleStack, Running
from .threads import Threads

INPUT_DEPTH = 6
"""The levels of containers and objects in which a model's inputs are looked for."""


class ModuleObserver:
    """Records module calls: those of leaves as Calls, all of them as Scopes. :class:`~.observe.Observer` adds the rest.

    ``steps`` are the outermost module calls, named by the module's path. ``stopwatch`` shows the run's time without the
    observer's.
    ``lock`` is held while a call is made and recorded, so that a run's threads take turns. ``path`` is the path of
    calls made outside all modules. ``failed`` has name, path and argument specs of the first call that raised.
    """

    mode: FunctionMode
    aten: AtenMode
    is_watching = False
    _begin_leaf: Callable[[nn.Module, Running, Any, Any], None]
    _stopped: Callable[[str], None]
    _parts: list[tuple[Any, Made]]
    _mirror: MetaMirror | None

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        storages: LiveStorages | None,
        recorder: Recorder | None,
        owners: AutogradOwners | None,
        forms: Callable[..., tuple[Any, ...]] | None,
        clock: Callable[[], Stopwatch],
    ) -> None:
        self.is_watching = True
        self._clock = clock
        self.lock = threading.RLock()
        self._registry = registry
        stack = ModuleStack()
        self._of_thread(stack)
        self.phases = Phases(stack, self.times)
        self.log = CallLog(self.phases, owners)
        self.calls = self.log.calls
        self.scopes: list[Scope] = []
        self.steps: list[Step] = []
        self._step: int | None = None
        self.path = ""
        self.failed: tuple[str, str, Any] | None = None
        self._modules = modules
        self._leaves = Leaves(registry)
        self._collectives = Collectives(modules)
        self._settings = Settings(forms or forms_with_values, self._spec)
        self._storages = storages
        self._recorder = recorder
        self._owners = owners
        self._hooks = Hooks()
        self._begun = 0
        self._given: Any = None
        self._initial_settings = ByIdentity[Mapping[str, Any]]()
        self._threads = Threads()

    def _of_thread(self, stack: ModuleStack) -> None:
        """Set the attributes that each thread has for itself."""
        self._thread = threading.get_ident()
        self._stack = stack
        self.stopwatch = self._clock()
        self.times = PhaseTimes(self.stopwatch.now)

    def _attach(self) -> None:
        if self._recorder is not None:
            leaves = [module for module in self._modules if self._leaves[module] is not None]
            self._initial_settings = ByIdentity((module, self._settings_but_mode(module)) for module in leaves)
        self._hooks.attach(self._modules, self._enter_module, self._leave_module)

    def _detach(self) -> None:
        self._hooks.detach()

    # The hooks. If another thread runs the model while they are set or removed, they may be called without kwargs

    def _enter_module(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if self._is_copy(module):
            return
        mine = threading.get_ident() == self._thread
        observer = self if mine else self._threads.enter(self, module, (args, kwargs))
        if observer is not None:
            stopped = observer.stopwatch.stop(MODULE)
            try:
                observer._enter(module, args, kwargs)
            finally:
                if stopped:
                    running = observer._stack.running
                    is_unseen = bool(running and running[-1].guards)  # no handler runs before the module's call ends
                    observer.stopwatch.go(type(module) if is_unseen else None)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if self._is_copy(module):
            return
        mine = threading.get_ident() == self._thread
        observer = self if mine else self._threads.leave(self, module)
        if observer is not None:
            stopped = observer.stopwatch.stop()
            try:
                observer._end_module(module, args, kwargs, out)
            finally:
                if stopped:
                    observer.stopwatch.go()
            if not mine:
                self._threads.left()

    def _is_copy(self, module: nn.Module) -> bool:
        """Return whether a module is none of the model's: a copy, made by the model's own forward, with our hooks on it."""
        modules = vars(self).get("_modules")  # gone when the run is over, which a call in another thread may outlast
        return modules is not None and module not in modules

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._stack.running:
            self._begin_step(args, kwargs)
        stack = self._stack
        running = stack.enter(module, self._modules[module])
        is_whole = self._leaves[module] is not None and "forward" not in module.__dict__  # replaced since the run began
        if (
            is_whole
            and not (stack.inside_leaf() or transformed() or are_others_on())
            and not (holds_tensors(module) or has_shards(module) or runs_in_parts((args, kwargs)))
            and self._has_initial_settings(module)
        ):
            stack.leaf_depth = len(stack.running)
            self._begin_leaf(module, running, args, kwargs)
        for op in hidden_kernels(module):
            self.unseen(op, module, (args, kwargs))
        running.start = self.stopwatch.now()

    def _begin_step(self, args: Any, kwargs: Any) -> None:
        """Prepare for an outermost module call."""
        self._begun, self._given = len(self.calls), (args, kwargs)
        if not self._stack.in_backward():
            self.times.end(BACKWARD)  # one that raised
            with self.lock:
                if self._storages is not None:
                    self._note_inputs((args, kwargs))
                self._step = len(self.steps)
                self.steps.append(Step("", range(self._begun, self._begun), self.times.next_step()))
            self.times.begin(FORWARD)

    def _note_inputs(self, given: Any) -> None:
        """Enter the inputs of an outermost module call that were made before the run; label these, and those that calls
        outside of all models made, such as a batch that is put together. What one model gives another is none."""
        assert self._storages is not None
        with DisableTorchFunction():
            parts = [part for _, part in walk(given, INPUT_DEPTH) if issubclass(type(part), torch.Tensor)]
            caches = caches_in(given)
            made_before = [part for part in parts if not isinstance(part, torch.nn.Parameter)]
            self._storages.add_given(made_before)
            self._storages.label(caches, "cache")
            own = [part for part in parts if self._is_made_outside(self._storages.maker_of(part))]
            self._storages.label([("", part) for part in own], "inputs")

    def _is_made_outside(self, number: int) -> bool:
        """Return whether a call of this number was made in the forward phase, and in no module."""
        if not 0 <= number < len(self.calls) or self.calls[number].phase != FORWARD:
            return False
        before = (step.calls for step in reversed(self.steps) if step.calls and step.calls.start <= number)
        return number not in next(before, range(0))

    def _end_step(self, number: int, module: nn.Module, out: Any) -> None:
        """Note which calls an outermost module call has made, also if it raised, and which tensors are its KV cache."""
        if self._storages is not None:
            with DisableTorchFunction():
                self._storages.label(caches_in(out), "cache")
        calls = range(self._begun, len(self.calls))
        self.steps[number] = self.steps[number]._replace(name=self._modules[module], calls=calls)
        self._step = None

    def _has_initial_settings(self, module: nn.Module) -> bool:
        """Return whether a module has the settings that it had when the run began: a graph node can replay only those."""
        return module not in self._initial_settings or self._initial_settings[module] == self._settings_but_mode(module)

    def _settings_but_mode(self, module: nn.Module) -> dict[str, Any]:
        """Return the settings of a module without ``training``, which another thread that counts it may set meanwhile."""
        return {name: value for name, value in self._settings.of(module).settings.items() if name != "training"}

    def _end_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Record a module call that ends, and the step if it is the outermost one."""
        with self.lock:
            if self._owners is not None and self.calls and torch.is_grad_enabled():
                with DisableTorchFunction():
                    self._owners.own_function(len(self.calls) - 1, out)
            self._leave(module, args, kwargs, out)
            if self._step is not None and not self._stack.running:
                self._end_step(self._step, module, out)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        running, is_leaf, took = self._pop(module)
        if self._inside_leaf():  # the module is part of a leaf's call
            return
        with DisableTorchFunction():
            specs, kwspecs, result = self._spec(args), self._spec(kwargs) if kwargs else EMPTY_MAPPING, self._spec(out)
            if sys.exc_info()[1] is not running.handled:  # a new exception: the module raised
                self.failed = self.failed or (type(module).__qualname__, running.path, (specs, kwspecs))
                self._stopped(running.path)
                return
            entry = self._leaves[module]
            if is_leaf and self._mirror is not None and entry is not None and entry.op == LOOKUP:
                result = with_row(result, (*args, module.weight))
            self._left(module, running, is_leaf, (specs, kwspecs, result), took)
            if is_leaf:
                self._owns((out, args))
                if running.node_args is not None and self._recorder is not None:
                    self._recorder.module(running.path, running.node_args, out, self._stack.keys(running))
            else:
                self._owns_rest(running.path, out)

    def _pop(self, module: nn.Module) -> tuple[Running, bool, float]:
        """End a module call; return it, whether it is the leaf's own, and its seconds."""
        running, is_leaf = self._stack.leave(module)
        took = self.stopwatch.now() - running.start
        if self._stack.running:
            self._stack.running[-1].inside += took
        else:
            self._given = None
            self.times.end(FORWARD)
        return running, is_leaf, took

    def _left(self, module: nn.Module, running: Running, is_leaf: bool, made: Made, took: float) -> None:
        """Record a module call that has ended."""
        known, path, cls = self._settings.of(module), running.path, type(module)
        if is_leaf:
            self._track(())
            self._parts.clear()
            own, operation = None, self.log.call(self._leaves[module], cls, made, path, took, known)
        else:
            own = max(took - running.inside, 0.0) if self.stopwatch.runs else None  # what runs in threads overlaps
            operation = tuple.__new__(Operation, (cls.__name__, cls, *made, known.settings))
        self._scoped(path, operation, known.params, bool(module._modules), own)

    def _scoped(
        self, path: str, operation: Operation, params: Mapping[str, Spec], has_children: bool, own: float | None
    ) -> None:
        """Record a module call in the forward, as a scope."""
        if self.phases.now() == FORWARD:
            self.scopes.append(tuple.__new__(Scope, (path, operation, params, has_children, own)))

    def _record(self, entry: Formula | None, target: Any, made: Made, seconds: float, origin: str = "") -> None:
        """Record a call that ran in the innermost module."""
        if self._stack.running:
            self._stack.running[-1].inside += seconds
        self._parts.clear()
        self.log.call(entry, target, made, self._here(), seconds, origin=origin)

    def unseen(self, op: str, module: nn.Module, given: Any) -> None:
        """Record a module call that could not be observed, as a call without formula under the name ``op``."""
        with self.lock, DisableTorchFunction():
            self.log.call(None, op, (*spec_of(given), None), self._modules[module], 0.0)

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made in this run, or was given to it or to its outermost module call."""
        given = any(tensor is other for other in tensors_in(self._given))
        return given or (self._storages is not None and self._storages.has_made(tensor))

    def _track(self, out: Any) -> Any:
        if self._storages is not None:
            self._storages.add_all(out, len(self.calls))
        return out

    def _owns(self, value: Any) -> None:
        """Give the call recorded last the autograd nodes behind the tensors in ``value``."""
        if self._owners is not None and torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, value)

    def _owns_rest(self, path: str, out: Any) -> None:
        """Give the last call in a module the autograd nodes behind its result that no call has.

        The operators of TorchScript are seen below autograd: the node of the last one is not there yet when it returns.
        """
        if self._owners is not None and self.calls and f"{self.calls[-1].path}.".startswith(f"{path}." if path else ""):
            self._owns(out)

    def _spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor."""
        return spec_of(value)

    def _here(self) -> str:
        return self._stack.running[-1].path if self._stack.running else self.path

    def _inside_leaf(self) -> bool:
        return self._stack.inside_leaf()
