"""What the parts of an observer have in common: the state that all threads of a run share, and the state of one thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..ops import FormulaRegistry
from ..records import Scope, Step
from .attention_pairs import Masks
from .call_log import CallLog, CallSpecs, FailedCall
from .forwards import ObservedModule
from .functions import Bodies, without_torch_function_guard
from .instruments import Instruments
from .leaves import Settings
from .library_functions import replace_in_modules
from .modes import FunctionMode, OperatorMode
from .phases import Phases
from .processes import Collectives
from .python_functions import PlainFunctions
from .spelling import Spelling
from .stack import ModuleStack
from .threads import Threads
from .uninitialized_reads import Unwritten, announcer_of_writes


class SharedState:
    """What all threads of an observed run share: the run's instruments, and the records of the run.

    ``calls`` and ``scopes`` are the records; ``steps`` are the outermost module calls, named by the module's path. ``lock`` is held
    while a call runs and is recorded, so that threads take turns. ``ran_on`` is the device of the first model output. ``path`` is
    recorded for calls outside all modules. ``failed`` is the first call that raised.
    ``has_called`` is True once a module has been called.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        phases: Phases,
        instruments: Instruments,
        *,
        must_read_masks: bool,
    ) -> None:
        self.registry = registry
        self.phases = phases
        self.world = world = instruments.world
        self.storages = storages = instruments.storages
        self.owners = instruments.owners
        self.graph_listener = instruments.graph_listener
        self.change_listener = change_listener = instruments.change_listener
        self.must_read_masks = must_read_masks
        self.lock = threading.RLock()

        self.call_log = CallLog(phases, self.owners)
        self.calls = self.call_log.calls
        storages.follow_calls(self.calls)
        self.scopes: list[Scope] = []
        self.steps: list[Step] = []
        self.path = ""
        self.ran_on: torch.device | None = None
        self.failed: FailedCall | None = None
        self.has_called = False

        self.observed_modules = {id(module): ObservedModule(module, path) for module, path in modules.items()}
        self.settings = Settings(world.tensors.forms_of_own, world.spec, world.setting_readers)
        self.collectives = Collectives(modules)
        self.masks = Masks()
        self.spelling = Spelling()
        self.unwritten = Unwritten()
        self.threads = Threads()
        # Copies of Python functions whose bodies are observed while they run. The functions are torch's own, or a library copied them from torch.
        self.bodies: Bodies = {}
        self.without_guard = cache(without_torch_function_guard)
        self.announce_writes = announcer_of_writes(
            change_listener.before_write if change_listener.saves_writes else None, storages.was_made_by_call
        )
        self.library_hooks: list[RemovableHandle] = []
        # The number of modules that the process had imported at the last follow_imports(). If it changes, follow_imports() must be called.
        self.imported = 0

    def note_failure(self, name: str, path: str, arguments: tuple[Any, Any]) -> None:
        """Note the first call that raises; ignore later ones, since the first is usually the cause of the error."""
        self.failed = self.failed or FailedCall(name, path, arguments)

    def follow_imports(self) -> None:
        """Start to observe functions of libraries that the model's code has imported since the last call."""
        self.imported = len(sys.modules)
        replace_in_modules(self.registry.library_functions)


