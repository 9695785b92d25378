"""The observer: it sees every call that a model makes in a run, and records Calls and Scopes.

The observer has a ``TorchFunctionMode``, and hooks on the model's modules or, in a count, replacements for their calls. A call of a function or method that has a formula is
recorded as one Call. So is a call of a leaf, i.e. of a module that has a formula. If a function has no formula, the calls inside
it are recorded instead. The function mode sees these calls if the function is written in Python. Otherwise, a dispatch mode sees
them as operators. Under vmap and the other functorch transforms, only operators get the full shapes, so the dispatch mode
observes all functions.

All threads of a run share a ``SharedState`` (:mod:`.observer_state`). Each thread has a ``ThreadObserver``, with a ``ThreadState`` and
these parts:

====================  ============================================================  ==================================
part                  what it sees, or does                                         called by
====================  ============================================================  ==================================
``ModuleCalls``       module calls; ``Steps`` notes the outermost ones              hooks, and replaced calls
``FunctionCalls``     functions and methods                                         the function mode
``OperatorCalls``     operators                                                     the dispatch mode
``CallsOutsideTorch`` other libraries' functions, Triton kernels, Python functions  replaced functions, ``sys.setprofile``
``CallRunner``        runs a call and tracks the tensors that it returns            the parts above
``MemoUse``           decides whether the memo applies; gives it new calls          the parts above
``Recording``         records a call in the run's log                               the parts above
====================  ============================================================  ==================================

A world (:mod:`.worlds`) decides which tensors a call gets and how the call runs. A world may have a memo of earlier calls.
:meth:`.FunctionCalls.function` sends a call one of four ways:

===============================================  ================================  ============================================
the call                                         goes through                      and is recorded by
===============================================  ================================  ============================================
is like an earlier one: its key is in the memo   ``_repeat``                       ``add_repeated``: the memo has the operation
is new, and the world has a rule for its result  ``recipe_by_rule``, ``_repeat``   ``add_repeated``
is new, without a rule, in a world with a memo   ``_run_new``                      ``add_repeated`` after a shortcut; else as below
depends on more than its tensors' metadata       ``_observe_call``, then           ``call_log.call``: specs of arguments and result
                                                 ``CallRunner.run``
===============================================  ================================  ============================================

``_repeat`` and ``_run_new`` are methods of :class:`.FunctionCalls`, ``add_repeated`` is :meth:`.Recording.add_repeated`, and the rules and
shortcuts are the world's (:meth:`.World.recipe_by_rule`, :meth:`.World.run_views`, :meth:`.World.run_by_shortcut`).

In a count with a backward pass, only operators are looked up in the memo: while gradients are recorded or the dispatch mode is on,
:meth:`.MemoUse.memo_now` returns None for functions and leaves.

Operators and leaves go the same ways through other methods:

=============================  ===========================  ===========================  ============================
what runs                      begins in                    if in the memo or by a rule  if new
=============================  ===========================  ===========================  ============================
a leaf in a count, on meta     ``ModuleCalls._call_leaf``   ``_skip_leaf``               ``_call_module``, as below
a leaf seen by hooks           ``ModuleCalls._begin_leaf``  ``_leave_by_recipe``         ``_leave_leaf``
an operator                    ``OperatorCalls.operator``   in ``operator`` itself       ``_run_new_operator``
=============================  ===========================  ===========================  ============================

All these methods end in :meth:`.call_log.CallLog.add`, the only place that appends to an observer's calls. If a function has no formula,
``_observe_call`` records the calls inside the function, not the function itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..meters.stopwatch import PhaseTimes, Stopwatch
from ..ops import FormulaRegistry
from ..records import Call
from ..torch_internals import DisableTorchFunction
from .attention_pairs import with_shares
from .autograd_owners import loss_in, roots_of
from .call_log import FailedCall
from .instruments import Instruments
from .observer_state import SharedState, ThreadState
from .phases import Phases
from .stack import ModuleStack
from .thread_observer import ThreadObserver
from .threads import drop


class Observer:
    """Observes the calls made in a ``with`` block: in the thread that runs the block, and in threads that the model starts.

    modules: the modules to hook, with their paths.
    instruments: the other observers of the run, e.g. the tracker of its memory.
    must_read_masks: raise NotImplementedError if an attention mask on meta has no values. Masks that have values are always read.
    new_stopwatch: makes a stopwatch for each thread.
    code_that_calls: the code of the function that calls the model; None if the user's own code calls it.

    ``calls`` and ``scopes`` are the records; ``steps`` are the outermost module calls, named by the module's path; a
    profiled block adds a step without a name for each iteration of the user's loop.
    ``stopwatch`` shows the run's time without the observer's overhead.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        instruments: Instruments | None = None,
        *,
        must_read_masks: bool = False,
        new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
        code_that_calls: CodeType | None = None,
    ) -> None:
        self._is_released = False
        self.instruments = instruments = Instruments() if instruments is None else instruments
        stack, stopwatch = ModuleStack(), new_stopwatch()
        times = PhaseTimes(stopwatch.now)
        self._shared = shared = SharedState(
            modules,
            registry,
            Phases(stack, times, instruments.change_listener, code_that_calls),
            instruments,
            must_read_masks=must_read_masks,
        )
        self.calls, self.scopes, self.steps = shared.calls, shared.scopes, shared.steps
        self.phases = shared.phases
        self.stopwatch, self.times = stopwatch, times
        self._threads, self._thread = shared.threads, threading.get_ident()
        self._first = ThreadObserver(shared, ThreadState(shared, stack, stopwatch, times), new_stopwatch)
        self._module_calls = self._first.module_calls
        instruments.graph_listener.begin(shared.calls)
        instruments.world.begin(shared.call_log, instruments.storages)

    @property
    def ran_on(self) -> torch.device | None:
        """The device of the first model output; None before the first output."""
        return self._shared.ran_on

    @property
    def failed(self) -> FailedCall | None:
        """The first call that raised; None if no call raised."""
        return self._shared.failed

    def __enter__(self) -> Observer:
        with ExitStack() as if_it_raises:
            if_it_raises.callback(self._module_calls.detach)
            self._module_calls.attach(self._pre_hook, self._post_hook)
            self._first.switch_on()
            if_it_raises.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        for open_call in self._first.state.stack.open:  # calls left open by an interrupt
            open_call.exit_guards()
        self._first.switch_off(*exception)
        self._module_calls.detach()
        for handle in self._shared.library_hooks:
            handle.remove()
        self.phases.end_open_steps()

    @property
    def calls_with_mask_shares(self) -> Sequence[Call]:
        """The calls of the run. Backward calls of masked attention have the share of pairs that the mask keeps.

        On meta, ``calls`` lacks this share.
        """
        return with_shares(self.calls, self.instruments.owners.owner_of)

    def release(self) -> None:
        """Drop what the run has recorded. The attributes that a late hook still reads are kept until no thread is in a hook.

        Without this call, the model lives until the garbage collector runs. A second call does nothing.
        """
        if self._is_released:
            return
        self._is_released = True
        instruments = self.instruments
        self._threads.close(partial(_release, self, self._first))
        instruments.release()

    def be_at(self, path: str) -> None:
        """From now on, assign calls outside all modules to the module at this path, because one of its graph nodes runs next."""
        self._shared.path = path

    # These hooks observe module calls in all threads. While the hooks are set or removed, another thread may run the model.
    # Then PyTorch may call the hooks without kwargs, or after the run is over.

    def _pre_hook(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if threading.get_ident() == self._thread:
            self._module_calls.begin(module, args, kwargs)
            return
        with self._threads.visiting(self._first) as host:
            if host is not None and not host.module_calls.is_ignored(module):
                observer = self._threads.begin_call(host, module, (args, kwargs))
                if observer is not None:
                    observer.module_calls.begin(module, args, kwargs)

    def _post_hook(self, module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() == self._thread:
            self._module_calls.end(module, args, kwargs, out)
            return
        with self._threads.visiting(self._first) as host:
            if host is not None and not host.module_calls.is_ignored(module):
                observer = self._threads.observer_of_call(host, module)
                if observer is not None:
                    observer.module_calls.end(module, args, kwargs, out)
                    self._threads.end_call()

    # The backward pass

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass from the loss, or from the sum of the outputs, and record its operators.

        ``run(roots, ones)`` must run the backward pass. Raises InputError if no output requires a gradient.
        """
        world = self._shared.world
        self.be_at("")
        # Until the end: neither a backward pass nor an optimizer's step is part of a recorded graph.
        self._first.state.in_node = True
        if not issubclass(type(out), torch.Tensor) and (loss := loss_in(out)) is not None:
            out = loss
        # current_tensors_in() returns only the tensors of ``out``, so its attribute ``loss`` was read before.
        roots, ones = roots_of(world.tensors.current_tensors_in(out))
        self._first.recording.track(ones)
        with DisableTorchFunction():  # newer versions of torch call the function mode for an output that is an input
            (roots, ones), _ = world.tensors.replace((roots, ones), {}, torch.autograd.backward)
        with self._first.backward_observed():
            run(roots, ones)


def _release(observer: Observer, first: ThreadObserver) -> None:
    """Break the reference cycles of a finished observer. A hook that another thread calls late still reads the attributes that are kept."""
    drop(first.module_calls, "_thread", "_pre_hook", "_post_hook")
    drop(first.state)
    drop(first)
    drop(observer, "_thread", "_threads", "_first", "_is_released")
