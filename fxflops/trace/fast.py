"""The fast path of counting on meta: results come from shape rules, or from equal calls earlier in the run.

No meta kernel runs for such a call, and no ``forward`` of a leaf module. The result must follow from the function, the
metadata of its tensors (:class:`~.meta_mirror.Form`) and its plain arguments; for a leaf, also from its class and
settings. All other calls (values, gradients, autocast, functorch transforms, results that share a storage) take the
slow path of :class:`~.observe.Observer`.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import get_default_dtype, is_grad_enabled, nn

from ..ops._traits import METADATA
from ..records import Call, Scope, Step, typed
from ..records.pairs import ATTENTIONS, LOOKUP
from ..torch_internals import (
    DisableTorchFunction,
    current_graph_task_id,
    is_any_autocast_enabled,
)
from .forwards import StandIns, is_hooked, is_torchs
from .leaves import ModuleSettings, holds_tensors
from .lookups import with_row
from .meta_mirror import META
from .modes import are_others_on, transformed
from .operators import VIEW as VIEWS
from .planning import PART, PlanningObserver
from .plans import NEW, SAME, VIEW, Plan, Unknown, alike, call_key, forms_in, specs_given
from .processes import communicates

PROPERTIES = ("shape", "ndim", "dtype", "layout", "requires_grad", "is_nested")
QUERIES = METADATA | {getattr(torch.Tensor, name).__get__ for name in PROPERTIES}
"""Functions that return the same for a real tensor and for its meta mirror."""


class FastObserver(PlanningObserver):
    """The observer of ``count()``: it runs no kernel for a call that has a plan."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dtype = torch.get_default_dtype()
        self._stand_ins = StandIns()

    def _attach(self) -> None:
        others, leaves, stand_ins = [], self._leaves, self._stand_ins
        leaf, entered = self._leaf, self._entered_module
        for module in self._modules:
            if not stand_ins.attach(module, entered if leaves[module] is None else leaf):
                others.append(module)
        self._hooks.attach(others, self._enter_module, self._leave_module)

    def _detach(self) -> None:
        super()._detach()
        self._stand_ins.leave()

    # Functions

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in QUERIES:
            return func(*args, **kwargs)
        if self._owners is None and func in self._device_mirror.answers and not transformed():
            return self._device_mirror.answers[func]
        if not self._metadata_suffices() or (self._facts and self._is_attention(func)):
            return super().function(func, args, kwargs)
        try:
            key = call_key((func,), args, kwargs, self._mirror.form)
            plan = self._plans.get(key)
        except (Unknown, TypeError):
            return super().function(func, args, kwargs)
        if plan is None:
            entry = self._registry.find(func)
            if entry is None:  # the calls inside it count, and a plan knows nothing of them
                return super().function(func, args, kwargs)
            with self.lock:
                plan = self._plan_by_rule(key, entry.op, func, args, kwargs)
                if plan is None:
                    return self._learn(key, entry, func, args, kwargs)
        with self.lock:
            return self._planned(plan, func, args, kwargs)

    # Operators seen by the dispatch mode: those of the backward pass, and those inside other calls

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with DisableTorchFunction():
            is_call = not (self._in_call or self._inside_leaf())
            # In a backward pass the slow path keeps the operators inside a call, in case checkpoint stops it. Those inside
            # a call that gets a plan itself run once.
            if not is_call and (current_graph_task_id() != -1 or (not self._facts and self._metadata_suffices())):
                return super().operator(func, args, kwargs)
            try:
                if self._unwritten.storages or transformed() or communicates(func):
                    raise Unknown
                key = call_key((func,), args, kwargs, self._mirror.form_of_meta)
                plan = self._plans.get(key)
            except (Unknown, TypeError):
                return super().operator(func, args, kwargs)
            if plan is None or (is_call and plan.operation is PART):
                return self._learn_operator(key, is_call, func, args, kwargs)
            self._storages.call = len(self.calls)
            if plan.kind is NEW:
                out = self._made(plan)
            else:  # the tensor may come from an unobserved call, so it is tracked here
                out = self._track(args[0] if plan.kind is SAME else func(*args, **kwargs))
            if is_call:
                phase, path = self.log.placed(self._here())
                self.calls.append(Call(plan.operation, path, phase=phase, origin=self._origin(func, phase)))
                self._owns((out, args))
            return out

    # Modules

    def _entered_module(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call a module between the observer's hooks."""
        mine, out = threading.get_ident() == self._thread, None
        enter, leave = (self._enter, self._end_module) if mine else (self._enter_module, self._leave_module)
        enter(module, args, kwargs)
        try:
            out = module._call_impl(*args, **kwargs)
        finally:
            leave(module, args, kwargs, out)
        return out

    def _leaf(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call a leaf, or skip it if there is a plan."""
        if threading.get_ident() != self._thread:  # the hooks find the observer of another thread
            return self._entered_module(module, *args, **kwargs)
        if "forward" in module.__dict__ or is_hooked(module):  # since the run began
            self._leaves.pop(module, None)
            return self._entered_module(module, *args, **kwargs)
        key = None
        with self.lock, DisableTorchFunction():
            if not (module._modules or are_others_on()) and self._metadata_suffices():
                known = self._settings.of(module)
                try:
                    key = call_key((type(module), known), args, kwargs, self._mirror.form)
                    plan = self._plans.get(key) or self._leaf_by_rule(key, module, known, args, kwargs)
                except Unknown:
                    key = plan = None
                if plan is not None:
                    return self._leaf_planned(plan, module, known, args, kwargs)
        span, calls, scopes = self._storages.begin(), len(self.calls), len(self.scopes)
        out = self._entered_module(module, *args, **kwargs)
        alone = (len(self.calls), len(self.scopes)) == (calls + 1, scopes + 1)
        if key is not None and alone and is_torchs(type(module)):
            self._learnt(key, self.calls[-1].operation, forms_in(key), args, kwargs, out, span)
        return out

    def _leaf_by_rule(
        self, key: Any, module: nn.Module, known: ModuleSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan | None:
        """Plan a call of a leaf by the shape rule of its class, or by the view that it returns; None if neither is known."""
        entry, cls = self._leaves[module], type(module)
        if entry is None or not known.contiguous or holds_tensors(module):
            return None
        plan, given = self._plan_by_rule(key, entry.op, cls, args, kwargs, known.settings), forms_in(key)
        if plan is not None or entry.reason != VIEWS or not is_torchs(cls) or {form.kind for form in given} != {META}:
            return plan
        try:
            view = self._view(args, cls.forward(module, *args, **kwargs))
        except Exception:  # the slow path makes the call again, and reports the error
            return None
        if view is not None:
            made = *specs_given(key, len(args), kwargs), view.spec, known.settings
            operation = self._shared_operation((alike(key), typed(view.spec)), (entry.op, cls, *made))
            plan = self._plans[key] = Plan(operation, VIEW, (view,), None, given)
        return plan

    def _leaf_planned(
        self, plan: Plan, module: nn.Module, known: ModuleSettings, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        first = self._storages.call = len(self.calls)
        if plan.has_real:
            mirrored = self._mirror.replace(args, kwargs, None)
        if plan.passing:
            self._storages.add_transient(plan.passing)
        if plan.kind is NEW:
            out = self._made(plan)
        elif plan.kind is SAME:
            out = args[0]
        else:
            args, kwargs = mirrored if plan.has_real else (args, kwargs)
            out = type(module).forward(module, *args, **kwargs)
            self._viewed(plan, out)
        path, operation = self._modules[module], plan.operation
        if operation.op == LOOKUP:
            operation = operation._replace(out=with_row(operation.out, (*args, module.weight)))
        self.calls.append(tuple.__new__(Call, (operation, path, "", "", None, "forward", "")))
        self.scopes.append(tuple.__new__(Scope, (path, operation, known.params, False, None)))
        if not self._stack.running:
            self.steps.append(Step(path, range(first, first + 1)))
        return out

    def _metadata_suffices(self) -> bool:
        """Return whether results follow from metadata now: not inside another call or a higher-order operator, with
        uninitialized memory around, in several threads, or under autocast, gradients or a functorch transform."""
        if self._autocast is not None and self._autocast.kept:
            self._autocast.forget()
        if self._dtype is not get_default_dtype():  # results of factories, and of promotion, depend on it
            self._dtype = get_default_dtype()
            self._plans.clear()
        return not (
            self._stack.leaf_depth
            or self._observe_dispatch  # the dispatch mode would record the tensors made here
            or self._in_higher_order  # it is on here, too
            or self._threads.by_thread
            or self._plain_functions.running
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or is_grad_enabled()
            or transformed()
        )

    def _is_attention(self, func: Any) -> bool:
        """Return whether a function is attention, whose count may need the values of its mask."""
        entry = self._registry.find(func)
        return entry is not None and entry.op in ATTENTIONS
