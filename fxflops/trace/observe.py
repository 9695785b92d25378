"""The observer: sees every call that a model makes as it runs, and yields Calls and Scopes.

It is a ``TorchFunctionMode`` together with hooks on this model's modules. A module with a formula (a leaf) is one Call;
so is a function or method with one. A Python function without is entered; any other is run under a dispatch mode, and
the operators that it dispatches are Calls. Under vmap and its like only those are to be believed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
from torch import nn

from ..ledger import Ledger
from ..ops import ESCAPE, Formula, Table
from ..records import spec_of
from ..torch_internals import (
    DisableTorchFunction,
    EnableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    current_graph_task_id,
    disable_current_modes,
    stops_recomputation,
)
from .autocast import Autocast
from .compiler import is_importing_compiler, run_operator, unseen
from .escapes import COPIES, EMPTY, Unwritten, address_of, announcer
from .facts import with_learning, with_pairs
from .functions import (
    Bodies,
    belongs_to_tensor,
    computes,
    is_integral,
    qualified_name,
    unguarded,
    with_callables,
    writes,
)
from .meta import Twins
from .modes import AtenMode, FunctionMode, dispatching, functioning, transformed
from .modules import ModuleObserver
from .phases import BACKWARD, is_comparing
from .placement import Placement
from .plain import PlainFunctions
from .record import Recorder
from .seen import Made
from .spelling import WRITTEN_AS, Spelling, is_meta_kernel
from .stack import ModuleStack, Running
from .tape import Tape, roots_of

QUERY, VIEW, ATTENTION, RNN_BACKWARD, ADDRESS = "query", "view", "attention", "rnn_backward", "data_ptr"


class Observer(ModuleObserver):
    """Watches the calls made in a ``with`` block by the thread that entered it.

    ``modules`` are the modules to tell calls apart by, with their paths. ``ledger`` is told of every tensor that a call
    returns; ``before_write`` of what calls may write to; ``recorder`` of every call. With ``twins``,
    floating tensors are replaced by meta ones (kept there) before each call, so that no kernel computes, and
    ``placement`` hides that they are elsewhere. With ``strays``, operators are seen too that no function call
    announces: those of scripted functions, of C++. With ``facts``, what shapes do not tell is read: the pairs that an
    attention mask leaves. With a ``tape``, calls of the backward pass are told from the forward's, and stand in the
    module whose gradients they compute. ``steps`` are the outermost calls of modules, with those made in them.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        table: Table,
        *,
        ledger: Ledger | None = None,
        before_write: Callable[[Any], None] | None = None,
        twins: Twins | None = None,
        placement: Placement | None = None,
        recorder: Recorder | None = None,
        strays: bool = True,
        facts: bool = True,
        tape: Tape | None = None,
    ) -> None:
        super().__init__(modules, table, ledger, recorder, tape, None if twins is None else twins.forms_of_own)
        self.bodies: Bodies = {}
        self._copies: dict[Any, Any] = {}
        self._spelling = Spelling()
        self._announce = announcer(before_write)
        self._twins = twins
        self._placement = placement
        self._autocast = Autocast(placement.device, twins.is_weight, self._noting) if twins and placement else None
        self._strays = strays
        self._facts = facts
        self._unwritten = Unwritten()

    def _of_thread(self, stack: ModuleStack) -> None:
        super()._of_thread(stack)
        self.mode = FunctionMode(self)
        self.aten = AtenMode(self.operator)
        self._whole = self._noted = False
        self._parts: list[tuple[Any, Made]] = []
        self._entering: set[Any] = set()
        functions = self._table.python_functions
        self._plain_functions = PlainFunctions(functions, self._begin_function, self._end_function)

    def __enter__(self) -> Observer:
        self._attach()
        self.switch_on()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.switch_off(*exception)
        self._detach()
        self.phases.leave()

    def switch_on(self) -> None:
        self._modes = ExitStack()
        for mode in (*([self.aten] if self._strays else []), self.mode, self._plain_functions):
            self._modes.enter_context(mode)  # type: ignore[arg-type]

    def switch_off(self, *exception: Any) -> None:
        self._modes.__exit__(*(exception or (None, None, None)))

    def _begin_leaf(self, module: nn.Module, running: Running, args: Any, kwargs: Any) -> None:
        self._parts.clear()
        if self._unwritten:
            self._check(None, module, args, kwargs)
        if self._recorder is not None and not self._plain_functions.running:
            with DisableTorchFunction():
                running.noted = self._before(args, kwargs)

    def _inside_leaf(self) -> bool:
        return self._plain_functions.running is not None or super()._inside_leaf()

    # What the function mode sees

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the mode, and record it."""
        if is_importing_compiler():
            with unseen():
                return func(*args, **kwargs)
        if self.aten.is_faking():
            return func(*args, **kwargs)
        if transformed():
            return self._transformed(func, args, kwargs)
        given = args, kwargs
        if self._twins is not None and not belongs_to_tensor(func):
            args, kwargs = self._twins.replace(args, kwargs, func)
            if self._placement is not None and (self._tape is None or self._asks_for_it()):
                answer = self._placement.answer(func, args, kwargs)
                if answer is not NotImplemented:
                    return self._answered(func, args, kwargs, answer)
        self._announce(func, args, kwargs)
        if self._inside_leaf():
            return self._run(func, args, kwargs)
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return self._plain(func, args, kwargs)
        entry = self._table.find(func)
        if entry is not None and entry.op == ADDRESS:
            if self._spelling.is_compared(ADDRESS):
                return address_of(args[0])
            if self._twins is not None and args[0].is_meta:
                raise NotImplementedError("on the meta device there is nothing at an address: it needs values")
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args)
        if entry is not None and (entry.reason == QUERY or (entry.reason == ESCAPE and is_integral(args[0]))):
            with self._marked(True, self._noted):
                return func(*args, **kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._entering:
            return self._enter_function(func, args, kwargs)
        with self.lock:
            return self._recorded(func, args, kwargs, given, entry)

    def _recorded(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any, entry: Formula | None
    ) -> Any:
        """Run a function, and record what it, or what it dispatches, computes."""
        if self._twins is not None and not self._strays:
            self._twins.stranger |= is_meta_kernel()
        if self._placement is not None:
            args, kwargs = self._placement.redirect(func, args, kwargs)
        copies = entry is not None and entry.op in COPIES and self._unwritten.holds(given)
        if not copies:
            self._check(entry, func, *given)
        specs, kwspecs, noted = spec_of(args), spec_of(kwargs), self._before(args, kwargs)
        written = self._spelling.of(func) if func in WRITTEN_AS else func
        self._parts.clear()
        start = time.perf_counter()
        try:
            if entry is None:
                out = self._dispatched(func, args, kwargs, specs, kwspecs)
            else:
                with self._marked(True, self._noted):
                    out = self._run(func, args, kwargs)
        except Exception:
            self.failed = self.failed or (qualified_name(func), self._here(), (specs, kwspecs))
            self._stopped(self._here())
            raise
        if entry is not None:
            seconds = time.perf_counter() - start
            made = specs, kwspecs, self._result(entry, given, out)
            self.seen.call(entry, written, made, self._here(), seconds)
            self._owns((out, args))
            if entry.op in EMPTY or copies:
                self._unwritten.add(out)
        if noted is not None and self._recorder is not None:
            self._recorder.function(written, noted, out, self._stack.keys())
        return out

    def _stopped(self, path: str) -> None:
        """A call raised; where checkpoint has stopped what it computes again, the operators that it had run are calls."""
        for func, made in self._parts if stops_recomputation(sys.exc_info()[1]) else ():
            self.seen.call(self._table.find(func), func, made, path, 0.0)
        self._parts.clear()

    def _asks_for_it(self) -> bool:
        """Whether it is the model that asks where a tensor is, with gradients: no backward pass, and not checkpoint."""
        return self.phases.now() != BACKWARD and not is_comparing()

    def raised(self, error: Exception) -> None:
        """Note what raised on meta for want of values: a model that catches it goes on as it would not with its own tensors."""
        if self._twins is not None and "meta" in str(error).lower():
            self._twins.needs_values = self._twins.needs_values or str(error)

    def _check(self, entry: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note as a call that nobody knows when one reads memory that no call seen has written."""
        if (entry is None or entry.reason != VIEW) and self._unwritten.is_read_by(func, args, kwargs):
            self.seen.call(None, "unseen write to torch.empty", (*spec_of((args, kwargs)), None), self._here(), 0.0)

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What computes nothing, but may return a tensor: ``x.T``, ``x.data``."""
        noted = self._before(args, kwargs)
        with self._marked(True, self._noted):
            out = func(*args, **kwargs)
        self._saw(func, args, kwargs, out)
        if noted is not None and self._recorder is not None:
            self._recorder.plain(func, noted, out, self._stack.keys())
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._autocast is not None:
            args, kwargs = self._autocast.cast(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            args, kwargs = with_callables((args, kwargs), self._entered)
            self._unwritten.clear()
            with disable_current_modes():
                out = func(*args, **kwargs)
        else:
            out = self._kernel(func, args, kwargs)
        self._saw(func, args, kwargs, out)
        return self._noting(out)

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run_operator(func, args, kwargs)

    def _saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._twins is not None:
            if writes(func, kwargs):  # x.resize_(3), x.data = y
                self._twins.forget((args, kwargs))
            self._twins.saw(out)

    def _before(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a call as a recorded graph has them, if it is a node of its own there."""
        return None if self._recorder is None or self._noted else self._recorder.before(args, kwargs)

    @contextmanager
    def _marked(self, whole: bool, noted: bool) -> Iterator[None]:
        """Meanwhile what is dispatched is no call of its own (``whole``), or no node of a recorded graph (``noted``)."""
        before = self._whole, self._noted
        self._whole, self._noted = whole, noted
        try:
            yield
        finally:
            self._whole, self._noted = before

    def _answered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
        """What the placement says in a tensor's stead; where it is a tensor (``x.cpu()``), that is a call."""
        entry = self._table.find(func) if isinstance(answer, torch.Tensor) and not self._inside_leaf() else None
        if entry is not None:
            self.seen.call(entry, func, (spec_of(args), spec_of(kwargs), spec_of(answer)), self._here(), 0.0)
        return answer

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any, kwspecs: Any) -> Any:
        """Run a call that has no formula: the operators that it dispatches are the calls."""
        known = len(self.calls)
        with self._marked(self._whole, True), dispatching(self.aten):
            out = self._run(func, args, kwargs)
        if len(self.calls) == known and computes(func, specs, kwspecs, spec_of(out)):
            self.seen.call(None, func, (specs, kwspecs, spec_of(out)), self._here(), 0.0)
        return out

    def _transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call under vmap or its like: what counts is what it dispatches, on whole tensors."""
        entry = self._table.find(func)
        if self._inside_leaf() or (entry is not None and entry.reason == QUERY):
            return func(*args, **kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._entering:
            return self._enter_function(func, args, kwargs)
        with dispatching(self.aten):
            return func(*args, **kwargs)

    def _enter_function(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function so that the calls inside it reach the mode."""
        self._entering.add(func)
        try:
            with FunctionMode(self):
                return unguarded(func, self._copies)(*args, **kwargs)
        finally:
            self._entering.discard(func)

    # What the dispatch mode sees

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator that was dispatched, and record it unless it is part of a call that is."""
        with self.lock, DisableTorchFunction():
            self.phases.recorded(func, args)
            if self._whole or self._inside_leaf():
                out = self._noting(run_operator(func, args, kwargs))
                if current_graph_task_id() != -1:
                    self._parts.append((func, (spec_of(args), spec_of(kwargs), spec_of(out))))
                return out
            given = args, kwargs
            if self._twins is not None:
                args, kwargs = self._twins.replace(args, kwargs, func)
            self._announce(func, args, kwargs)
            entry = self._table.find(func)
            specs, kwspecs = spec_of(args), spec_of(kwargs)
            if entry is not None and entry.op == RNN_BACKWARD:
                specs = with_learning(args, specs)
            self._check(entry, func, *given)
            if entry is None and isinstance(func, OpOverload) and func._can_decompose():
                with dispatching(self.aten):
                    return func.decompose(*args, **kwargs)
            noted = self._before(args, kwargs)
            start = time.perf_counter()
            out = self._run(func, args, kwargs)
            if not isinstance(func, HigherOrderOperator) if entry is None else entry.reason != QUERY:
                seconds = time.perf_counter() - start
                made = specs, kwspecs, self._result(entry, given, out)
                self.seen.call(entry, func, made, self._here(), seconds)
                self._owns((out, args))
            if noted is not None and self._recorder is not None:
                self._recorder.function(func, noted, out, self._stack.keys())
            return out

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within a function that a higher-order operator calls, so that the calls inside it are seen."""
        with self._marked(False, True), EnableTorchFunction(), dispatching(self.aten), functioning(self):
            yield

    def _result(self, entry: Formula | None, given: tuple[tuple[Any, ...], dict[str, Any]], out: Any) -> Any:
        if self._facts and entry is not None and entry.op == ATTENTION:
            return with_pairs(entry, given, out, must=self._twins is not None)
        return spec_of(out)

    def backward(self, out: Any, run: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Run a backward pass, from the sum of the floating outputs, so that what it dispatches is seen.

        Raises InputError where no output has a gradient."""
        self.path = ""
        self._noted = True  # no part of a recorded graph
        roots, ones = roots_of(out if self._twins is None else self._twins.written(out))
        self._noting(ones)
        if self._twins is not None:  # an input among the outputs; newer versions of torch have the function mode do it
            with DisableTorchFunction():
                (roots, ones), _ = self._twins.replace((roots, ones), {}, run)
        with dispatching(self.aten):
            run(roots, ones)

    # What the interpreter of Python tells: plain functions for which the user registered a formula

    def _begin_function(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf():
            return None
        with DisableTorchFunction():
            return spec_of(args), spec_of(kwargs), self._before(args, kwargs), time.perf_counter()

    def _end_function(self, function: FunctionType, begun: Any, value: Any) -> None:
        specs, kwspecs, noted, start = begun
        with DisableTorchFunction():
            entry, seconds = self._table.find(function), time.perf_counter() - start
            self.seen.call(entry, function, (specs, kwspecs, spec_of(value)), self._here(), seconds)
            self._owns(value)
            if noted is not None and self._recorder is not None:
                self._recorder.function(function, noted, value, self._stack.keys())
