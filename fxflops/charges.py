"""What a tool sees of a run: one that hooks modules charges their calls, one that replaces functions misses some."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from .conventions import Convention
from .records import Call, Cost, Counted, Scope, specs_in

NOT_COUNTED = "not counted"
FEW = 16


def as_seen(
    counted: Sequence[Counted], convention: Convention, scopes: Iterable[Scope], kept: Collection[tuple[str, Any]]
) -> Sequence[Counted]:
    """The calls as the convention's tool sees them; the modules it charges that are no leaves follow as calls of their own.

    ``kept`` are the functions that modules keep among their attributes, each with the module's path.
    """
    if convention.by_name and kept:
        counted = list(_by_name(counted, kept))
    if convention.childless:
        counted = list(_childless(counted, scopes, convention))
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


def _charged(counted: Iterable[Counted], scopes: Iterable[Scope], convention: Convention) -> list[Counted]:
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
            each = each._replace(cost=each.cost.plus(Cost(others=charge)), rule=_rule(each.call, charge))
        result.append(each)
    for scope, charge in (pair for due in charges.values() for pair in due):
        call = Call(scope.cls.__name__, scope.cls, scope.args, scope.kwargs, scope.out, scope.path, scope.settings)
        result.append(Counted(call, Cost(others=charge), _rule(call, charge)))
    return result


def _rule(call: Call, charge: int) -> str:
    """What a module was charged, in words: a few operations per output, or more than can be told by that."""
    outputs = next((spec.numel() for spec in specs_in(call.out)), 0)
    if not charge:
        return NOT_COUNTED
    few = outputs and charge % outputs == 0 and charge // outputs <= FEW
    return f"the module: {charge // outputs} per output" if few else "the module, by the rule of its class"


def _charge(scope: Scope, convention: Convention) -> int | None:
    return convention.modules(scope) if convention.modules is not None else None


def _above(path: str) -> Iterator[str]:
    """The paths of the modules that one stands in."""
    while path:
        path = path.rpartition(".")[0]
        yield path
