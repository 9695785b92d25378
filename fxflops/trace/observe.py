"""The observer: sees every call that a model makes as it runs, and yields Calls and Scopes.

It is a ``TorchFunctionMode`` together with hooks on this model's modules. A module with a formula (a leaf) is one Call;
so is a function or method with one. A Python function without is entered; what is left is recorded as it is, and found
missing when it comes to counting.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType, MethodWrapperType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode

from ..meter import Ledger
from ..ops import Formula, Table
from ..ops._registry import is_method
from ..records import Call, Scope, spec_of
from .meta import Twins, to_meta

QUERY = "query"


class Observer:
    """Watches the calls made in a ``with`` block by the thread that entered it.

    ``modules`` are the modules to tell calls apart by, with their paths. ``ledger`` is told of every tensor that a call
    returns; ``before_write`` of the arguments of calls that write in place. With ``twins``, floating tensors are
    replaced by meta ones (kept there) before each call, so that no kernel computes.
    """

    def __init__(
        self,
        modules: Mapping[nn.Module, str],
        table: Table,
        *,
        ledger: Ledger | None = None,
        before_write: Callable[[Any], None] | None = None,
        twins: Twins | None = None,
    ) -> None:
        self.calls: list[Call] = []
        self.scopes: list[Scope] = []
        self.path = ""
        self.node = ""
        self.peak_at = ""
        self.failed: tuple[str, str, Any] | None = None
        self._modules = modules
        self._table = table
        self._leaves = {m: (entry, settings_of(m)) for m in modules if (entry := leaf_formula(m, table)) is not None}
        self._ledger = ledger
        self._before_write = before_write
        self._twins = twins
        self._thread = threading.get_ident()
        self._key = _HookKey()
        self._mode = _Mode(self)
        self._stack: list[tuple[nn.Module, str, float, BaseException | None]] = []
        self._leaf_depth = 0
        self._entering: set[Any] = set()
        self._watched: tuple[FrameType, FunctionType, tuple[Any, ...], dict[str, Any], float] | None = None

    def __enter__(self) -> Observer:
        for module in self._modules:
            module._forward_pre_hooks[self._key] = self._enter_module  # type: ignore[index]
            module._forward_hooks[self._key] = self._leave_module  # type: ignore[index]
            module._forward_hooks_with_kwargs[self._key] = True  # type: ignore[index]
            module._forward_hooks_always_called[self._key] = True  # type: ignore[index]
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        if self._table.python_functions:
            self._profiler: Any = sys.getprofile()
            sys.setprofile(self._watch)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._table.python_functions:
            sys.setprofile(None)
            if hasattr(self._profiler, "enable"):  # one written in C, as cProfile's
                self._profiler.enable()
            else:
                sys.setprofile(self._profiler)
        self._mode.__exit__(*exception)  # type: ignore[no-untyped-call]
        for module in self._modules:
            for hooks in (
                module._forward_pre_hooks,
                module._forward_hooks,
                module._forward_hooks_with_kwargs,
                module._forward_hooks_always_called,
            ):
                hooks.pop(self._key, None)  # type: ignore[call-overload]

    # What the mode sees

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one function call that reached the mode, and record it."""
        if self._twins is not None and getattr(func, "__name__", "") != "__set__":
            args, kwargs = to_meta(args, kwargs, self._twins)
        if type(func) is MethodWrapperType or isinstance(func, type):  # a property of a tensor; torch.device(...)
            return func(*args, **kwargs)
        if self._inside_leaf():
            return self._run(func, args, kwargs)
        entry = self._table.find(func)
        if entry is not None and entry.reason == QUERY:
            return func(*args, **kwargs)
        if entry is None and isinstance(func, FunctionType) and func not in self._entering:
            return self._enter_function(func, args, kwargs)
        specs, kwspecs = spec_of(args), spec_of(kwargs)
        start = time.perf_counter()
        try:
            out = self._run(func, args, kwargs)
        except Exception:
            self.failed = (qualified_name(func), self._here(), (specs, kwspecs))
            raise
        seconds = time.perf_counter() - start
        self._record(entry, func, specs, kwspecs, spec_of(out), self._here(), seconds)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._before_write is not None and writes(func, kwargs):
            self._before_write((args, kwargs))
        out = func(*args, **kwargs)
        if self._ledger is not None:
            peak = self._ledger.peak
            self._ledger.add_all(out)
            if self._ledger.peak > peak:
                self.peak_at = self._here()
        return out

    def _enter_function(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Python function so that the calls inside it reach the mode."""
        self._entering.add(func)
        try:
            with _Mode(self):
                return _unguarded(func)(*args, **kwargs)
        finally:
            self._entering.discard(func)

    def _record(
        self,
        entry: Formula | None,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        path: str,
        seconds: float,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            # Under vmap and its like a tensor hides a dimension: what its shape says is not what is computed.
            entry, target = None, f"functorch.{entry.op if entry is not None else qualified_name(target)}"
        op = entry.op if entry is not None else qualified_name(target)
        site = author_line() if entry is None else ""
        self.calls.append(Call(op, target, args, kwargs, out, path, settings or {}, self.node, site, seconds))

    def _here(self) -> str:
        return self._stack[-1][1] if self._stack else self.path

    def _inside_leaf(self) -> bool:
        return self._watched is not None or (0 < self._leaf_depth <= len(self._stack))

    # What the hooks see

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._stack.append((module, self._modules[module], time.perf_counter(), sys.exc_info()[1]))
        if (module in self._leaves or isinstance(module, torch.jit.ScriptModule)) and not 0 < self._leaf_depth < len(
            self._stack
        ):
            self._leaf_depth = len(self._stack)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        end = time.perf_counter()
        while self._stack and self._stack[-1][0] is not module:  # a hook of the user's may have raised in between
            self._stack.pop()
        _, path, start, handled = self._stack.pop()
        inside = 0 < self._leaf_depth <= len(self._stack)
        if not inside:
            self._leaf_depth = 0
        raised = sys.exc_info()[1] is not handled
        if inside or self._watched is not None:
            return
        with torch._C.DisableTorchFunction():
            specs, kwspecs, out = spec_of(args), spec_of(kwargs), spec_of(out)
            if raised:
                self.failed = self.failed or (type(module).__qualname__, path, (specs, kwspecs))
                return
            own = {name: spec_of(p) for name, p in module._parameters.items() if p is not None}
            self.scopes.append(Scope(path, type(module), own, specs, kwspecs, out, bool(module._modules)))
            if module in self._leaves:
                entry, settings = self._leaves[module]
                self._record(entry, type(module), specs, kwspecs, out, path, end - start, settings)
            elif isinstance(module, torch.jit.ScriptModule):
                # What TorchScript runs is hardly seen from Python: the whole module is one call that nobody knows.
                self._record(None, type(module), specs, kwspecs, out, path, end - start)

    # What the interpreter of Python tells: plain functions for which the user registered a formula

    def _watch(self, frame: FrameType, event: str, value: Any) -> None:
        function = self._table.python_functions.get(frame.f_code)
        if function is None:
            return
        if event == "call" and not self._inside_leaf():
            with torch._C.DisableTorchFunction():
                args, kwargs = _arguments(frame)
                self._watched = (frame, function, spec_of(args), spec_of(kwargs), time.perf_counter())
        elif event == "return" and self._watched is not None and self._watched[0] is frame:
            _, function, specs, kwspecs, start = self._watched
            self._watched = None
            with torch._C.DisableTorchFunction():
                entry, seconds = self._table.find(function), time.perf_counter() - start
                self._record(entry, function, specs, kwspecs, spec_of(value), self._here(), seconds)


class _Mode(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observer.function(func, args, kwargs or {})


class _HookKey:
    """The key of an observer's hooks in a module's hook dicts, where the user's have numbers."""


def leaf_formula(module: nn.Module, table: Table) -> Formula | None:
    """The formula that counts a call of this module as a whole; None where the calls inside it are to be counted.

    There must be a formula for the class whose ``forward`` it runs; the forward must not be replaced on the instance,
    nor the weights computed (parametrizations, hooks), for then more happens than the formula knows.
    """
    entry = table.find_module(module)
    if entry is None or "forward" in vars(module) or hasattr(module, "parametrizations"):
        return None
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        nn_module._global_forward_hooks,
        nn_module._global_forward_pre_hooks,
    )
    if any(not isinstance(key, _HookKey) for registered in hooks for key in registered):
        return None
    return entry


