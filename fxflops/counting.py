"""Counting: after the run, each call's formula is found and applied to its specs. Pure: another convention needs no rerun."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from torch import nn

from .charges import NOT_COUNTED, as_seen
from .conventions import Convention
from .errors import FormulaError, InputError
from .missing import NO_FORMULA
from .ops import ESCAPE, Formula, Table, apply
from .ops._cost import COMPLEX, first
from .records import Call, Cost, Counted, FormulaFunction, Scope, Spec, specs_in
from .targets import name_of
from .trace.facts import leaves_all
from .trace.plans import Plans, plans_of

ATTENTIONS = ("dense", "exact")
UNKNOWN_PAIRS = 'what the mask leaves was not read: count(..., attention="exact") or analyze() reads it'


def check_attention(attention: str) -> str:
    """The word itself; InputError where it is not one of :data:`ATTENTIONS`."""
    if attention not in ATTENTIONS:
        raise InputError(f"unknown attention {attention!r}: one of {', '.join(map(repr, ATTENTIONS))}")
    return attention


def count_calls(
    calls: Iterable[Call],
    convention: Convention,
    table: Table,
    module_at: Callable[[str], nn.Module],
    attention: str = "dense",
    scopes: Iterable[Scope] = (),
    kept: Collection[tuple[str, Any]] = (),
    known: Mapping[int, Counted] | None = None,
) -> tuple[Counted, ...]:
    """Each call with its cost under the convention, or with the reason why there is none.

    Where the convention charges modules, those of ``scopes`` that are no leaves follow as calls of their own. ``kept`` are
    the functions that modules keep among their attributes, each with the module's path.
    ``known`` are counts, by the number of their call, that hold as they are: a formula of the user's gave them, and it is
    not at hand.
    ``module_at`` gives the module of a path, for formulas that read its settings. Raises FormulaError where a formula
    of the user's does not fit its call; where one of ours does not, the call is missing, and says why.
    """
    calls, known, plans = tuple(calls), known or {}, plans_of(table)
    key = len(calls), id(calls[0]) if calls else 0, id(convention), attention
    same, counted = plans.runs.get(key, ((), []))
    if known or len(same) != len(calls) or not all(map(operator.is_, same, calls)):
        found = _Counts(plans, convention, table, module_at, attention)
        counted = [
            known[i]._replace(call=call) if i in known else found.of(call)
            for i, call in enumerate(map(dense, calls) if attention == "dense" else calls)
        ]
        if found.remembered and not known:
            plans.runs[key] = calls, counted
    return tuple(as_seen(counted, convention, scopes, kept))


class _Counts:
    """The counts of a run's calls; ``remembered`` as long as all were counted before."""

    def __init__(
        self,
        plans: Plans,
        convention: Convention,
        table: Table,
        module_at: Callable[[str], nn.Module],
        attention: str,
    ) -> None:
        self.remembered = True
        self._plans = plans
        self._convention = convention
        self._table = table
        self._module_at = module_at
        self._attention = attention

    def of(self, call: Call) -> Counted:
        """The count of a call; of one that was made again from memory, as it was counted before."""
        if id(call.out) not in self._plans.kept and id(call.args) not in self._plans.kept:
            self.remembered = False
            return self._anew(call)
        ids = id(call.args), id(call.kwargs), id(call.out), id(call.settings), id(self._convention)
        key = call.target, *ids, self._attention
        found = self._plans.counts.get(key)
        if found is None:
            self.remembered = False
            found = self._anew(call)
            entry = _entry_of(call, self._table)
            if entry is not None and entry.style == "op":
                self._plans.counts[key] = found
                self._plans.held.append(self._convention)
        return Counted(call, *found[1:])

    def _anew(self, call: Call) -> Counted:
        entry = _entry_of(call, self._table)
        if entry is None:
            return Counted(call, None, "", f"{NO_FORMULA} for {call.op}")
        if entry.reason == ESCAPE:
            return Counted(call, None, "", "its data goes where no call is seen; what is computed there is not counted")
        exact = call.op == "attention" and self._attention == "exact"
        if exact and "pairs" not in first(call.out).facts and not leaves_all(entry, call.args, call.kwargs):
            return Counted(call, None, "", UNKNOWN_PAIRS)
        inputs, outputs = [*call.inputs()], [*specs_in(call.out)]
        tensors = inputs + outputs
        module = self._module_at(call.path) if entry.style != "op" and isinstance(call.target, type) else None
        rule: Any = entry.reason or entry.function
        convention = self._convention
        try:
            cost = weighed(_applied(entry, call, module, tensors), tensors)
            row = _row_for(call, convention)
            if row is not None and entry.is_ours:
                cost = weighed(_applied(Formula(entry.op, row), call, None, tensors), tensors)._replace(macs=cost.macs)
                rule = row
            elif convention.of is not None and entry.is_ours:
                cost = convention.of(cost, call)
                rule = convention.of if cost.flops else NOT_COUNTED
        except FormulaError as error:
            if not entry.is_ours:
                raise
            return Counted(call, None, "", str(error))
        inputs += specs_in(dict(call.settings))  # a module's own tensors
        integral = bool(inputs) and all(spec.is_integral for spec in inputs)
        return Counted(call, cost, rule, integer=integral and not convention.integers)


