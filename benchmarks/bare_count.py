"""A bare engine on meta: how long a count takes without most of the code that makes fxflops right for every model.

The engine has leaf modules, fxflops's shape rules and formulas, one empty tensor per call, live storages and sums by module. It
copies all attributes and compares them afterwards. It does not handle locks, threads, autocast, gradients, devices, tensors with
values, hooks, phases, scopes, uninitialized memory, random generators, conventions or reports. It is not a counter: calls without
a shape rule run but are not counted. ``first_count.py`` compares its time with fxflops's.
"""

from __future__ import annotations

import operator
import time
import weakref
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fxflops.ops import BASE, apply
from fxflops.ops.shapes import rule_for, shape_of
from fxflops.records import EMPTY_MAPPING, Operation
from fxflops.torch_internals import DisableTorchFunction
from fxflops.trace.forms import META, Form
from fxflops.trace.memo import forms_in

STAND_IN = "_compiled_call_impl"
ON_META = torch.device("meta")
ORDINARY = {torch.Tensor, nn.Parameter}


class Living(weakref.ref[Any]):
    """A weak reference to a live storage, with the storage's size in bytes."""

    __slots__ = ("nbytes",)
    nbytes: int


class BareEngine(TorchFunctionMode):
    """Runs a model and records its calls, each with a plan and a module path. A plan is the form of the result and the FLOPs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[tuple[tuple[Form | None, int], str]] = []
        self.paths: dict[nn.Module, str] = {}
        self._plans: dict[Any, tuple[Form | None, int] | None] = {}
        self._forms: dict[Any, Form] = {}
        self._own: dict[int, Form] = {}
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], Form]] = {}
        self._readers: dict[tuple[str, ...], Any] = {}
        self._copies: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._living: dict[int, Living] = {}
        self._changes: list[int] = []
        self._stack = [""]
        self._visit(model, "")
        self.live = self.peak = sum(form.nbytes for form in self._own.values())

    def _visit(self, module: nn.Module, path: str) -> None:
        """Copy the attributes of a module and its submodules, and read the forms of their tensors."""
        self.paths[module] = path
        held = module.__dict__
        for each in (held, held["_parameters"], held["_buffers"], held["_modules"]):
            if each:
                self._copies.append((each, each.copy()))
        for tensor in (*held["_parameters"].values(), *held["_buffers"].values()):
            if tensor is not None:
                self._own[id(tensor)] = self._read(tensor.shape, tensor.stride(), tensor.dtype)
        for name, child in held["_modules"].items():
            if child is not None and child not in self.paths:
                self._visit(child, f"{path}.{name}" if path else name)

    def _read(self, shape: Any, stride: Any, dtype: Any) -> Form:
        key = shape, stride, dtype
        return self._forms.get(key) or self._forms.setdefault(key, Form(shape, stride, dtype, META))

    def _form(self, tensor: torch.Tensor) -> Form:
        seen = self._seen.get(id(tensor))
        if seen is not None and seen[0]() is tensor:
            return seen[1]
        return self._own.get(id(tensor)) or self._read(tensor.shape, tensor.stride(), tensor.dtype)

    def _key(self, value: Any) -> Any:
        kind = type(value)
        if kind in ORDINARY:
            return self._form(value)
        if kind is tuple or kind is list:
            return kind, *[self._key(item) for item in value]
        return value if kind is int or kind is str else (kind, str(value) if kind is slice else value)

    def _spec(self, value: Any) -> Any:
        if type(value) in ORDINARY:
            return self._form(value).spec
        return tuple(map(self._spec, value)) if type(value) in (tuple, list) else value

    def attach(self) -> None:
        """Send calls of the modules to this engine."""
        for module in self.paths:
            run = self._leaf if rule_for(type(module)) is not None else self._inner
            module.__dict__[STAND_IN] = partial(run, module)

    def detach(self) -> None:
        """Undo :meth:`attach`, and restore every attribute that the run replaced."""
        for module in self.paths:
            del module.__dict__[STAND_IN]
        for held, copy in self._copies:
            if held.keys() != copy.keys() or not all(map(operator.is_, held.values(), copy.values())):
                held.update(copy)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        named = kwargs or {}
        key = func, *map(self._key, args), *named, *map(self._key, named.values())
        if key not in self._plans:
            specs, kwspecs = tuple(map(self._spec, args)), {name: self._spec(value) for name, value in named.items()}
            self._plans[key] = self._plan(key, func, BASE.find(func), specs, kwspecs)
        plan = self._plans[key]
        return func(*args, **named) if plan is None else self._made(plan, args)

    def _leaf(self, module: nn.Module, /, *args: Any) -> Any:
        held, cls = module.__dict__, type(module)
        names = tuple(held)
        if names not in self._readers:
            public = [name for name in names if name[0] != "_"]
            self._readers[names] = public, operator.itemgetter(*public, "training")
        public, read = self._readers[names]
        tensors = *held["_parameters"].items(), *held["_buffers"].items()
        values = read(held)
        key = cls, values, *[self._own.get(id(tensor)) for _, tensor in tensors], *map(self._key, args)
        if key not in self._plans:
            settings = {**dict(zip(public, values, strict=False)), **{name: self._spec(t) for name, t in tensors}}
            specs = tuple(map(self._spec, args))
            self._plans[key] = self._plan(key, cls, BASE.find_class(cls)[1], specs, {}, settings)
        plan = self._plans[key]
        if plan is None:
            return self._inner(module, *args)
        self._stack.append(self.paths[module])
        with DisableTorchFunction():
            out = self._made(plan, args)
        self._stack.pop()
        return out

    def _inner(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        self._stack.append(self.paths[module])
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            self._stack.pop()

    def _plan(
        self, key: Any, target: Any, entry: Any, args: Any, kwargs: Any, settings: Any = EMPTY_MAPPING
    ) -> tuple[Form | None, int] | None:
        """Return the plan of a call, from its shape rule and formula; None if no rule applies."""
        rule = rule_for(target)
        if rule is None or entry is None:
            return None
        before = Operation(entry.op, target, args, kwargs, None, settings)
        found = shape_of(rule, before, [(part.shape, part.stride) for part in forms_in(key)], "cpu")
        if found is None:
            return None
        out, strides, _ = found
        flops = apply(entry, before._replace(out=out)).flops
        return None if strides is None else self._read(out, strides, out.dtype), flops

    def _made(self, plan: tuple[Form | None, int], args: Any) -> Any:
        self.calls.append((plan, self._stack[-1]))
        form = plan[0]
        if form is None:
            return args[0]
        out = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=ON_META)
        self._seen[id(out)] = weakref.ref(out), form
        storage = out.untyped_storage()
        self._living[id(storage)] = living = Living(storage, self._leave)
        living.nbytes = form.nbytes
        self.live += form.nbytes
        self._changes += (len(self.calls), form.nbytes)
        self.peak = max(self.peak, self.live)
        return out

    def _leave(self, living: Living) -> None:
        self.live -= living.nbytes
        self._changes += (len(self.calls), -living.nbytes)

    def by_module(self) -> dict[str, int]:
        """Return the FLOPs of each module including its submodules, by path."""
        found: dict[str, int] = {}
        for (_, flops), path in self.calls:
            found[path] = found.get(path, 0) + flops
        for path in reversed([*filter(None, self.paths.values())]):
            above = path.rpartition(".")[0]
            found[above] = found.get(above, 0) + found.get(path, 0)
        return found


def bare_count(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Count a model with a bare engine. Return the milliseconds of each stage."""
    at = [time.thread_time()]
    engine = BareEngine(model)
    at.append(time.thread_time())
    try:
        engine.attach()
        with engine:
            model(x)
    finally:
        engine.detach()
    at.append(time.thread_time())
    engine.by_module()
    at.append(time.thread_time())
    walk, run, rows = (1e3 * (end - start) for start, end in pairwise(at))
    return {"walk, copies and forms": walk, "run, and comparison": run, "sums by module": rows}