def settings_of(module: nn.Module) -> dict[str, Any]:
    """A module's plain attributes, and specs of its own parameters and buffers (None where it has none)."""
    plain = (bool, int, float, str, tuple, list, type(None))
    settings = {name: value for name, value in vars(module).items() if name[0] != "_" and isinstance(value, plain)}
    settings.update(spec_of({**module._parameters, **module._buffers}))
    return settings


def qualified_name(func: Any) -> str:
    """How a function is named where no formula gives a name: ``mylib::scan``, ``torch.foo``, ``Tensor.bar``."""
    if isinstance(func, OpOverload):
        return str(func.name())
    if isinstance(func, OpOverloadPacket):
        return str(func._qualified_op_name)
    if isinstance(func, str):
        return func
    name = getattr(func, "__name__", None) or type(func).__name__
    if is_method(func):
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    return f"{module}.{name}"


def writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may write to its arguments: in-place names, item assignment, ``out=``."""
    name = getattr(func, "__name__", "").partition(".")[0]
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place
        or name in ("__setitem__", "__set__")
        or name.startswith("__i")
        or "out" in kwargs
        or "inplace" in kwargs
    )


def author_line() -> str:
    """``file:line`` of the innermost frame that belongs to neither torch nor this library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_library(filename: str) -> bool:
    """Whether a file is torch's or this library's own, or no file at all."""
    return filename.startswith("<") or any(filename.startswith(root) for root in _ROOTS)


_ROOTS = tuple(str(m.__file__).rpartition("/")[0] + "/" for m in (torch, sys.modules[__package__.partition(".")[0]]))


def _unguarded(func: FunctionType) -> FunctionType:
    """A copy of a Python function that does not hand itself over to the mode."""
    copy = _COPIES.get(func)
    if copy is None:
        guards = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
        names = {**func.__globals__, **{name: _never for name in guards if name in func.__globals__}}
        copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
        copy.__kwdefaults__ = func.__kwdefaults__
        _COPIES[func] = copy
    return copy


_COPIES: dict[FunctionType, FunctionType] = {}


def _never(*_: Any) -> bool:
    return False


def _arguments(frame: FrameType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which the function of a frame was just called."""
    code, local = frame.f_code, frame.f_locals
    names = code.co_varnames
    args = [local[name] for name in names[: code.co_argcount]]
    stop = code.co_argcount + code.co_kwonlyargcount
    kwargs = {name: local[name] for name in names[code.co_argcount : stop]}
    if code.co_flags & 4:  # *args
        args.extend(local[names[stop]])
        stop += 1
    if code.co_flags & 8:  # **kwargs
        kwargs.update(local[names[stop]])
    return tuple(args), kwargs