def is_users(call: Call, table: Table) -> bool:
    """Whether a formula of the user's counts this call."""
    entry = _entry_of(call, table)
    return entry is not None and not entry.is_ours


def overlooked(counted: Iterable[Counted], table: Table) -> list[str]:
    """A sentence for each of a user's formulas that counted nothing, while its op was called spelled otherwise."""
    formulas = table.users()
    if not formulas:
        return []
    counted = tuple(counted)
    used = {id(each.rule) for each in counted}
    users = {id(entry.function) for entry, _ in formulas.values()}
    called: dict[str, Counter[str]] = {}
    for each in counted:
        if id(each.rule) not in users:
            called.setdefault(each.call.op, Counter())[_spelled(each.call.target)] += 1
    unused = {entry.function: (key, op) for key, (entry, op) in formulas.items() if id(entry.function) not in used}
    return [
        f"the formula for {_spelled(key)} counted nothing: {op} is called here as "
        + ", ".join(f"{spelling} x{calls}" for spelling, calls in called[op].items())
        + "; a formula for that counts it"
        for key, op in unused.values()
        if op in called and _spelled(key) not in called[op]
    ]


def _spelled(target: Any) -> str:
    """A target as one writes it: ``torch.nn.Linear``, ``torch.nn.functional.linear``, ``aten::linear``."""
    if isinstance(target, type) and target in vars(nn).values():
        return f"torch.nn.{target.__name__}"
    name = target if isinstance(target, str) else name_of(target)
    return name if "::" in name else name.replace(":", ".")


def _entry_of(call: Call, table: Table) -> Formula | None:
    return table.find_class(call.target) if isinstance(call.target, type) else table.find(call.target)


def dense(call: Call) -> Call:
    """A call of attention without what its mask leaves, so that its formula counts every pair."""
    if call.op != "attention" or not any("pairs" in spec.facts for spec in specs_in(call.out)):
        return call
    specs = [_without(spec, "pairs") for spec in specs_in(call.out)]
    return call._replace(out=specs[0] if isinstance(call.out, Spec) else tuple(specs))


def _without(spec: Spec, fact: str) -> Spec:
    return Spec(spec, spec.dtype, spec.layout, {name: value for name, value in spec.facts.items() if name != fact})


def _row_for(call: Call, convention: Convention) -> FormulaFunction | None:
    """The convention's row: by exact spelling, of a module by the class whose forward it runs, or by op."""
    rows = convention.rows
    for cls in call.target.__mro__ if isinstance(call.target, type) else ():
        if cls in rows:
            return rows[cls]
        if "forward" in vars(cls):
            break
    return rows.get(call.target) or rows.get(call.op)


def _applied(entry: Formula, call: Call, module: nn.Module | None, tensors: Iterable[Spec]) -> Cost:
    """The cost of a call, given and putting out these tensors: of one on nested ones, of each of their parts."""
    counts = {len(spec.facts["parts"]) for spec in tensors if "parts" in spec.facts}
    if not counts:
        return apply(entry, call, module)
    cost = Cost()
    for i in range(max(counts)):
        args, kwargs, out = (_part(value, i) for value in (call.args, dict(call.kwargs), call.out))
        cost = cost.plus(apply(entry, call._replace(args=args, kwargs=kwargs, out=out), module))
    return cost


def _part(value: Any, i: int) -> Any:
    """The i-th part of each nested tensor in a value of specs."""
    if isinstance(value, Spec):
        return value.facts["parts"][i] if "parts" in value.facts else value
    if isinstance(value, tuple):
        return tuple(_part(item, i) for item in value)
    if isinstance(value, dict):
        return {key: _part(item, i) for key, item in value.items()}
    return value


def weighed(cost: Cost, tensors: Iterable[Spec]) -> Cost:
    """The cost in real operations of a call on these, of which one of complex numbers is several."""
    if not any(spec.dtype.is_complex for spec in tensors):
        return cost
    return Cost(*map(operator.mul, cost, COMPLEX))
