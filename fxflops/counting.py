"""Counting: after the run, each call's formula is found and applied to its specs. Pure: another convention needs no rerun."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from torch import nn

from .conventions import Convention
from .errors import FormulaError
from .ops import Formula, Table, apply
from .records import Call, Cost, Counted, specs_in

COMPLEX_MULTIPLY, COMPLEX_ADD = 6, 2


def count_calls(
    calls: Iterable[Call], convention: Convention, table: Table, module_at: Callable[[str], nn.Module]
) -> tuple[Counted, ...]:
    """Each call with its cost under the convention, or with the reason why there is none.

    ``module_at`` gives the module of a path, for formulas that read its settings. Raises FormulaError where a formula
    of the user's does not fit its call; where one of ours does not, the call is missing, and says why.
    """
    return tuple(_count(call, convention, table, module_at) for call in calls)


def _count(call: Call, convention: Convention, table: Table, module_at: Callable[[str], nn.Module]) -> Counted:
    entry = table.find_class(call.target) if isinstance(call.target, type) else table.find(call.target)
    if entry is None:
        return Counted(call, None, "", f"no formula for {call.op}")
    row = convention.rows.get(call.target) or convention.rows.get(call.op)
    if row is not None and _is_ours(entry):
        entry = Formula(entry.op, row)
    module = module_at(call.path) if entry.style != "op" and isinstance(call.target, type) else None
    try:
        cost = weighed(apply(entry, call, module), call)
    except FormulaError as error:
        if not _is_ours(entry):
            raise
        return Counted(call, None, "", str(error))
    rule = entry.reason or getattr(entry.function, "__name__", entry.op)
    return Counted(call, cost, rule, integer=_is_integer(call))


def _is_ours(entry: Formula) -> bool:
    """Whether an entry is of this library: a convention does not overrule a formula of the user's."""
    return entry.function is None or str(entry.function.__module__).startswith(f"{__package__}.")


def weighed(cost: Cost, call: Call) -> Cost:
    """The cost in real operations: a complex multiply is 6 (4 multiplies, 2 adds), a complex add 2."""
    specs: Any = chain(call.inputs(), specs_in(call.out))
    if not any(spec.dtype.is_complex for spec in specs):
        return cost
    return Cost(cost.macs, COMPLEX_MULTIPLY * cost.muls, COMPLEX_ADD * cost.adds, cost.others)


def _is_integer(call: Call) -> bool:
    """Whether the call computes on integers and booleans alone, by its inputs."""
    inputs = list(call.inputs())
    return bool(inputs) and all(spec.is_integral for spec in inputs)
