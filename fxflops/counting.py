"""Counting: after the run, each call's formula is found and applied to its specs. Pure: another convention needs no rerun."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from .conventions import Convention
from .errors import FormulaError, InputError
from .ops import ESCAPE, Formula, Table, apply
from .ops._cost import first
from .records import Call, Cost, Counted, Scope, Spec, specs_in

COMPLEX_MULTIPLY, COMPLEX_ADD = 6, 2


ATTENTIONS = ("dense", "exact")
NOT_COUNTED = "not counted"
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
) -> tuple[Counted, ...]:
    """Each call with its cost under the convention, or with the reason why there is none.

    Where the convention charges modules, those of ``scopes`` that are no leaves follow as calls of their own. ``kept`` are
    the functions that modules keep among their attributes, each with the module's path.
    ``module_at`` gives the module of a path, for formulas that read its settings. Raises FormulaError where a formula
    of the user's does not fit its call; where one of ours does not, the call is missing, and says why.
    """
    if attention == "dense":
        calls = map(_dense, calls)
    counted = tuple(_count(call, convention, table, module_at, attention) for call in calls)
    if convention.by_name and kept:
        counted = tuple(_by_name(counted, kept))
    if convention.childless:
        counted = tuple(_childless(counted, scopes, convention))
    return counted if convention.modules is None else _charged(counted, scopes, convention)


def _by_name(counted: Iterable[Counted], kept: Collection[tuple[str, Any]]) -> Iterator[Counted]:
    """The calls, without what is charged where a module calls a function that it keeps."""
    for each in counted:
        unseen = each.cost is not None and (each.call.path, each.call.target) in kept
        yield each._replace(cost=Cost(macs=each.macs), rule=NOT_COUNTED) if unseen else each


def _childless(counted: Iterable[Counted], scopes: Iterable[Scope], convention: Convention) -> Iterator[Counted]:
    """The calls, without what the convention's rows count in modules with children."""
    parents = {scope.path for scope in scopes if scope.has_children}
    rows = set(convention.rows.values())
    for each in counted:
        dropped = each.call.path in parents and each.rule in rows
        yield each._replace(cost=Cost(macs=each.macs), rule=NOT_COUNTED) if dropped else each


def _charged(counted: tuple[Counted, ...], scopes: Iterable[Scope], convention: Convention) -> tuple[Counted, ...]:
    """The calls, with what the convention charges their modules: a leaf's call on top of its own cost."""
    charged = [(scope, charge) for scope in scopes if (charge := _charge(scope, convention)) is not None]
    covering = {scope.path for scope, _ in charged if scope.has_children}
    charges: dict[tuple[str, Any], deque[tuple[Scope, int]]] = {}
    for scope, charge in charged:
        if covering.isdisjoint(_above(scope.path)):
            charges.setdefault((scope.path, scope.cls), deque()).append((scope, charge))
    result = []
    for each in counted:
        due = charges.get((each.call.path, each.call.target))
        if due and each.cost is not None:
            _, charge = due.popleft()
            each = each._replace(cost=each.cost.plus(Cost(others=charge)), rule=convention.modules)
        result.append(each)
    for scope, charge in (pair for due in charges.values() for pair in due):
        call = Call(scope.cls.__name__, scope.cls, scope.args, scope.kwargs, scope.out, scope.path, scope.settings)
        result.append(Counted(call, Cost(others=charge), convention.modules))
    return tuple(result)


def _charge(scope: Scope, convention: Convention) -> int | None:
    return convention.modules(scope) if convention.modules is not None else None


def _above(path: str) -> Iterator[str]:
    """The paths of the modules that one stands in."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _dense(call: Call) -> Call:
    """A call of attention without what its mask leaves, so that its formula counts every pair."""
    if call.op != "attention" or not any("pairs" in spec.facts for spec in specs_in(call.out)):
        return call
    specs = [_without(spec, "pairs") for spec in specs_in(call.out)]
    return replace(call, out=specs[0] if isinstance(call.out, Spec) else tuple(specs))


def _without(spec: Spec, fact: str) -> Spec:
    return Spec(spec, spec.dtype, spec.layout, {name: value for name, value in spec.facts.items() if name != fact})


def _count(
    call: Call, convention: Convention, table: Table, module_at: Callable[[str], nn.Module], attention: str
) -> Counted:
    entry = table.find_class(call.target) if isinstance(call.target, type) else table.find(call.target)
    if entry is None:
        return Counted(call, None, "", f"no formula for {call.op}")
    if entry.reason == ESCAPE:
        return Counted(call, None, "", "its data goes where no call is seen; what is computed there is not counted")
    if call.op == "attention" and attention == "exact" and "pairs" not in first(call.out).facts:
        return Counted(call, None, "", UNKNOWN_PAIRS)
    module = module_at(call.path) if entry.style != "op" and isinstance(call.target, type) else None
    rule: Any = entry.reason or entry.function
    try:
        cost = weighed(_applied(entry, call, module), call)
        row = convention.rows.get(call.target) or convention.rows.get(call.op)
        if row is not None and _is_ours(entry):
            rule = row
            cost = weighed(_applied(Formula(entry.op, row), call, None), call)._replace(macs=cost.macs)
        elif convention.of is not None:
            cost = convention.of(cost, call)
            rule = convention.of if cost.flops else NOT_COUNTED
    except FormulaError as error:
        if not _is_ours(entry):
            raise
        return Counted(call, None, "", str(error))
    return Counted(call, cost, rule, integer=_is_integer(call) and not convention.integers)


def _applied(entry: Formula, call: Call, module: nn.Module | None) -> Cost:
    """The cost of a call: of one on nested tensors, of each of their parts."""
    counts = {len(spec.facts["parts"]) for spec in _specs_of(call) if "parts" in spec.facts}
    if not counts:
        return apply(entry, call, module)
    cost = Cost()
    for i in range(max(counts)):
        args, kwargs, out = (_part(value, i) for value in (call.args, dict(call.kwargs), call.out))
        cost = cost.plus(apply(entry, replace(call, args=args, kwargs=kwargs, out=out), module))
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


def _specs_of(call: Call) -> Iterator[Spec]:
    yield from call.inputs()
    yield from specs_in(call.out)


def _is_ours(entry: Formula) -> bool:
    """Whether an entry is of this library: a convention does not overrule a formula of the user's."""
    return entry.function is None or str(entry.function.__module__).startswith(f"{__package__}.")


def weighed(cost: Cost, call: Call) -> Cost:
    """The cost in real operations: a complex multiply is 6 (4 multiplies, 2 adds), a complex add 2."""
    if not any(spec.dtype.is_complex for spec in _specs_of(call)):
        return cost
    return Cost(cost.macs, COMPLEX_MULTIPLY * cost.muls, COMPLEX_ADD * cost.adds, cost.others)


def _is_integer(call: Call) -> bool:
    """Whether the call computes on integers and booleans alone, by its inputs and a module's own tensors."""
    inputs = [*call.inputs(), *specs_in(dict(call.settings))]
    return bool(inputs) and all(spec.is_integral for spec in inputs)
