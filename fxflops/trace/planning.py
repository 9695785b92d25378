"""The plans of an observer: learned from shape rules and from calls that were made, and used to make equal calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch import empty_strided

from ..meters.live_storages import LiveStorages, Span
from ..model.pytree import tensors_given
from ..ops import ESCAPE, Formula
from ..ops._traits import EMPTY
from ..ops.shapes import rule_for, shape_of
from ..records import EMPTY_MAPPING, Call, Operation, typed
from ..records.pairs import ATTENTIONS, LOOKUP
from ..records.tensors import ORDINARY, spec_of
from ..torch_internals import DisableTorchFunction, assertion
from .device_mirror import DeviceMirror
from .functions import origin_of, writes
from .lookups import with_row
from .meta_mirror import META, OWN, REAL, Form, MetaMirror
from .on_meta import MetaObserver
from .operators import QUERY, RNN_BACKWARD
from .operators import VIEW as VIEWS
from .plans import NEW, NONE, SAME, VIEW, Plan, Unknown, alike, forms_in, specs_given
from .spelling import WRITTEN_AS

META_DEVICE = torch.device("meta")
PART = Operation("part of a call", None, (), EMPTY_MAPPING, None)
"""The operation of plans for operators inside a call."""
LOOKS = (QUERY, ESCAPE)
"""The reasons why a function that reads values or properties computes nothing."""
ASKED = frozenset({*EMPTY, "type"})
"""Operations that the slow path handles in more ways than computing their result."""
VALUED = frozenset({*EMPTY, *ATTENTIONS, RNN_BACKWARD})
"""Operators whose record depends on more than metadata, or that leave memory unwritten."""


class PlanningObserver(MetaObserver):
    """An observer on meta that keeps a plan for each kind of call, and can make a call by its plan."""

    _mirror: MetaMirror
    _storages: LiveStorages
    _device_mirror: DeviceMirror

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plans: dict[Any, Plan] = {}
        self._operations: dict[Any, Operation] = {}

    def _spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor; tensors of one form share their spec."""
        kind, spec = type(value), self._mirror.spec
        if kind in ORDINARY:
            return spec(value)
        if kind is tuple or kind is list:
            return tuple([spec(item) if type(item) in ORDINARY else self._spec(item) for item in value])
        return spec_of(value) if value or kind is not dict else EMPTY_MAPPING

    def _planned(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make and record a call that has a plan."""
        operation = plan.operation
        if func in WRITTEN_AS:
            operation = plan.operation_as(self._spelling.of(func))
        if operation.op == LOOKUP:
            operation = operation._replace(out=with_row(operation.out, args))
        if plan.has_real:
            args, kwargs = self._mirror.replace(args, kwargs, func)
        self._storages.call = len(self.calls)
        if plan.passing:
            self._storages.add_transient(plan.passing)
        if plan.kind is NEW:
            out = self._made(plan)
        elif plan.kind is SAME:
            out = self._mirror.of(args[0])
        elif plan.kind is NONE:
            out = None
        else:
            if plan.names_device:
                args, kwargs = self._device_mirror.redirect(func, args, kwargs)
            out = func(*args, **kwargs)
            self._viewed(plan, out)
        self._called(operation, origin_of(func))
        return out

    def _called(self, operation: Operation, origin: str = "") -> None:
        running = self._stack.running
        path = running[-1].path if running else self.path
        self.calls.append(tuple.__new__(Call, (operation, path, "", "", None, "forward", origin)))

    def _viewed(self, plan: Plan, out: Any) -> None:
        """Register the views that a call returned, with the forms in its plan."""
        for tensor, form in zip((out,) if plan.sequence is None else out, plan.forms, strict=True):
            self._mirror.seen[id(tensor)] = ref(tensor), form

    def _plan_by_rule(
        self, key: Any, op: str, target: Any, args: Any, kwargs: Any, settings: Mapping[str, Any] = EMPTY_MAPPING
    ) -> Plan | None:
        """Plan a call by the shape rule of its target, and keep the plan for this key; None if there is none that applies."""
        rule, given = rule_for(target), forms_in(key)
        if rule is None or all(form.kind is REAL for form in given):  # the call computes values, which no plan has
            return None
        specs, kwspecs = specs_given(key, len(args), kwargs)
        before = tuple.__new__(Operation, (op, target, specs, kwspecs, None, settings))
        lying = [(form.shape, form.stride) for form in given]
        found = shape_of(rule, before, lying, self._device_kernels.device.type)
        if found is None:
            return None
        out, strides, passing = found
        forms = () if strides is None else (self._mirror.form_of(out, strides, out.dtype, META),)
        kind, same = (NEW, forms[0].alike) if forms else (SAME, SAME)
        ran = self._shared_operation((alike(key), same), (*before[:4], out, settings))
        plan = self._plans[key] = Plan(ran, kind, forms, None, given)
        if passing:
            plan.passing = tuple([(spec, spec.nbytes) for spec in passing])
        return plan

    def _shared_operation(self, alike: Any, fields: tuple[Any, ...]) -> Operation:
        """Return the operation; the same object for all calls with the key ``alike``."""
        ran: Operation = self._operations.setdefault(alike, tuple.__new__(Operation, fields))
        return ran

    def _learn(self, key: Any, entry: Formula, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call without a plan, and keep one if the result followed from metadata."""
        if entry.reason == VIEWS and not writes(func, kwargs):
            views = self._learn_views(key, entry, func, args, kwargs)
            if views is not None:
                return views
        given, span = forms_in(key), self._storages.begin()
        if func is assertion and args[0] is True:
            checked = self._plans[key] = Plan(Operation(entry.op, func, args, kwargs, None), NONE, (), None, given)
            return self._planned(checked, func, args, kwargs)
        kinds, view = {form.kind for form in given}, None
        # A free operation on meta tensors needs nothing of the slow path but its kernel.
        if kinds and REAL not in kinds and entry.reason and entry.op not in ASKED and entry.reason not in LOOKS:
            asked, named = self._mirror.replace(args, kwargs, func) if OWN in kinds else (args, kwargs)
            asked, named = self._device_mirror.redirect(func, asked, named)
            with DisableTorchFunction():
                specs, kwspecs = self._spec(asked), self._spec(named)
                self._storages.call = len(self.calls)
                try:
                    out = func(*asked, **named)
                    view = self._view(asked, out)
                    # What makes a tensor may make more on the way, as cartesian_prod makes the grids: they are tracked.
                    if view is None and type(out) is torch.Tensor and not (asked and out is asked[0]):
                        out = self._run_tracked(func, asked, named)
                except Exception:  # the slow path makes the call again, and reports the error
                    out = Unknown
                else:
                    if view is None:
                        self._storages.add_all(out)
                        self._register(func, asked, named, out)
                    target = self._spelling.of(func) if func in WRITTEN_AS else func
                    result = self._spec(out) if view is None else view.spec
                    ran = entry.op, target, specs, kwspecs, result, EMPTY_MAPPING
                    operation = self._shared_operation((alike(key), target, typed(result)), ran)
            if out is Unknown:
                return super().function(func, args, kwargs)
            self._called(operation, origin_of(func))
        else:
            first, scopes = len(self.calls), len(self.scopes)
            out = super().function(func, args, kwargs)
            if len(self.calls) != first + 1 or len(self.scopes) != scopes:
                return out
            operation = self.calls[first].operation
            if operation.target is not func and operation.target is not WRITTEN_AS.get(func):
                return out
        plan: Plan | None
        if view is None:
            plan = self._learnt(key, operation, given, args, kwargs, out, span)
        else:
            self._storages.end(span)
            plan = self._plans[key] = Plan(operation, VIEW, (view,), None, given)
        if plan is not None:
            plan.names_device = func is torch.Tensor.to or "device" in kwargs
        return out

    def _learn_views(self, key: Any, entry: Formula, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that returns views of its first argument, keep a plan for it, and return them; None for any other call."""
        given = forms_in(key)
        if {form.kind for form in given} != {META}:
            return None
        try:
            out = func(*args, **kwargs)
        except Exception:  # the slow path makes the call again, and reports the error
            return None
        sequence = type(out) if type(out) in (tuple, list) else None
        outs = out if sequence is not None else (out,)
        forms = tuple([form for each in outs if (form := self._view(args, each)) is not None])
        if not forms or len(forms) < len(outs):
            return None
        result = forms[0].spec if sequence is None else tuple([form.spec for form in forms])
        specs, kwspecs = specs_given(key, len(args), kwargs)
        operation = self._shared_operation(
            (alike(key), typed(result)), (entry.op, func, specs, kwspecs, result, EMPTY_MAPPING)
        )
        self._plans[key] = Plan(operation, VIEW, forms, sequence, given)
        self._storages.call = len(self.calls)
        self._called(operation, origin_of(func))
        return out

    def _view(self, args: tuple[Any, ...], out: Any) -> Form | None:
        """Return the form of a result that is a view of the first argument, which is on meta; None for any other."""
        base: Any = args[0] if args else None
        if out is base or type(out) is not torch.Tensor or type(base) not in ORDINARY:
            return None
        form = self._mirror.read(out)
        if form is None or base.layout is not torch.strided:
            return None
        if out.untyped_storage()._cdata != base.untyped_storage()._cdata:
            return None
        self._mirror.seen[id(out)] = ref(out), form
        return form

    def _learnt(
        self, key: Any, operation: Operation, given: list[Form], args: Any, kwargs: Any, out: Any, span: Span
    ) -> Plan | None:
        """Keep a plan for a call that was made, if its result followed from metadata; ``span`` began before the call."""
        with DisableTorchFunction():
            left, passing = self._storages.end(span)
            kind, forms, sequence = self._outcome(args, kwargs, out)
            if kind is SAME and self._mirror.read(args[0]) is not given[0]:  # x.unsqueeze_(0) changed its own shape
                return None
            # A call that leaves other bytes behind than its result keeps tensors that a plan would not make.
            made = sum([form.nbytes for form in forms]) if kind is NEW else 0
            if not kind or left != made or operation.op in EMPTY:
                return None
            plan = self._plans[key] = Plan(operation, kind, forms, sequence, given)
            plan.passing = passing
            return plan

    def _outcome(self, args: Any, kwargs: Any, out: Any) -> tuple[str, tuple[Any, ...], Any]:
        """Return kind, forms and sequence type of a plan for a call with this result; kind "" if there can be none."""
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
        # Results that share storages, or begin inside one, cannot be made one by one.
        distinct = len({o.untyped_storage()._cdata for o in outs}) == len(outs)
        if any(shared) or not distinct or any(o.storage_offset() for o in outs):
            return "", (), None
        forms = [self._mirror.form_of_meta(o) for o in outs]  # of an operator inside a call it is not registered yet
        known = tuple(f for f, o in zip(forms, outs, strict=True) if f and f.nbytes == o.untyped_storage().nbytes())
        return (NEW, known, None if single else type(out)) if len(known) == len(outs) else ("", (), None)

    def _made(self, plan: Plan) -> Any:
        """Return new meta tensors of the plan's forms."""
        outs = []
        for form in plan.forms:
            out = empty_strided(form.shape, form.stride, dtype=form.dtype, device=META_DEVICE)
            self._mirror.seen[id(out)] = ref(out), form
            self._storages.enter(out.untyped_storage(), form.nbytes, form.spec)
            if plan.sequence is None:
                return out
            outs.append(out)
        return plan.sequence(outs)

    def _learn_operator(self, key: Any, is_call: bool, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator without a plan, and keep one: of a call (``is_call``), or of an operator inside a call."""
        given, span, first = forms_in(key), self._storages.begin(), len(self.calls)
        out = super().operator(func, args, kwargs)
        entry = self._registry.find(func)
        if entry is not None and given and entry.op not in VALUED and len(self.calls) == first + is_call:
            self._learnt(key, self.calls[first].operation if is_call else PART, given, args, kwargs, out, span)
        return out
