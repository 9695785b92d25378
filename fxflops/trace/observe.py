"""The observer: it sees every call that a model makes in a run, and records Calls and Scopes.

It is a ``TorchFunctionMode`` together with hooks on this model's modules. A module with a formula (a leaf) is one Call;
so is a function or method with one. A function without formula is observed inside: if it is written in Python, by the
function mode, otherwise by a dispatch mode, and the operators that it dispatches are Calls. Under vmap and the other
functorch transforms every function is observed by the dispatch mode, since only operators have the whole shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages
from ..meters.stopwatch import Stopwatch
from ..ops import ESCAPE, Formula, FormulaRegistry
from ..ops._traits import EMPTY
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, EnableTorchFunction, is_tracing
from .autocast import Autocast
from .autograd_owners import AutogradOwners
from .compiler import is_importing_compiler, unseen
from .device_mirror import DeviceMirror
from .functions import Bodies, belongs_to_tensor, computes, is_integral, origin_of, qualified_name, unguarded
from .kernel_launches import function_of, launches_noted
from .meta_mirror import MetaMirror
from .modes import FunctionMode, beneath_others, dispatch_mode_on, function_mode_on, transformed
from .operators import QUERY, OperatorObserver
from .phases import BACKWARD, is_comparing
from .processes import is_between_processes, runs_in_parts
from .python_functions import PlainFunctions
from .record import Recorder
from .spelling import WRITTEN_AS, Spelling, is_meta_kernel
from .stack import ModuleStack, Running
from .uninitialized_reads import Unwritten, address_of, before_write_hook

ADDRESS = "data_ptr"


class Observer(OperatorObserver):
    """Observes the calls made in a ``with`` block by the thread that entered it.

    modules: the modules to hook, with their paths.
    storages: gets every tensor that a call returns.
    before_write: called with the tensors that a call may write to, before it does.
    mirror: replaces floating tensors by meta ones before each call, so that no kernel computes.
    device_mirror: lets the meta tensors pretend to be on the model's device.
    recorder: gets every call, to write a graph.
    observe_dispatch: keep the dispatch mode on, which also sees operators below no function: of C++, of scripted code.
    facts: read what shapes do not have, the query-key pairs that an attention mask leaves.
    owners: assign calls of the backward pass to the modules whose gradients they compute.
    clock: makes the stopwatch of a thread.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        *,
        storages: LiveStorages | None = None,
        before_write: Callable[[Any], None] | None = None,
        mirror: MetaMirror | None = None,
        device_mirror: DeviceMirror | None = None,
        recorder: Recorder | None = None,
        observe_dispatch: bool = True,
        facts: bool = True,
        owners: AutogradOwners | None = None,
        clock: Callable[[], Stopwatch] = Stopwatch,
    ) -> None:
        forms = None if mirror is None else mirror.forms_of_own
        super().__init__(modules, registry, storages, recorder, owners, forms, clock)
        self.bodies: Bodies = {}
        self._unguarded = cache(unguarded)
        self._spelling = Spelling()
        self._announce = before_write_hook(before_write)
        self._mirror = mirror
        self._device_mirror = device_mirror
        self._autocast = (
            Autocast(device_mirror.device, mirror.is_weight, self._track) if mirror and device_mirror else None
        )
        self._observe_dispatch = observe_dispatch
        self._facts = facts
        self._unwritten = Unwritten()

    def _of_thread(self, stack: ModuleStack) -> None:
        super()._of_thread(stack)
        self.mode = FunctionMode(self)
        self._entering: set[Any] = set()
        functions = self._registry.python_functions
        self._plain_functions = PlainFunctions(functions, self._begin_function, self._end_function)

    def __enter__(self) -> Observer:
        self._attach()
        self.switch_on()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.switch_off(*exception)
        self._detach()
        self.phases.leave()

    def begin_thread(self, over: Observer) -> None:
        """Observe the current thread with this copy of ``over``, inside the module calls that ``over`` has open."""
        self._of_thread(over._stack.copy())
        self.switch_on()

    def switch_on(self) -> None:
        """Turn the modes on in this thread."""
        self._modes = ExitStack()
        for mode in (
            *([self.aten] if self._observe_dispatch else []),
            beneath_others(self.mode),
            self._plain_functions,
        ):
            self._modes.enter_context(mode)
        self._modes.enter_context(self._launches_noted())

    def switch_off(self, *exception: Any) -> None:
        """Turn the modes off in this thread."""
        self._modes.__exit__(*(exception or (None, None, None)))

    def _end_step(self, number: int, module: nn.Module, out: Any) -> None:
        super()._end_step(number, module, out)
        self._check(None, module, (out,), {})

    def _begin_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any) -> None:
        """Prepare for the call of a leaf."""
        self._parts.clear()
        self._check(self._leaves[module], module, args, kwargs)
        if self._recorder is not None and not self._plain_functions.running:
            with DisableTorchFunction():
                running.node_args = self._before(args, kwargs)

    def _inside_leaf(self) -> bool:
        return self._plain_functions.running is not None or self._stack.inside_leaf()

    # Functions, from the function mode

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the mode, and record it."""
        if is_importing_compiler():
            with unseen():
                return self.stopwatch.run(func, args, kwargs)
        if self.aten.is_faking() or (self._in_higher_order and is_tracing()):
            return self.stopwatch.run(func, args, kwargs)
        if transformed():
            return self._transformed(func, args, kwargs)
        given = args, kwargs
        if self._mirror is not None and not belongs_to_tensor(func):
            args, kwargs = self._mirror.replace(args, kwargs, func)
            # Autograd and checkpoint compare devices too, but of the meta tensors: they need the real answer.
            asks = self._owners is None or (self.phases.now() != BACKWARD and not is_comparing())
            if self._device_mirror is not None and asks:
                answer = self._device_mirror.answer(func, args, kwargs)
                if answer is not NotImplemented:
                    return self._answered(func, args, kwargs, answer)
        self._announce(func, args, kwargs)
        if self._inside_leaf():
            if self._device_mirror is not None:  # a cell makes its own first state
                args, kwargs = self._device_mirror.redirect(func, args, kwargs)
            return self._run(func, args, kwargs)
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return self._plain(func, args, kwargs)
        entry = self._registry.find(func)
        in_parts = runs_in_parts((args, kwargs))
        if entry is not None and entry.op == ADDRESS:
            if self._spelling.is_compared(ADDRESS):
                return address_of(args[0])
            if self._mirror is not None and args[0].is_meta:
                raise NotImplementedError("the memory at a tensor's address has no values on the meta device")
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return self.stopwatch.run(func, args, kwargs)
        # tolist() of positions or lengths is like a query; that of floating values is where data leaves torch.
        if entry is not None and (entry.reason == QUERY or (entry.reason == ESCAPE and is_integral(args[0]))):
            with self._within(True, self._in_node):
                return self.stopwatch.run(func, args, kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._entering:
            return self._enter_function(func, args, kwargs)
        with self.lock:
            return self._recorded(func, args, kwargs, given, None if in_parts else entry, in_parts)

    def _recorded(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Any,
        entry: Formula | None,
        in_parts: bool,
    ) -> Any:
        """Run a function, and record it as a call, or, if it has no formula, the operators that it dispatches.

        So it is for a function that runs ``in_parts``: on a sharded tensor this process computes what the operators do on its shard,
        and in selective checkpointing those whose results were not saved.
        """
        if self._mirror is not None and not self._observe_dispatch:
            # A call from a Python meta kernel of torch: its operator came from below all functions, unobserved.
            self._mirror.unknown_origin |= is_meta_kernel()
        if self._device_mirror is not None:
            args, kwargs = self._device_mirror.redirect(func, args, kwargs)
        copies = self._unwritten.is_copied_by(entry, *given)
        if not (copies or in_parts):
            self._check(entry, func, *given)
        specs, kwspecs, node_args = spec_of(args), spec_of(kwargs), self._before(args, kwargs)
        written = self._spelling.of(func) if func in WRITTEN_AS else func
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
            self._stopped(self._here(), entry, func, given)
            raise
        if entry is not None:
            made = specs, kwspecs, self._result(entry, func, given, out)
            self._record(entry, written, made, self.stopwatch.now() - start, origin_of(func))
            self._owns((out, args))
            if entry.op in EMPTY or copies:
                self._unwritten.add(out)
        elif in_parts and self.calls:
            self._owns((out, args))
        if node_args is not None and self._recorder is not None:
            self._recorder.function(written, node_args, out, self._stack.keys())
        return out

    def raised(self, error: Exception) -> None:
        """Note an error of the meta device: a model that catches it goes on in a way that it would not on real tensors."""
        if self._mirror is not None and "meta" in str(error).lower():
            self._mirror.needs_values = self._mirror.needs_values or str(error)

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that computes nothing, but may return a tensor: ``x.T``, ``x.data``."""
        node_args = self._before(args, kwargs)
        with self._within(True, self._in_node):
            out = self.stopwatch.run(func, args, kwargs)
        self._register(func, args, kwargs, out)
        if node_args is not None and self._recorder is not None:
            self._recorder.plain(func, node_args, out, self._stack.keys())
        return out

    def _answered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        """Return the device mirror's answer; record a call if the answer is a tensor (``x.cpu()``)."""
        entry = self._registry.find(func) if isinstance(answer, torch.Tensor) and not self._inside_leaf() else None
        if entry is not None:
            self.log.call(entry, func, (spec_of(args), spec_of(kwargs), spec_of(answer)), self._here(), 0.0)
        return answer

    def _dispatched(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any, kwspecs: Any, in_parts: bool
    ) -> Any:
        """Run a call that has no formula, and record the operators that it dispatches; if there are none, the call."""
        known = len(self.calls)
        with self._within(self._in_call, True), self._dispatching(func), dispatch_mode_on(self.aten):
            out = self._run(func, args, kwargs)
        silent = in_parts or is_between_processes(func)
        if len(self.calls) == known and not silent and computes(func, specs, kwspecs, spec_of(out)):
            self.log.call(None, func, (specs, kwspecs, spec_of(out)), self._here(), 0.0, origin=origin_of(func))
        return out

    def _transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call under a functorch transform, and record the operators that it dispatches on whole tensors."""
        if self._device_mirror is not None:
            answer = self._device_mirror.answer(func, args, kwargs)
            if answer is not NotImplemented:
                return answer
            args, kwargs = self._device_mirror.redirect(func, args, kwargs)
        entry = self._registry.find(func)
        if self._inside_leaf() or (entry is not None and entry.reason == QUERY):
            return self.stopwatch.run(func, args, kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._entering:
            return self._enter_function(func, args, kwargs)
        with self._dispatching(func), dispatch_mode_on(self.aten):
            return self._run_transformed(func, args, kwargs)

    def _run_transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call under a functorch transform."""
        return self.stopwatch.run(func, args, kwargs)

    def _enter_function(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function so that the calls inside it reach the mode."""
        self._entering.add(func)
        try:
            with self.phases.within(func), FunctionMode(self):
                return self.stopwatch.run(self._unguarded(func), args, kwargs)
        finally:
            self._entering.discard(func)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Observe the calls inside a function that a higher-order operator calls.

        To differentiate it the operator may trace it first, and then runs what was traced.
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

    def _launches_noted(self) -> AbstractContextManager[None]:
        # A run on real tensors needs the values that a kernel would compute.
        return nullcontext() if self._mirror is None else launches_noted(self._launched)

    def _launched(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the launch of a Triton kernel that could not be run; what it was given may now be written."""
        function = function_of(kernel)
        entry = next((found for each in (kernel, function) if (found := self._registry.find(each)) is not None), None)
        with self.lock, DisableTorchFunction():
            self._unwritten.wrote((args, kwargs))
            made = spec_of(args), spec_of(kwargs), None
            self._record(entry, kernel if entry is not None else qualified_name(function), made, 0.0)

    # Plain Python functions with a formula of the user's, from sys.setprofile

    def _begin_function(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf():
            return None
        with DisableTorchFunction():
            return spec_of(args), spec_of(kwargs), self._before(args, kwargs), self.stopwatch.now()

    def _end_function(self, function: FunctionType, begun: Any, value: Any) -> None:
        specs, kwspecs, node_args, start = begun
        with DisableTorchFunction():
            made = specs, kwspecs, spec_of(value)
            self._record(self._registry.find(function), function, made, self.stopwatch.now() - start)
            self._owns(value)
            if node_args is not None and self._recorder is not None:
                self._recorder.function(function, node_args, value, self._stack.keys())
