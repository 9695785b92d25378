"""The fast path of counting on meta: a call made before with the same metadata has the same result, and no kernel runs.

What a call puts out on meta follows from its function, the shapes, strides and dtypes of its tensors and its plain
arguments; a leaf module's from its class and settings too. So a call is remembered (:class:`~.plans.Plan`) as the observer saw
it, and made again from memory: the same Call, and empty tensors of the same form. Whatever is not of this kind (values,
gradients, autocast, transforms, temporaries inside) goes the observer's own way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..ops.shapes import rule_for, shape_of
from ..records import Call, Scope, Spec, spec_of
from .attributes import telling_of_reads, telling_of_writes
from .blocks import Block, Blocks, Learned, Seen, arguments_in
from .forwards import Forward, is_torchs, may_write, own_forward
from .keys import Keys, has_real
from .leaves import scope_of
from .modes import metadata_tells_all
from .observe import ATTENTION, Observer
from .plans import Form, Plan, plans_of
from .spelling import WRITTEN_AS, spelled
from .tokens import TENSORS, Tokens, Unknown

NEW, SAME, VIEW = "new", "the first argument", "view"
META = torch.device("meta")
QUERIES = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "layout", "requires_grad", "is_nested")),
        *(
            getattr(torch.Tensor, name)
            for name in "dim size numel nelement stride is_contiguous is_floating_point is_complex ndimension".split()
        ),
        torch.numel, torch.is_floating_point, torch.is_complex, torch.Tensor.__len__,
    ]
)  # fmt: skip
"""What a real tensor answers as its twin does."""


class _FastMode(TorchFunctionMode):
    def __init__(self, observer: FastObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in QUERIES:
            return func(*args, **(kwargs or {}))
        return self._observer.function(func, args, kwargs or {})


class FastObserver(Observer):
    """The observer of ``count()``, without a tape: it makes calls again from memory where it can."""

    def __init__(self, learned: Learned, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._learned = learned
        self._plans = plans_of(self._table)
        self._mode = _FastMode(self)  # type: ignore[assignment]
        assert self._twins is not None
        assert self._ledger is not None
        self._tokens = Tokens(self._plans.numbers, self._modules)
        keys = Keys(self._twins, self._tokens)
        self._key = keys.of
        seen = Seen(self.calls, self.scopes, self._ledger, self._twins)
        device = str(self._placement.device) if self._placement is not None else ""
        self._blocks = Blocks(learned, self._plans.blocks, keys, self._modules, device, seen)
        self._telling = ExitStack()

    def _attach(self) -> None:
        codes = {(type(module), getattr(own_forward(module), "__func__", None)) for module in self._modules}
        self._learned.told = any(may_write(*code) for code in codes)
        if self._learned.told:
            self._telling.enter_context(telling_of_writes(self._tokens.forget))
        self._telling.enter_context(telling_of_reads(self._modules, self._tokens.has_read))
        for module in self._modules:
            vars(module)["forward"] = Forward(module, self._module)

    def _detach(self) -> None:
        self._telling.close()
        for module in self._modules:
            forward = vars(module).get("forward")
            if type(forward) is Forward:
                forward.leave()

    # Functions

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf() or not self._is_plain() or (self._facts and self._attends(func)):
            return super().function(func, args, kwargs)
        try:
            key = func, *map(self._key, args)
            if kwargs:
                key = *key, *kwargs, *map(self._key, kwargs.values())
            plan = self._plans.get(key)
        except (Unknown, TypeError):
            return super().function(func, args, kwargs)
        if plan is None:
            return self._learn(key, func, args, kwargs)
        return self._replayed(plan, func, args, kwargs)

    def _replayed(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call made again."""
        target = spelled(func, self.target) if func in WRITTEN_AS else func
        if plan.beside or plan.kind is VIEW:
            args, kwargs = self._twins.replace(args, kwargs, func)  # type: ignore[union-attr]
        self._ledger.call = len(self.calls)  # type: ignore[union-attr]
        if plan.kind is VIEW:
            if self._placement is not None:
                args, kwargs = self._placement.redirect(func, args, kwargs)
            out = func(*args, **kwargs)
            self._twins.saw(out)  # type: ignore[union-attr]
        else:
            out = self._twins.of(args[0]) if plan.kind is SAME else self._made(plan)  # type: ignore[union-attr]
        call = plan.call(self._here())
        self.calls.append(call if target is call.target else call._replace(target=target))
        return out

    def _by_rule(self, key: Any, op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        """The plan of a call whose shape rule tells what it puts out."""
        args, kwargs = self._twins.replace(args, kwargs, func)  # type: ignore[union-attr]
        if not any(tensor.is_meta for tensor in arguments_in((args, kwargs))):
            return None
        return self._plan_by_rule(key, Call(op, func, spec_of(args), spec_of(kwargs), None, ""), args, kwargs)

    def _learn(self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call the observer's way, and remember it if its metadata told all; a shape rule may tell without."""
        entry = self._table.find(func)
        if entry is not None and rule_for(func) is not None:
            with torch._C.DisableTorchFunction():
                plan = self._by_rule(key, entry.op, func, args, kwargs)
            if plan is not None:
                return self._replayed(plan, func, args, kwargs)
        calls, scopes, made = len(self.calls), len(self.scopes), self._ledger.entered  # type: ignore[union-attr]
        out = super().function(func, args, kwargs)
        if len(self.calls) == calls + 1 and len(self.scopes) == scopes:
            call = self.calls[-1]
            if call.target is func or call.target is WRITTEN_AS.get(func):
                self._remember(key, call, args, kwargs, out, made)
        return out

    def _remember(
        self, key: Any, call: Call, args: Any, kwargs: Any, out: Any, made: int, scope: Scope | None = None
    ) -> bool:
        """Remember a call, if its metadata told all; whether it did."""
        with torch._C.DisableTorchFunction():
            kind, forms, sequence = self._outcome(args, kwargs, out)
            storages = len(forms)
            if kind is SAME and self._key(args[0]) != key[1]:  # x.unsqueeze_(0)
                return False
            if not kind or self._ledger.entered - made != storages:  # type: ignore[union-attr]
                return False
            self._plans.keep(key, call.out, _plan(key, call._replace(seconds=None), kind, forms, sequence, scope))
            return True

    def _outcome(self, args: Any, kwargs: Any, out: Any) -> tuple[str, tuple[Form, ...], Any]:
        """How a result comes about; "" where it cannot be told."""
        single = isinstance(out, torch.Tensor)
        outs = [out] if single else list(out) if type(out) in (tuple, list) else []
        if not outs or not all(type(o) in TENSORS and o.is_meta and o.layout is torch.strided for o in outs):
            return "", (), None
        if single and args and out is args[0]:
            return SAME, (), None
        given = {t.untyped_storage()._cdata for t in self._tensors((args, kwargs))}
        shared = [o.untyped_storage()._cdata in given for o in outs]
        if all(shared):
            return VIEW, (), None
        distinct = len({o.untyped_storage()._cdata for o in outs}) == len(outs)
        if any(shared) or not distinct or any(o.storage_offset() for o in outs):
            return "", (), None
        forms = tuple(Form(o.shape, o.stride(), o.dtype, o.untyped_storage().nbytes(), spec_of(o)) for o in outs)
        return NEW, forms, None if single else type(out)

    def _tensors(self, value: Any) -> list[torch.Tensor]:
        return [*map(self._twins.of, arguments_in(value))]  # type: ignore[union-attr]

    def _made(self, plan: Plan) -> Any:
        """Empty tensors of the plan's forms."""
        assert self._twins is not None
        assert self._ledger is not None
        outs = []
        for form in plan.forms:
            out = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=META)
            self._twins.seen[id(out)] = weakref.ref(out)
            self._ledger.enter(out.untyped_storage(), form.nbytes, form.spec)
            outs.append(out)
        return outs[0] if plan.sequence is None else plan.sequence(outs)

    # Modules

    def _module(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What stands for the ``forward`` of one of the modules while it is observed."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        leaf_key = block_key = mark = None
        if not self._stack.inside_leaf() and self._is_plain():
            with torch._C.DisableTorchFunction():
                if self._leaves[module] is not None:
                    leaf_key = self._leaf_key(module, args, kwargs)
                    plan = self._plans.get(leaf_key) or self._leaf_by_rule(leaf_key, module, args, kwargs)
                    if plan is not None:
                        return self._leaf(plan, module, args, kwargs)
                if not self._facts:
                    block_key, given = self._blocks.key(module, args, kwargs)
                    block = self._blocks.known(block_key, module) if self._learned.blocks else None
                    if block is not None:
                        return self._again(block, module, given)
                    if block_key is not None:
                        mark = self._blocks.mark(given)
                    del given  # an argument may go while the block runs
        calls, scopes, made = len(self.calls), len(self.scopes), self._ledger.entered  # type: ignore[union-attr]
        out = None
        self._enter_module(module, args, kwargs)
        try:
            out = forward(*args, **kwargs)
        finally:
            self._leave_module(module, args, kwargs, out)
        alone = len(self.calls) == calls + 1 and len(self.scopes) == scopes + 1
        last = leaf_key is not None and alone and (self.calls[-1], self.scopes[-1])
        planned = last and self._remember(leaf_key, last[0], args, kwargs, out, made, last[1])
        if mark is not None and not planned and self._is_plain():
            self._blocks.learn(block_key, module, mark, (args, kwargs), out)
        return out

    def _again(self, block: Block, module: nn.Module, given: list[torch.Tensor]) -> Any:
        """The call of a module made again, with all the calls in it."""
        first = len(self.calls)
        out = self._blocks.again(block, module, given)
        if not self._stack.running:
            self.steps.append((self._modules[module], range(first, len(self.calls))))
        return out

    def _leaf_by_rule(self, key: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        """The plan of a leaf whose shape rule tells what it puts out."""
        entry = self._leaves[module]
        cls: Any = type(module)
        if key is None or entry is None or rule_for(cls) is None:
            return None
        settings, specs, kwspecs = self._settings[module], spec_of(args), spec_of(kwargs)
        call = Call(entry.op, cls, specs, kwspecs, None, "", settings)
        return self._plan_by_rule(key, call, args, kwargs, module)

    def _plan_by_rule(
        self, key: Any, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None = None
    ) -> Plan | None:
        given = self._tensors((args, kwargs))
        own = () if module is None else [*module._parameters.values(), *module._buffers.values()]
        found = shape_of(call, given) if all(t is None or t.is_contiguous() for t in own) else None
        if found is None:
            return None
        out, strides = found
        kind, forms = (NEW, (_form_of(out, strides),)) if strides is not None else (SAME, ())
        scope = None if module is None else scope_of(module, "", dict(call.settings), call.args, call.kwargs, out)
        plan = _plan(key, call._replace(out=out), kind, forms, None, scope)
        self._plans.keep(key, out, plan)
        return plan

    def _leaf(self, plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = self._modules[module]
        if plan.beside:
            self._tensors((args, kwargs))
        self._ledger.call = len(self.calls)  # type: ignore[union-attr]
        if plan.kind is VIEW:
            out = type(module).forward(module, *args, **kwargs)
            self._twins.saw(out)  # type: ignore[union-attr]
        else:
            out = args[0] if plan.kind is SAME else self._made(plan)
        if not self._stack.running:
            self.steps.append((path, range(len(self.calls), len(self.calls) + 1)))
        self.calls.append(plan.call(path))
        self.scopes.append(tuple.__new__(Scope, (path, *plan.scope)))
        return out

    def _leaf_key(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All that the result of a leaf depends on; None where that is more than can be told."""
        cls: Any = type(module)
        token = self._tokens.of(module) if is_torchs(cls) and not module._modules else None
        if token is None:
            return None
        try:
            key = token, *map(self._key, args)
            return (*key, *kwargs, *map(self._key, kwargs.values())) if kwargs else key
        except Unknown:
            return None

    # Keys

    def _is_plain(self) -> bool:
        """Whether metadata tells all, and nothing was left empty on purpose."""
        if self._autocast is not None:
            self._autocast.forget()
        return not self._unwritten and metadata_tells_all()

    def _attends(self, func: Any) -> bool:
        """Whether a function is attention, of whose mask the values may be asked for."""
        entry = self._table.find(func)
        return entry is not None and entry.op == ATTENTION


def _plan(key: Any, call: Call, kind: str, forms: tuple[Form, ...], sequence: Any, scope: Scope | None) -> Plan:
    at, beside = Call._fields.index("path"), has_real(key)
    return Plan(call[:at], call[at + 1 :], kind, forms, sequence, () if scope is None else scope[1:], beside)


def _form_of(spec: Spec, strides: tuple[int, ...]) -> Form:
    """The form of a dense tensor."""
    return Form(torch.Size(spec), strides, spec.dtype, spec.nbytes, spec)
