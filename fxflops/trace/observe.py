"""The observer: it sees every call that a model makes in a run, and records Calls and Scopes.

The observer is a ``TorchFunctionMode`` plus hooks on the model's modules. A call of a function or method that has a formula is
recorded as one Call. So is a call of a leaf, i.e. of a module that has a formula. If a function has no formula, the calls inside
it are recorded instead. The function mode sees these calls if the function is written in Python. Otherwise, a dispatch mode sees
them as operators. Under vmap and the other functorch transforms, only operators get the full shapes, so the dispatch mode
observes all functions.

All threads of a run share a ``SharedState`` (:mod:`.observer_state`). Each thread has a ``ThreadState``, and these parts:

====================  ============================================================  ==================================
part                  what it sees, or does                                         called by
====================  ============================================================  ==================================
``ModuleCalls``       module calls; ``Steps`` notes the outermost ones              hooks, and stand-ins for calls
``FunctionCalls``     functions and methods                                         the function mode
``OperatorCalls``     operators                                                     the dispatch mode
``CallsOutsideTorch`` other libraries' functions, Triton kernels, Python functions  replaced functions, ``sys.setprofile``
``CallRunner``        runs a call and tracks the tensors that it returns            the parts above
``Learning``          decides whether the memo applies; lets it learn new calls     the parts above
``Recording``         records a call in the run's log                               the parts above
====================  ============================================================  ==================================

A world (:mod:`.worlds`) decides which tensors a call gets and how the call runs. A world may have a memo of earlier calls.
:meth:`.FunctionCalls.function` sends a call one of four ways:

===============================================  ================================  ============================================
the call                                         goes through                      and is recorded by
===============================================  ================================  ============================================
is like an earlier one: its key is in the memo   ``_repeat``                       ``add_repeated``: the memo has the operation
is new, and the world has a rule for its result  ``recipe_by_rule``, ``_repeat``   ``add_repeated``
is new, without a rule, in a world with a memo   ``_learn``                        ``add_repeated`` if it costs 0; else as below
depends on more than its tensors' metadata       ``_observe_call``, then           ``log.call``: specs of arguments and result
                                                 ``CallRunner.run``
===============================================  ================================  ============================================

Operators and leaves go the same ways through other methods:

=============================  ===========================  ===========================  ============================
what runs                      begins in                    if in the memo or by a rule  if new
=============================  ===========================  ===========================  ============================
a leaf in a count, on meta     ``ModuleCalls._call_leaf``   ``_skip_leaf``               ``_call_module``, as below
a leaf seen by hooks           ``ModuleCalls._begin_leaf``  ``_leave_by_recipe``         ``_leave_leaf``
an operator                    ``OperatorCalls.operator``   in ``operator`` itself       ``_learn_operator``
=============================  ===========================  ===========================  ============================

All these methods end in :meth:`.call_log.CallLog.add`, the only place that makes a ``Call``. If a function has no formula,
``_observe_call`` records the calls inside the function, not the function itself.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..model.pytree import tensors_in
from ..ops import FormulaRegistry
from ..records import Call
from ..torch_internals import DisableTorchFunction
from .attention_pairs import with_shares
from .autograd_owners import loss_in, roots_of
from .call_runner import CallRunner
from .calls_outside_torch import CallsOutsideTorch
from .function_calls import FunctionCalls
from .instruments import Instruments
from .kernel_launches import launches_noted
from .learning import Learning
from .library_calls import LibraryCalls
from .library_functions import handed_to
from .modes import AtenMode, FunctionMode, beneath_others, dispatch_mode_on
from .module_calls import ModuleCalls
from .observer_state import SharedState, ThreadState
from .operator_calls import OperatorCalls
from .phases import Phases
from .python_functions import PlainFunctions
from .recording import Recording
from .stack import ModuleStack
from .steps import Steps
from .tasks import handed_over
from .threads import Watched, drop


class Observer:
    """Observes the calls made in a ``with`` block: in the thread that runs the block, and in threads that the model starts.

    modules: the modules to hook, with their paths.
    instruments: the other observers of the run, e.g. the tracker of its memory.
    observe_dispatch: keep the dispatch mode on, to see also operators that C++ or TorchScript calls without a torch function.
    must_read_masks: raise NotImplementedError if an attention mask on meta has no values. Masks that have values are always read.
    new_stopwatch: makes a stopwatch for each thread.
    runs_model: the code of the function that calls the model; None if the user's own code calls it.

    ``calls`` and ``scopes`` are the records; ``steps`` are the outermost module calls, named by the module's path.
    ``stopwatch`` shows the run's time without the observer's overhead.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        instruments: Instruments | None = None,
        *,
        observe_dispatch: bool = True,
        must_read_masks: bool = False,
        new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
        code_that_calls: CodeType | None = None,
    ) -> None:
        self.instruments = instruments = Instruments() if instruments is None else instruments
        stack, stopwatch = ModuleStack(), new_stopwatch()
        times = PhaseTimes(stopwatch.now)
        self._shared = shared = SharedState(
            modules,
            registry,
            Phases(stack, times, instruments.listener, code_that_calls),
            instruments,
            observe_dispatch=observe_dispatch,
            must_read_masks=must_read_masks,
        )
        self.calls, self.scopes, self.steps = shared.calls, shared.scopes, shared.steps
        self.phases, self.lock = shared.phases, shared.lock
        self._threads = shared.threads
        self._new_stopwatch = new_stopwatch
        self._observe_thread(ThreadState(shared, stack, stopwatch, times))

    def _observe_thread(self, state: ThreadState) -> None:
        """Make the parts that observe the current thread. A part is made after the parts that it uses."""
        shared = self._shared
        library, learning = LibraryCalls(shared, state), Learning(shared, state)
        recording = Recording(shared, state, library)
        runner = CallRunner(shared, state, recording, library)
        functions = FunctionCalls(shared, state, recording, learning, library, runner)
        operators = OperatorCalls(shared, state, recording, learning, runner)
        steps = Steps(shared, state, recording)
        modules = ModuleCalls(shared, state, recording, learning, runner, steps)
        outside = CallsOutsideTorch(shared, state, recording, library, functions)
        state.see_calls_by(
            FunctionMode(functions),
            AtenMode(operators.operator, state.stopwatch),
            PlainFunctions(shared.registry.python_functions, outside.begin_function, outside.end_function),
        )
        self._state, self._steps, self._modules, self._outside, self._recording = (
            state,
            steps,
            modules,
            outside,
            recording,
        )
        self._thread = state.thread
        self.stopwatch, self.times = state.stopwatch, state.times
        self.mode, self.aten = state.mode, state.aten

    @property
    def ran_on(self) -> torch.device | None:
        """The device of the first model output; None before the first output."""
        return self._shared.ran_on

    @property
    def failed(self) -> tuple[str, str, Any] | None:
        """The name, path and argument specs of the first call that raised; None if no call raised."""
        return self._shared.failed

    def __enter__(self) -> Observer:
        self._modules.attach(self._pre_hook, self._post_hook)
        self.switch_on()
        return self

    def __exit__(self, *exception: Any) -> None:
        for open_call in self._state.stack.open:  # calls left open by an interrupt
            open_call.let_go()
        self.switch_off(*exception)
        self._modules.detach()
        for handle in self._shared.library_hooks:
            handle.remove()
        self.phases.leave()

    @property
    def calls_with_shares(self) -> Sequence[Call]:
        """The calls of the run. Backward calls of masked attention have the share of pairs that the mask keeps.

        On meta, ``calls`` lacks this share.
        """
        return with_shares(self.calls, self.instruments.owners.owner_of)

    def release(self) -> None:
        """Drop what the run has recorded. The attributes that a late hook still reads are kept until no thread is in a hook."""
        instruments = self.instruments
        self._threads.close(partial(_release, self, self._state, self._modules))
        instruments.release()

    def be_at(self, path: str) -> None:
        """From now on, assign calls outside all modules to the module at this path, because one of its graph nodes runs next."""
        self._shared.path = path

    # Threads

    def begin_thread(self, parent: Observer) -> None:
        """Observe the current thread with this copy of ``parent``, as part of the module calls that are open in ``parent``."""
        stopwatch = self._new_stopwatch()
        stack, times = parent._state.stack.copy(), PhaseTimes(stopwatch.now)
        self._observe_thread(ThreadState(self._shared, stack, stopwatch, times))
        self.switch_on()

    def switch_on(self) -> None:
        """Turn the modes on in this thread."""
        shared, state = self._shared, self._state
        world_contexts = shared.world.contexts()  # before our modes are on: a world may look at the other modes
        self._modes = ExitStack()
        if shared.observe_dispatch:
            self._modes.enter_context(self.aten)
        self._modes.enter_context(beneath_others(self.mode))
        self._modes.enter_context(state.plain_functions)
        self._modes.enter_context(launches_noted(self._outside.launched))
        self._modes.enter_context(handed_to(self._outside.library_function, shared.registry.library_functions))
        self._modes.enter_context(handed_over(self._task, self._thread_of_calls))
        for context in world_contexts:
            self._modes.enter_context(context)

    def switch_off(self, *exception: Any) -> None:
        """Turn the modes off in this thread."""
        self._modes.__exit__(*(exception or (None, None, None)))

    def _task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function for another thread, so that it is observed there as part of the module calls that are open now."""
        # A block observes other threads only inside models.
        if self._shared.world.is_block and not self._state.stack.open:
            return function
        return self._threads.observed_task(self._copy_with_open_calls(), function)

    def _thread_of_calls(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a thread's function so that each of its torch calls is observed as a separate task: the thread may outlive this run.

        A daemon thread started outside models, such as tqdm's monitor, is not observed. The process exits without waiting for
        daemons, and would abort if a torch mode were still on in a daemon.
        """
        is_daemon = getattr(getattr(run, "__self__", None), "daemon", False)
        if not self._state.stack.open and (self._shared.world.is_block or is_daemon):
            return run
        return Watched(run, partial(self._threads.observed_task, self._copy_with_open_calls()))

    def _copy_with_open_calls(self) -> Observer:
        """Return a copy of this observer with the module calls that are open now.

        The parts of the copy are still those of this thread: :meth:`begin_thread` makes new parts, from the copied stack.
        """
        observer = copy.copy(self)
        observer._state = copy.copy(self._state)
        observer._state.stack = self._state.stack.copy()
        return observer

    # Module calls of any thread, seen by hooks. If another thread runs the model while hooks are set or removed, the hooks may be
    # called without kwargs, or after the run is over.

    def _pre_hook(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() == self._thread:
            self._modules.begin(module, args, kwargs)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._modules.is_no_call(module):
                observer = self._threads.enter(host, module, (args, kwargs))
                if observer is not None:
                    observer._modules.begin(module, args, kwargs)

    def _post_hook(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() == self._thread:
            self._modules.end(module, args, kwargs, out)
            return
        with self._threads.visiting(self) as host:
            if host is not None and not host._modules.is_no_call(module):
                observer = self._threads.leave(host, module)
                if observer is not None:
                    observer._modules.end(module, args, kwargs, out)
                    self._threads.left()

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made in this run, or is an input of the run or of the open outermost module call."""
        is_argument = any(tensor is other for other in tensors_in(self._steps.arguments))
        return is_argument or self._shared.storages.has_made(tensor)

    def record_unobservable(self, op: str, module: nn.Module, arguments: Any) -> None:
        """Record a module call that could not be observed, as a call of the op ``op``, which has no formula."""
        self._recording.record_unobservable(op, module, arguments)

    # The backward pass

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass from the loss, or from the sum of the outputs, and record its operators.

        ``run(roots, ones)`` must run the backward pass. Raises InputError if no output requires a gradient.
        """
        world = self._shared.world
        self.be_at("")
        self._state.in_node = True  # a backward pass is not part of a recorded graph
        if not issubclass(type(out), torch.Tensor) and (loss := loss_in(out)) is not None:
            out = loss
        roots, ones = roots_of(world.written(out))
        self._recording.track(ones)
        with DisableTorchFunction():  # newer versions of torch call the function mode for an output that is an input
            (roots, ones), _ = world.replace((roots, ones), {}, run)
        with dispatch_mode_on(self.aten), launches_noted(self._outside.launched):
            run(roots, ones)


def _release(observer: Observer, state: ThreadState, modules: ModuleCalls) -> None:
    """Break the reference cycles of a finished observer."""
    drop(modules, "_thread", "_pre_hook", "_post_hook")
    drop(state)
    drop(observer, "_thread", "_threads")
