"""The fast path of counting on meta: where a shape rule tells what a call puts out, or an equal call of the same run did, no
kernel is asked, and a leaf's forward does not run.

What a call puts out on meta follows from its function, the forms of its tensors (:class:`~.meta_mirror.Form`) and its plain
arguments; a leaf module's from its class and settings too. Whatever is not of this kind (values, gradients, autocast,
transforms, several results on one storage) goes the observer's own way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages, Span
from ..model.pytree import tensors_given
from ..ops import ESCAPE, Formula
from ..ops._rules import Rule
from ..ops._traits import EMPTY, METADATA
from ..ops.shapes import rule_for, shape_of
from ..records import NOTHING, ORDINARY, Call, Operation, Scope, spec_of, typed
from ..torch_internals import DisableTorchFunction, assertion, current_graph_task_id, is_any_autocast_enabled
from .device_mirror import DeviceMirror
from .forwards import Forward, is_plain, is_torchs
from .leaves import ModuleSettings, holds_tensors
from .meta_mirror import OWN, REAL, Form, MetaMirror
from .modes import transformed
from .observe import ATTENTION, QUERY, RNN_BACKWARD
from .on_meta import MetaObserver
from .plans import NEW, NONE, SAME, VIEW, Plan, Unknown, alike, call_key, forms_in
from .spelling import WRITTEN_AS

META_DEVICE = torch.device("meta")
PROPERTIES = ("shape", "ndim", "dtype", "layout", "requires_grad", "is_nested")
QUERIES = METADATA | {getattr(torch.Tensor, name).__get__ for name in PROPERTIES}
"""What a real tensor answers as its twin does."""
PART = Operation("part of a call", None, (), NOTHING, None)
LOOKS = (QUERY, ESCAPE)
ASKED = frozenset({*EMPTY, "type"})
"""Operations of which the observer tells more than what they put out."""
VALUED = frozenset({*EMPTY, ATTENTION, RNN_BACKWARD})
"""Operators of which more is recorded than follows from forms, or that leave memory unwritten."""


class FastObserver(MetaObserver):
    """The observer of ``count()``: it asks no kernel where it need not."""

    _mirror: MetaMirror
    _storages: LiveStorages
    _device_mirror: DeviceMirror

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plans: dict[Any, Plan] = {}
        self._operations: dict[Any, Operation] = {}
        self._dtype = torch.get_default_dtype()
        self._forwards: list[Forward] = []

    def _attach(self) -> None:
        others, leaf, entered = [], self._leaf, self._entered_module
        for module in self._modules:
            if self._leaves[module] is not None:
                self._forwards.append(Forward(module, leaf))
            elif is_plain(module):
                self._forwards.append(Forward(module, entered))
            else:
                others.append(module)
        self._hooks.attach(others, self._enter_module, self._leave_module)

    def _detach(self) -> None:
        super()._detach()
        for forward in self._forwards:
            forward.leave()

    # Functions

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in QUERIES:
            return func(*args, **kwargs)
        if self._owners is None and func in self._device_mirror.answers and not transformed():
            return self._device_mirror.answers[func]
        if not self._tells_all() or (self._facts and self._attends(func)):
            return super().function(func, args, kwargs)
        try:
            key = call_key((func,), args, kwargs, self._mirror.form)
            plan = self._plans.get(key)
        except (Unknown, TypeError):
            return super().function(func, args, kwargs)
        if plan is None:
            entry = self._registry.find(func)
            if entry is None:  # of a function that calls others it tells nothing
                return super().function(func, args, kwargs)
            with self.lock:
                plan = self._by_rule(key, entry, func, args, kwargs)
                if plan is None:
                    return self._learn(key, entry, func, args, kwargs)
        with self.lock:
            return self._planned(plan, func, args, kwargs)

    def _spec(self, value: Any) -> Any:
        """The value with a spec in place of each tensor: the same for all of one form."""
        kind, spec = type(value), self._mirror.spec
        if kind in ORDINARY:
            return spec(value)
        if kind is tuple or kind is list:
            return tuple([spec(item) if type(item) in ORDINARY else self._spec(item) for item in value])
        return spec_of(value) if value or kind is not dict else NOTHING

    def _planned(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call as planned."""
        operation = plan.operation
        if func in WRITTEN_AS:
            operation = plan.operation_as(self._spelling.of(func))
        if plan.beside:
            args, kwargs = self._mirror.replace(args, kwargs, func)
        self._storages.call = len(self.calls)
        if plan.passing:
            self._storages.pass_by(plan.passing)
        if plan.kind is NEW:
            out = self._made(plan)
        elif plan.kind is SAME:
            out = self._mirror.of(args[0])
        elif plan.kind is NONE:
            out = None
        else:
            if plan.moves:
                args, kwargs = self._device_mirror.redirect(func, args, kwargs)
            out = func(*args, **kwargs)
            self._viewed(plan, out)
        self._called(operation)
        return out

    def _called(self, operation: Operation) -> None:
        running = self._stack.running
        path = running[-1].path if running else self.path
        self.calls.append(tuple.__new__(Call, (operation, path, "", "", None, "forward")))

    def _viewed(self, plan: Plan, out: Any) -> None:
        """Know views of tensors, which lie as those did from which the plan was learnt."""
        for tensor, form in zip((out,) if plan.sequence is None else out, plan.forms, strict=True):
            self._mirror.seen[id(tensor)] = weakref.ref(tensor), form

    def _by_rule(
        self, key: Any, entry: Formula, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan | None:
        """The plan of a call whose shape rule tells what it puts out."""
        rule = rule_for(func)
        return None if rule is None else self._keep_rule(key, rule, entry.op, func, args, kwargs)

    def _keep_rule(
        self, key: Any, rule: Rule, op: str, target: Any, args: Any, kwargs: Any, settings: Mapping[str, Any] = NOTHING
    ) -> Plan | None:
        """The plan of a call whose shape rule tells what it puts out, kept for the next of this key."""
        given = forms_in(key)
        if all(form.kind is REAL for form in given):
            return None
        with DisableTorchFunction():
            asked = tuple.__new__(Operation, (op, target, self._spec(args), self._spec(kwargs), None, settings))
        found = shape_of(rule, asked, [(form.shape, form.stride) for form in given])
        if found is None:
            return None
        out, strides, passing = found
        kind, forms = (SAME, ()) if strides is None else (NEW, (self._mirror.form_of(tuple(out), strides, out.dtype),))
        same = forms[0].alike if forms else SAME
        ran = self._ran((alike(key), same), (*asked[:4], out, settings))
        plan = self._plans[key] = Plan(ran, kind, forms, None, given)
        plan.passing = tuple([(spec, spec.nbytes) for spec in passing])
        return plan

    def _ran(self, alike: Any, asked: tuple[Any, ...]) -> Operation:
        """What ran: the same object for all that are alike."""
        ran: Operation = self._operations.setdefault(alike, tuple.__new__(Operation, asked))
        return ran

    def _learn(self, key: Any, entry: Formula, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and keep how its result came about if its metadata told all."""
        given, span = forms_in(key), self._storages.begin()
        if func is assertion and args[0] is True:
            checked = self._plans[key] = Plan(Operation(entry.op, func, args, kwargs, None), NONE, (), None, given)
            return self._planned(checked, func, args, kwargs)
        kinds = {form.kind for form in given}
        if kinds and REAL not in kinds and entry.reason and entry.op not in ASKED and entry.reason not in LOOKS:
            asked, named = self._mirror.replace(args, kwargs, func) if OWN in kinds else (args, kwargs)
            asked, named = self._device_mirror.redirect(func, asked, named)
            with DisableTorchFunction():
                specs, kwspecs = self._spec(asked), self._spec(named)
                self._storages.call = len(self.calls)
                try:
                    out = func(*asked, **named)
                except Exception:  # it is made again where the error is told
                    out = Unknown
                else:
                    self._storages.add_all(out)
                    self._saw(func, asked, named, out)
                    target, result = self._spelling.of(func) if func in WRITTEN_AS else func, self._spec(out)
                    ran = entry.op, target, specs, kwspecs, result, NOTHING
                    operation = self._ran((alike(key), target, typed(result)), ran)
            if out is Unknown:
                return super().function(func, args, kwargs)
            self._called(operation)
        else:
            first, scopes = len(self.calls), len(self.scopes)
            out = super().function(func, args, kwargs)
            if len(self.calls) != first + 1 or len(self.scopes) != scopes:
                return out
            operation = self.calls[first].operation
            if operation.target is not func and operation.target is not WRITTEN_AS.get(func):
                return out
        plan = self._learnt(key, operation, given, args, kwargs, out, span)
        if plan is not None:
            plan.moves = func is torch.Tensor.to or "device" in kwargs
        return out

    def _learnt(
        self, key: Any, operation: Operation, given: list[Form], args: Any, kwargs: Any, out: Any, span: Span
    ) -> Plan | None:
        """The plan of a call that was made, if its metadata told all. ``span`` began with it."""
        with DisableTorchFunction():
            left, passing = self._storages.end(span)
            kind, forms, sequence = self._outcome(args, kwargs, out)
            if kind is SAME and self._mirror.read(args[0]) is not given[0]:  # x.unsqueeze_(0)
                return None
            made = sum([form.nbytes for form in forms]) if kind is NEW else 0
            if not kind or left != made or operation.op in EMPTY:
                return None
            plan = self._plans[key] = Plan(operation, kind, forms, sequence, given)
            plan.passing = passing
            return plan

    def _outcome(self, args: Any, kwargs: Any, out: Any) -> tuple[str, tuple[Any, ...], Any]:
        """How a result comes about; "" where it cannot be told."""
        single = isinstance(out, torch.Tensor)
        outs = [out] if single else list(out) if type(out) in (tuple, list) else []
        if not outs or not all(type(o) in ORDINARY and o.is_meta and o.layout is torch.strided for o in outs):
            return "", (), None
        if single and args and out is args[0]:
            return SAME, (), None
        given = {self._mirror.of(t).untyped_storage()._cdata for t in tensors_given((args, kwargs))}
        shared = [o.untyped_storage()._cdata in given for o in outs]
        if all(shared):
            return VIEW, tuple(map(self._mirror.form, outs)), None if single else type(out)
        distinct = len({o.untyped_storage()._cdata for o in outs}) == len(outs)
        if any(shared) or not distinct or any(o.storage_offset() for o in outs):
            return "", (), None
        forms = [self._mirror.form(o) for o in outs]
        known = tuple(f for f, o in zip(forms, outs, strict=True) if f and f.nbytes == o.untyped_storage().nbytes())
        return (NEW, known, None if single else type(out)) if len(known) == len(outs) else ("", (), None)

    def _made(self, plan: Plan) -> Any:
        """Empty tensors of the plan's forms."""
        outs = []
        for form in plan.forms:
            out = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=META_DEVICE)
            self._mirror.seen[id(out)] = weakref.ref(out), form
            self._storages.enter(out.untyped_storage(), form.nbytes, form.spec)
            outs.append(out)
        return outs[0] if plan.sequence is None else plan.sequence(outs)

    # Operators, of which the dispatch mode hears: those of the backward pass, and those inside of other calls

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with DisableTorchFunction():
            try:
                if self._unwritten.storages or transformed():
                    raise Unknown
                key = call_key((func,), args, kwargs, self._mirror.form_of_meta)
                plan = self._plans.get(key)
            except (Unknown, TypeError):
                return super().operator(func, args, kwargs)
            is_call = not (self._whole or self._inside_leaf())
            if not is_call and current_graph_task_id() != -1:
                return super().operator(func, args, kwargs)
            if plan is None or (is_call and plan.operation is PART):
                return self._learn_operator(key, is_call, func, args, kwargs)
            self._storages.call = len(self.calls)
            if plan.kind is NEW:
                out = self._made(plan)
            else:  # of a tensor that something unseen may have made
                out = self._noting(args[0] if plan.kind is SAME else func(*args, **kwargs))
            if is_call:
                phase, path = self.seen.placed(self._here())
                self.calls.append(Call(plan.operation, path, phase=phase))
                self._owns((out, args))
            return out

    def _learn_operator(self, key: Any, is_call: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and keep how its result came about: as a call, or as a part of one."""
        given, span, first = forms_in(key), self._storages.begin(), len(self.calls)
        out = super().operator(func, args, kwargs)
        entry = self._registry.find(func)
        if entry is not None and given and entry.op not in VALUED and len(self.calls) == first + is_call:
            self._learnt(key, self.calls[first].operation if is_call else PART, given, args, kwargs, out, span)
        return out

    # Modules

    def _entered_module(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What stands for the ``forward`` of a module while it is observed."""
        module, out = forward.module, None
        self._enter_module(module, args, kwargs)
        try:
            out = forward.__wrapped__(*args, **kwargs)
        finally:
            self._leave_module(module, args, kwargs, out)
        return out

    def _leaf(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same of a leaf."""
        if threading.get_ident() != self._thread:
            return self._entered_module(forward, args, kwargs)
        module, key = forward.module, None
        with self.lock, DisableTorchFunction():
            if not module._modules and self._tells_all():
                known = self._settings.of(module)
                try:
                    key = call_key((type(module), known), args, kwargs, self._mirror.form)
                    plan = self._plans.get(key) or self._leaf_by_rule(key, module, known, args, kwargs)
                except Unknown:
                    key = plan = None
                if plan is not None:
                    return self._leaf_planned(plan, module, known, args, kwargs)
        span, calls, scopes = self._storages.begin(), len(self.calls), len(self.scopes)
        out = self._entered_module(forward, args, kwargs)
        alone = (len(self.calls), len(self.scopes)) == (calls + 1, scopes + 1)
        if key is not None and alone and is_torchs(type(module)):
            self._learnt(key, self.calls[-1].operation, forms_in(key), args, kwargs, out, span)
        return out

    def _leaf_by_rule(
        self, key: Any, module: nn.Module, known: ModuleSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan | None:
        """The plan of a leaf whose shape rule tells what it puts out."""
        entry, cls = self._leaves[module], type(module)
        rule = rule_for(cls) if known.contiguous and not holds_tensors(module) else None
        if rule is None or entry is None:
            return None
        return self._keep_rule(key, rule, entry.op, cls, args, kwargs, known.settings)

    def _leaf_planned(
        self, plan: Plan, module: nn.Module, known: ModuleSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        first = self._storages.call = len(self.calls)
        if plan.beside:
            mirrored = self._mirror.replace(args, kwargs, None)
        if plan.passing:
            self._storages.pass_by(plan.passing)
        if plan.kind is NEW:
            out = self._made(plan)
        elif plan.kind is SAME:
            out = args[0]
        else:
            args, kwargs = mirrored if plan.beside else (args, kwargs)
            out = type(module).forward(module, *args, **kwargs)
            self._viewed(plan, out)
        path, operation = self._modules[module], plan.operation
        self.calls.append(tuple.__new__(Call, (operation, path, "", "", None, "forward")))
        self.scopes.append(tuple.__new__(Scope, (path, operation, known.params, False)))
        if not self._stack.running:
            self.steps.append((path, range(first, first + 1)))
        return out

    def _tells_all(self) -> bool:
        """Whether metadata tells all: no call is part of another, nothing was left empty on purpose, no transform, no autocast,
        no gradients."""
        if self._autocast is not None and self._autocast.kept:
            self._autocast.forget()
        if self._dtype is not torch.get_default_dtype():
            self._dtype = torch.get_default_dtype()
            self._plans.clear()
        return not (
            self._stack.leaf_depth
            or self._observe_dispatch  # what is made here would be heard of there
            or self._threads.beside
            or self._plain_functions.running
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or torch.is_grad_enabled()
            or transformed()
        )

    def _attends(self, func: Any) -> bool:
        """Whether a function is attention, of whose mask the values may be asked for."""
        entry = self._registry.find(func)
        return entry is not None and entry.op == ATTENTION
