"""The observer of one thread: its parts, each of which sees one kind of call, and the modes that hand the calls to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..model.pytree import tensors_in
from ..torch_internals import get_current_dispatch_mode_stack, get_current_function_mode_stack
from .call_runner import CallRunner
from .calls_outside_torch import CallsOutsideTorch
from .function_calls import FunctionCalls
from .kernel_launches import launches_noted
from .library_calls import LibraryCalls
from .library_functions import library_calls_handled_by
from .memo_use import MemoUse
from .modes import FunctionMode, OperatorMode, beneath_others, dispatch_mode_on
from .module_calls import ModuleCalls
from .observer_state import SharedState, ThreadState
from .operator_calls import OperatorCalls
from .python_functions import PlainFunctions
from .recording import Recording
from .stack import ModuleStack
from .steps import Steps
from .tasks import tasks_wrapped
from .threads import Watched


class ThreadObserver:
    """Observes the calls of the thread in which it is made, between ``switch_on`` and ``switch_off``.

    ``state`` is what the thread is doing now. ``modules`` and ``recording`` are the parts that :class:`.Observer` and :class:`.Threads` use.
    ``new_stopwatch`` makes the stopwatches of further threads.
    """

    def __init__(self, shared: SharedState, state: ThreadState, new_stopwatch: Callable[[], Stopwatch]) -> None:
        self._shared, self.state, self._new_stopwatch = shared, state, new_stopwatch
        # Create each part of the observer after the parts that it uses.
        library, memo_use = LibraryCalls(shared, state), MemoUse(shared, state)
        self.recording = recording = Recording(shared, state, library)
        runner = CallRunner(shared, state, recording, library)
        functions = FunctionCalls(shared, state, recording, memo_use, library, runner)
        operators = OperatorCalls(shared, state, recording, memo_use, runner)
        self._steps = Steps(shared, state, recording)
        self.module_calls = ModuleCalls(shared, state, recording, memo_use, runner, self._steps)
        self._outside = CallsOutsideTorch(shared, state, recording, library, functions)
        self._function_mode, self._operator_mode = (
            FunctionMode(functions),
            OperatorMode(operators.operator, state.stopwatch),
        )
        functions_outside = self._outside.begin_function, self._outside.end_function
        self._plain_functions = PlainFunctions(shared.registry.python_functions, *functions_outside)
        state.see_calls_by(self._function_mode, self._operator_mode, self._plain_functions)

    def in_this_thread(self, stack: ModuleStack) -> ThreadObserver:
        """Return an observer for the current thread, whose calls are part of the open module calls of ``stack``."""
        stopwatch = self._new_stopwatch()
        with self._shared.lock:  # wait until the current call has been recorded
            state = ThreadState(self._shared, stack.copy(), stopwatch, PhaseTimes(stopwatch.now))
        return ThreadObserver(self._shared, state, self._new_stopwatch)

    def is_on(self) -> bool:
        """Return whether the modes are on in the current thread. Autograd's threads inherit the modes of the calling thread."""
        function_modes, dispatch_modes = get_current_function_mode_stack(), get_current_dispatch_mode_stack()
        return self._function_mode in function_modes or self._operator_mode in dispatch_modes

    def switch_on(self) -> None:
        """Turn the modes on in this thread."""
        shared = self._shared
        world_contexts = shared.world.begin_thread()
        with ExitStack() as modes:  # if a mode cannot be turned on, the others are turned off again
            if shared.world.observe_dispatch:
                modes.enter_context(self._operator_mode)
            modes.enter_context(beneath_others(self._function_mode))
            modes.enter_context(self._plain_functions)
            modes.enter_context(launches_noted(self._outside.launched))
            modes.enter_context(
                library_calls_handled_by(self._outside.library_function, shared.registry.library_functions)
            )
            modes.enter_context(tasks_wrapped(self._task, self._thread_of_calls))
            for context in world_contexts:
                modes.enter_context(context)
            self._modes = modes.pop_all()

    def switch_off(self, *exception: Any) -> None:
        """Turn the modes off in this thread."""
        self._modes.__exit__(*(exception or (None, None, None)))

    @contextmanager
    def backward_observed(self) -> Iterator[None]:
        """Observe the operators and kernels of a backward pass in this block."""
        with dispatch_mode_on(self._operator_mode), launches_noted(self._outside.launched):
            yield

    def belongs_to_run(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made in this run, or is an input of the run or of the open outermost module call."""
        is_argument = any(tensor is other for other in tensors_in(self._steps.arguments))
        return is_argument or self._shared.storages.belongs_to_run(tensor)

    def _task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function for another thread, so that it is observed there as part of the module calls that are open now."""
        # In a profile block, observe the function in the other thread only if a module call is open in this thread.
        if self._shared.world.is_block and not self.state.stack.open:
            return function
        return self._shared.threads.observed_task(self, self.state.stack.copy(), function)

    def _thread_of_calls(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a thread's function so that each of its torch calls is observed as a separate task: the thread may outlive this run.

        A daemon thread started outside models, such as tqdm's monitor, is not observed. The process exits without waiting for
        daemons, and would abort if a torch mode were still on in a daemon.
        """
        is_daemon = getattr(getattr(run, "__self__", None), "daemon", False)
        if not self.state.stack.open and (self._shared.world.is_block or is_daemon):
            return run
        return Watched(run, partial(self._shared.threads.observed_task, self, self.state.stack.copy()))