class ThreadState:
    """What one thread of an observed run is doing now.

    ``stack`` has the open module calls. ``stopwatch`` shows the thread's time without the observer's overhead. ``function_mode``,
    ``operator_mode`` and ``plain_functions`` see the thread's calls; :class:`.ThreadObserver` sets them.
    """

    def __init__(self, shared: SharedState, stack: ModuleStack, stopwatch: Stopwatch, times: PhaseTimes) -> None:
        self._shared = shared
        self.thread = threading.get_ident()
        self.stack = stack
        self.stopwatch = stopwatch
        self.times = times
        # Whether operators now run inside a recorded function or operator, inside a graph node, or under a higher-order operator.
        self.in_call = self.in_node = self.in_higher_order = False
        # Whether a function runs whose call the memo may remember afterwards, so that a later call will not run.
        self.may_remember_function = False
        # True while a library function's backward runs, as set by LibraryCalls.follow_backward: the calls of its autograd nodes are part of it.
        self.in_library_backward = False
        # The function whose operators are now being recorded; None if there is no such function.
        self.dispatcher: Any = None
        # Python functions that are running while their bodies are observed.
        # If such a function calls itself, the operators of the inner call are recorded.
        self.bodies_under_way: set[Any] = set()
        # The operators of the current call, kept in case checkpoint stops the call halfway: see Recording.call_raised. The list is emptied
        # when a call begins, and when it has been recorded.
        self.call_operators: list[tuple[Any, CallSpecs]] = []

    def see_calls_by(
        self, function_mode: FunctionMode, operator_mode: OperatorMode, plain_functions: PlainFunctions
    ) -> None:
        """Set the modes and the profiler. This is done last, since they call parts that are made from this state."""
        self.function_mode = function_mode
        self.operator_mode = operator_mode
        self.plain_functions = plain_functions

    def inside_whole_call(self) -> bool:
        """Return whether a leaf, or a plain Python function that has a formula, is running: the calls inside are part of it."""
        return self.plain_functions.current is not None or self.stack.inside_leaf()

    def inside_call(self) -> bool:
        """Return whether operators now run inside a recorded call, so that they are not recorded themselves."""
        return self.in_call or self.inside_whole_call()

    def innermost_path(self) -> str:
        """Return the path of the innermost open module call; outside all modules, the path set by :meth:`Observer.be_at`."""
        return self.stack.open[-1].path if self.stack.open else self._shared.path

    @contextmanager
    def within_call(self) -> Iterator[None]:
        """Mark operators in this block as parts of a recorded call, so that they are not recorded themselves."""
        before, self.in_call = self.in_call, True
        try:
            yield
        finally:
            self.in_call = before

    @contextmanager
    def within_node(self) -> Iterator[None]:
        """Mark calls in this block as parts of one node of the recorded graph."""
        before, self.in_node = self.in_node, True
        try:
            yield
        finally:
            self.in_node = before

    @contextmanager
    def within_higher_order(self) -> Iterator[None]:
        """Record the calls that a higher-order operator makes in this block, but not as nodes of the recorded graph: the operator is the node."""
        before = self.in_call, self.in_node, self.in_higher_order
        self.in_call, self.in_node, self.in_higher_order = False, True, True
        try:
            yield
        finally:
            self.in_call, self.in_node, self.in_higher_order = before

    @contextmanager
    def dispatching(self, func: Any) -> Iterator[None]:
        """Mark operators in this block as dispatched by a function."""
        before, self.dispatcher = self.dispatcher, func
        try:
            yield
        finally:
            self.dispatcher = before

    @contextmanager
    def outside_library(self) -> Iterator[None]:
        """Record calls in this block, although a library function's backward is running."""
        in_call_before = self.in_call
        self.in_library_backward = self.in_call = False
        try:
            yield
        finally:
            self.in_library_backward, self.in_call = True, in_call_before


class ThreadPart:
    """The base of the parts that observe one thread of a run: it gives short names to the objects that most parts use.

    A part that tracks the tensors of a call first calls :meth:`.LiveStorages.begin_next_call`. Between calls, memory that is freed is still
    assigned to the last call.
    """

    def __init__(self, shared: SharedState, state: ThreadState) -> None:
        self._shared = shared
        self._state = state
        self._registry = shared.registry
        self._world = shared.world
        self._storages = shared.storages
        self._owners = shared.owners
        self._graph_listener = shared.graph_listener
        self._unwritten = shared.unwritten
        self._phases = shared.phases
        self._call_log = shared.call_log
        self._calls = shared.calls
        self._lock = shared.lock
        self._stack = state.stack
        self._stopwatch = state.stopwatch
