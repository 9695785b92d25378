"""The half of an observer that sees modules called: in each thread of a run, by hooks on the modules of this model only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages
from ..model.pytree import tensors_in
from ..ops import FormulaRegistry
from ..records import Operation, spec_of
from ..torch_internals import DisableTorchFunction
from .autograd_owners import AutogradOwners
from .leaves import Hooks, Leaves, Settings, forms_with_values, holds_tensors
from .modes import AtenMode, FunctionMode, transformed
from .phases import FORWARD, Phases
from .record import Recorder
from .seen import Made, Seen
from .stack import ModuleStack, Running
from .threads import Threads


class ModuleObserver:
    """Records the calls of modules: of leaves as Calls, of all as Scopes. See :class:`~.observe.Observer`, which sees the rest.

    ``lock`` is held while one call is made and recorded: of a run's threads only one does so at a time. ``path`` is where calls
    stand that are made outside of all modules; ``failed`` tells of the first call that raised.
    """

    mode: FunctionMode
    aten: AtenMode
    is_watching = False

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        storages: LiveStorages | None,
        recorder: Recorder | None,
        owners: AutogradOwners | None,
        forms: Callable[..., tuple[Any, ...]] | None,
    ) -> None:
        self.is_watching = True
        self.lock = threading.RLock()
        stack = ModuleStack()
        self.phases = Phases(stack)
        self.seen = Seen(self.phases, owners)
        self.calls, self.scopes, self.steps = self.seen.calls, self.seen.scopes, self.seen.steps
        self.path = ""
        self.failed: tuple[str, str, Any] | None = None
        self._modules = modules
        self._registry = registry
        self._leaves = Leaves(registry)
        self._settings = Settings(forms or forms_with_values, self._spec)
        self._storages = storages
        self._recorder = recorder
        self._owners = owners
        self._hooks = Hooks()
        self._begun = 0
        self._given: Any = None
        self._at_first: dict[nn.Module, Mapping[str, Any]] = {}
        self._threads: Threads[ModuleObserver] = Threads()
        self._of_thread(stack)

    def _of_thread(self, stack: ModuleStack) -> None:
        """What each thread has for itself."""
        self._thread = threading.get_ident()
        self._stack = stack

    def _stopped(self, path: str) -> None:
        """A call in the module of this path raised."""

    def begin_thread(self, over: ModuleObserver) -> None:
        """Watch the thread of this observer, a copy of ``over``, whose modules under way it stands on."""
        self._of_thread(over._stack.copy())
        self.switch_on()

    def switch_on(self) -> None:
        """From now on calls of functions are seen in this thread."""
        raise NotImplementedError

    def switch_off(self, *exception: Any) -> None:
        """No longer."""
        raise NotImplementedError

    def _attach(self) -> None:
        if self._recorder is not None:
            leaves = [module for module in self._modules if self._leaves[module] is not None]
            self._at_first = {module: self._lasting(module) for module in leaves}
        self._hooks.attach(self._modules, self._enter_module, self._leave_module)

    def _detach(self) -> None:
        self._hooks.detach()

    # What the hooks see. Where another thread runs the model as they are set or removed, they may lack its keywords

    def _enter_module(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        mine = threading.get_ident() == self._thread
        observer = self if mine else self._threads.enter(self, module, (args, kwargs))
        if observer is not None:
            observer._enter(module, args, kwargs)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        mine = threading.get_ident() == self._thread
        observer = self if mine else self._threads.leave(self, module)
        if observer is not None:
            with observer.lock:
                observer._leave(module, args, kwargs, out)
            if not mine:
                self._threads.left()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._stack.running:
            self._begun, self._given = len(self.calls), (args, kwargs)
        running = self._stack.enter(module, self._modules[module])
        leaf = not self._stack.inside_leaf() and self._leaves[module] is not None and not transformed()
        if leaf and not holds_tensors(module) and self._is_as_at_first(module):
            self._stack.is_leaf()
            self._begin_leaf(module, running, args, kwargs)
        running.start = time.perf_counter()

    def _is_as_at_first(self, module: nn.Module) -> bool:
        """Whether a module has the settings that it had as the run began: in a graph it has those at every call."""
        return module not in self._at_first or self._at_first[module] == self._lasting(module)

    def _lasting(self, module: nn.Module) -> dict[str, Any]:
        """The settings of a module, but for the mode that it is in: another thread's count of it may set that meanwhile."""
        return {name: value for name, value in self._settings.of(module).settings.items() if name != "training"}

    def _begin_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any) -> None:
        """A leaf begins to run."""

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        end = time.perf_counter()
        running, is_leaf = self._stack.leave(module)
        if not self._stack.running:
            self._given = None
        if self._inside_leaf():
            return
        with DisableTorchFunction():
            specs, kwspecs, result = self._spec(args), self._spec(kwargs), self._spec(out)
            if sys.exc_info()[1] is not running.handled:  # it raised
                self.failed = self.failed or (type(module).__qualname__, running.path, (specs, kwspecs))
                self._stopped(running.path)
                return
            self._left(module, running, is_leaf, (specs, kwspecs, result), end - running.start)
            if is_leaf:
                self._owns((out, args))
                if running.noted is not None and self._recorder is not None:
                    self._recorder.module(running.path, running.noted, out, self._stack.keys(running))

    def _left(self, module: nn.Module, running: Running, is_leaf: bool, made: Made, took: float) -> None:
        """Record the call of a module that is over."""
        known, path, cls = self._settings.of(module), running.path, type(module)
        if is_leaf:
            self._noting(())
            operation = self.seen.call(self._leaves[module], cls, made, path, took, known)
        else:
            operation = Operation(cls.__name__, cls, *made, known.settings)
        if self.phases.now() == FORWARD:
            begun = None if self._stack.running else self._begun
            self.seen.module(path, operation, known, bool(module._modules), begun)

    def unseen(self, op: str, module: nn.Module, given: Any) -> None:
        """Record that nobody saw a call of a module."""
        with self.lock, DisableTorchFunction():
            self.seen.call(None, op, (*spec_of(given), None), self._modules[module], 0.0)

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was given to the outermost module under way, or to the run, or was made in it."""
        given = any(tensor is other for other in tensors_in(self._given))
        return given or (self._storages is not None and self._storages.has_made(tensor))

    def _noting(self, out: Any) -> Any:
        if self._storages is not None:
            self._storages.add_all(out, len(self.calls))
        return out

    def _owns(self, value: Any) -> None:
        """What the call recorded last put out is its own, to the backward pass."""
        if self._owners is not None and torch.is_grad_enabled():
            self._owners.own(len(self.calls) - 1, value)

    def _spec(self, value: Any) -> Any:
        """The value with a spec in place of each tensor."""
        return spec_of(value)

    def _here(self) -> str:
        return self._stack.running[-1].path if self._stack.running else self.path

    def _inside_leaf(self) -> bool:
        return self._stack.inside_leaf()
