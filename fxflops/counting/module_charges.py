"""Adapt calls to what another tool sees. A tool with module hooks charges modules; a tool that patches functions misses some calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ..conventions import ALL, CALLED, Convention, ModuleRule
from ..records import OPERATOR, SCRIPT, UNSEEN, Call, Cost, Count, Counted, Operation, Scope, per_operation

NOT_COUNTED = "not counted"

Rules = Callable[[type], "ModuleRule | None"]
"""A function that returns the rule for a module class; None if the tool does not know the class."""


def as_tool_sees(
    counted: Sequence[Counted],
    convention: Convention,
    scopes: Iterable[Scope],
    attribute_functions: Collection[tuple[str, Any]],
    user_rule_ids: Collection[int],
    computes: Callable[[Operation], bool],
    is_operator: Callable[[Any], bool],
) -> Sequence[Counted]:
    """Return the calls as the convention's tool sees them. If the tool charges modules, these charges are added as separate calls.

    ``attribute_functions`` are functions stored as modules' attributes, each with the module's path. ``user_rule_ids`` has the ``id()`` of each
    user formula. A call that a user formula counts is not charged. ``computes(operation)`` returns whether an operation computes anything.
    ``is_operator(target)`` returns whether a target is in ``torch.ops``.
    """
    if convention.operators != ALL:
        counted = _without_unseen_operators(counted, convention, user_rule_ids, computes, is_operator)
    if convention.by_name and attribute_functions:
        # The tool patches functions by name, so it misses calls through a module's attribute (self.act = F.gelu).
        counted = _without(
            counted, lambda each: each.cost is not None and (each.call.path, each.call.target) in attribute_functions
        )
    if convention.childless:
        parents, rows = {scope.path for scope in scopes if scope.has_children}, set(convention.rows.values())
        counted = _without(counted, lambda each: each.call.path in parents and each.rule in rows)
    return counted if convention.modules is None else _charged(counted, scopes, convention.modules, user_rule_ids)


def _without_unseen_operators(
    counted: Sequence[Counted],
    convention: Convention,
    user_rule_ids: Collection[int],
    computes: Callable[[Operation], bool],
    is_operator: Callable[[Any], bool],
) -> Sequence[Counted]:
    """Return the calls without counts for operators that the tool does not see.

    If a torch function called the operator, the operator counts as 0. Any other operator that the tool does not see is listed as missing.
    """
    sees_called = convention.operators == CALLED
    missing = {
        origin: per_operation(_missing(f"{convention.name} does not see {what}"))
        for origin, what in UNSEEN_OPERATORS.items()
    }
    uncounted = per_operation(_uncounted)
    calls_seen = []
    for each in counted:
        origin = each.call.origin
        if each.cost is None or id(each.rule) in user_rule_ids or (origin == OPERATOR and sees_called):
            pass
        elif origin and computes(each.call.operation):
            each = each._replace(count=missing[origin](each))
        elif not origin and sees_called and each.flops and is_operator(each.call.target):
            each = each._replace(count=uncounted(each))
        calls_seen.append(each)
    return calls_seen


UNSEEN_OPERATORS = {
    OPERATOR: "operators that the model's code calls directly, e.g. in a program made by torch.export or make_fx",
    SCRIPT: "operators that TorchScript or other compiled code calls",
}
"""Maps the origin of operators that no torch function called to a description of these operators."""


def _missing(why: str) -> Callable[[Counted], Count]:
    return lambda each: Count(Cost(macs=each.macs), "", why, each.count.integer)


def _uncounted(each: Counted) -> Count:
    return Count(Cost(macs=each.macs), NOT_COUNTED, integer=each.count.integer)


def _without(counted: Iterable[Counted], is_unseen: Callable[[Counted], bool]) -> list[Counted]:
    """Return the calls. Calls that the tool does not see are counted as 0."""
    uncounted = per_operation(_uncounted)
    return [each._replace(count=uncounted(each)) if is_unseen(each) else each for each in counted]


def _charged(
    counted: Sequence[Counted], scopes: Iterable[Scope], rule_of: Rules, user_rule_ids: Collection[int]
) -> list[Counted]:
    """Return the calls with their modules' charges. A leaf module's charge is added to the cost of the module's call.

    A module that was only timed is not charged, because its shapes are unknown.
    """
    timed = {each.call.path for each in counted if each.call.op == UNSEEN}
    rules = ((scope, rule_of(scope.cls)) for scope in scopes if scope.path not in timed)
    charged = [(scope, rule, charge) for scope, rule in rules if rule and (charge := rule(scope)) is not None]
    covering = {scope.path for scope, _, _ in charged if scope.has_children}
    charges: dict[tuple[str, Any], deque[tuple[Scope, ModuleRule, int]]] = {}
    for module_charge in charged:
        scope, _, _ = module_charge
        if covering.isdisjoint(_above(scope.path)):
            charges.setdefault((scope.path, scope.cls), deque()).append(module_charge)
    charged_calls = []
    for each in counted:
        charges_due = charges.get((each.call.path, each.call.target))
        if charges_due and each.cost is not None:
            _, rule, charge = charges_due.popleft()
            if id(each.rule) not in user_rule_ids:
                each = Counted(each.call, Count(each.cost.plus(Cost(others=charge)), rule, integer=each.count.integer))
        charged_calls.append(each)
    # The remaining charges belong to modules without a recorded call, or to modules whose call has no formula.
    for scope, rule, charge in chain.from_iterable(charges.values()):
        module_call = Call(scope.operation._replace(op=scope.cls.__name__), scope.path)
        charged_calls.append(Counted(module_call, Count(Cost(others=charge), rule)))
    return charged_calls


def _above(path: str) -> Iterator[str]:
    """Yield the paths of the modules that contain a module, innermost first."""
    while path:
        path = path.rpartition(".")[0]
        yield path
