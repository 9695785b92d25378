"""Count the calls of a run by formulas. Formulas read only specs, so counting under another convention needs no second run."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..conventions import BASE_CONVENTION, BASE_MACS, IN_MACS, Convention, find_convention, macs_alone
from ..errors import FormulaError, did_you_mean, warn
from ..names import name_of
from ..ops import ESCAPE, Formula, FormulaRegistry, apply
from ..ops._cost import COMPLEX
from ..ops._masks import causal_pairs, leaves_all
from ..ops._registry import formula_for
from ..records import (
    NO_ARGUMENTS,
    VALUE_READ,
    Call,
    Cost,
    Count,
    Counted,
    FormulaFunction,
    Operation,
    Scope,
    Spec,
    specs_in,
)
from ..records.facts import ATTENTIONS, pairs_in, with_facts
from ..run.outcome import Run
from ..torch_internals import OpOverload, OpOverloadPacket
from .arithmetic import is_complex, is_integral
from .masked import scaled_to_pairs_left, without_mask
from .module_charges import NOT_COUNTED, as_tool_sees
from .uncounted import NO_FORMULA, check_counts_operators

LEAST = "least"
"""How bounds count attention: like "exact", but a mask whose values could not be read is assumed to keep no pairs."""
UNKNOWN_PAIRS = (
    'the values of the attention mask are unknown: use count(..., attention="exact") or analyze() to read them'
)
UNKNOWN_PATH = "the model caught the error of reading a tensor's value; with values, it would take another path: count it on real tensors"
WHY_UNKNOWN = {
    NO_ARGUMENTS: "the trace does not show the call's arguments: record the trace with torch 2.1 or later",
    VALUE_READ: UNKNOWN_PATH,
}
"""Why a call is not counted, by the words that are recorded as its target."""


def count_calls(
    calls: Iterable[Call],
    convention: Convention,
    registry: FormulaRegistry,
    module_at: Callable[[str], nn.Module],
    attention: str = "dense",
    scopes: Iterable[Scope] = (),
    attribute_functions: Collection[tuple[str, Any]] = (),
    user_counts: Mapping[int, Counted] | None = None,
) -> tuple[Counted, ...]:
    """Return each call with its cost under the convention, or with the reason why the call has no cost.

    ``module_at(path)`` returns a module, for user formulas that read the module's attributes. ``scopes`` are the module calls.
    If the convention charges modules with children, their charges are added after the calls, as separate calls. ``attribute_functions`` are
    functions stored as modules' attributes, each with the module's path. ``user_counts`` maps the index of a call to the count to reuse for the
    call. A saved report needs it: the file has the counts by user formulas, but not the formulas.

    Raises FormulaError if a user's formula does not fit its call. If a formula of fxflops does not fit, the call has no cost.
    """
    reused = {
        i: each._replace(count=_count_by_user(each.count, each.call.operation, convention))
        for i, each in (user_counts or {}).items()
    }
    counts = _Counts(convention, registry, module_at, attention)
    if reused:
        counted = [reused[i]._replace(call=call) if i in reused else counts.of(call) for i, call in enumerate(calls)]
    else:
        counted = counts.of_all(calls)
    user_rule_ids = {id(formula.function) for formula, _ in registry.user_formulas().values()}
    user_rule_ids |= {id(each.rule) for each in reused.values()}
    # as_tool_sees gets _is_operator from here, because its module does not import torch.
    return tuple(
        as_tool_sees(counted, convention, scopes, attribute_functions, user_rule_ids, counts.computes, _is_operator)
    )


def counts_of_run(
    run: Run,
    convention: Convention,
    registry: FormulaRegistry,
    module_at: Callable[[str], nn.Module],
    attention: str,
    user_counts: Mapping[int, Counted],
) -> tuple[Counted, ...]:
    """Return the counts of a run, as :func:`count_calls` does. Warn about user formulas that matched no call.

    Raises InputError for a convention that counts no operator of a profiler trace.
    """
    # Only tools that patch functions by name miss functions stored as modules' attributes (self.act = F.gelu).
    attribute_functions: Collection[tuple[str, Any]] = ()
    if convention.by_name:
        attribute_functions = {(module.path, function) for module in run.modules for function in module.keeps}
    counted = count_calls(
        run.calls, convention, registry, module_at, attention, run.scopes, attribute_functions, user_counts
    )
    if run.params is None:  # a profiler trace
        check_counts_operators(convention.name, counted)
    for sentence in unused_formula_warnings(counted, registry, convention):
        warn(sentence)
    return counted


def user_counts_of(
    calls: Sequence[Call],
    counted: Sequence[Counted] | None,
    registry: FormulaRegistry,
    module_at: Callable[[str], nn.Module],
    attention: str,
    user_counts: Mapping[int, Counted],
) -> dict[int, Counted]:
    """Return the counts made by user formulas under the base convention, by the index of the call.

    ``counted`` are all counts under the base convention; None if not yet computed. ``user_counts`` are the counts by user formulas
    that were loaded from the report's file.
    """
    indices = [i for i, call in enumerate(calls) if i not in user_counts and is_by_user_formula(call, registry)]
    if indices and counted is None:
        counted = count_calls(
            calls, find_convention(BASE_CONVENTION), registry, module_at, attention, user_counts=user_counts
        )
    return {**user_counts, **{i: counted[i] for i in indices if counted is not None}}


@dataclass
class _Counts:
    """Count a run's calls. Each distinct operation is counted once."""

    convention: Convention
    registry: FormulaRegistry
    module_at: Callable[[str], nn.Module]
    attention: str
    counted_as: dict[Operation, tuple[Operation, Count]] = field(default_factory=dict)
    """Maps an operation to the operation that was counted in its place (e.g. without the mask), and to its count."""
    rows: dict[Any, Formula] = field(default_factory=dict)
    """The convention's rows used so far, as formulas."""

    def of_all(self, calls: Iterable[Call]) -> list[Counted]:
        """Return calls with their counts. Most calls repeat an operation that was already counted; a fast path serves these calls."""
        get, no_count = self.counted_as.get, (None, None)
        make_tuple = tuple.__new__  # skips NamedTuple's __new__
        all_counted = list[Counted]()
        for call in calls:
            operation, count = get(call[0], no_count)
            all_counted.append(make_tuple(Counted, (call, count)) if operation is call[0] else self.of(call))
        return all_counted

    def of(self, call: Call) -> Counted:
        """Return a call with its count."""
        operation_and_count = self.counted_as.get(call.operation)
        if operation_and_count is None:
            operation = without_mask(call.operation) if self.attention == "dense" else call.operation
            formula = formula_of(operation, self.registry)
            row = self._row(operation, formula) if formula is not None and formula.is_ours else None
            operation_and_count = operation, self._count(operation, formula, row, call.path)
            if not (_reads_module(formula, operation) or _reads_module(row, operation)):
                self.counted_as[call.operation] = operation_and_count
        operation, count = operation_and_count
        return tuple.__new__(Counted, (call if operation is call[0] else call._replace(operation=operation), count))

    def computes(self, operation: Operation) -> bool:
        """Return whether an operation computes anything. False if the operation is declared to cost nothing."""
        formula = formula_of(operation, self.registry)
        return formula is None or not formula.reason

    def _row(self, operation: Operation, formula: Formula) -> Formula | None:
        """Return the convention's row for an operation, as a formula; None if the convention has no row for the operation."""
        key = _key_of(operation, self.convention.rows)
        if key is not None and key not in self.rows:
            row = formula_for([key], self.convention.rows[key], formula.op)
            # A module class's row applies to the operation of the module's call, not to the module itself.
            self.rows[key] = replace(row, style="op") if row.is_ours else row
        return self.rows.get(key)

    def _count(self, operation: Operation, formula: Formula | None, row: Formula | None, path: str) -> Count:
        if self.convention.registered is not None and (formula is None or formula.is_ours):
            tool_formula = self.convention.registered(operation)
            if tool_formula is not None:
                return self._registered(tool_formula, operation, formula, path)
        if isinstance(operation.target, str) and operation.target in WHY_UNKNOWN:
            return Count(None, "", WHY_UNKNOWN[operation.target])
        if formula is None:
            is_description = isinstance(operation.target, str)  # the observer has only a description of the call
            return Count(
                None,
                "",
                "the observer did not see what this call computed"
                if is_description
                else f"{NO_FORMULA} for {operation.op}",
            )
        if formula.reason == ESCAPE:
            return Count(None, "", "its data leaves torch; computations outside torch are not counted")
        # If a mask's values are unknown, there is no exact count. For a lower bound, assume that the mask keeps no pairs.
        needs_pairs = operation.op in ATTENTIONS and self.attention != "dense" and pairs_in(operation.out) is None
        arguments = formula, operation.target, operation.args, operation.kwargs
        if needs_pairs and not leaves_all(*arguments):
            # For a causal mask, the shapes determine the number of pairs.
            pairs = causal_pairs(*arguments, operation.out)
            if pairs is None and self.attention == LEAST:
                pairs = 0
            if pairs is None:
                return Count(None, "", UNKNOWN_PAIRS)
            operation = operation._replace(out=with_facts(operation.out, pairs=pairs))
        tensors = [*operation.inputs(), *specs_in(operation.out)]
        rule: Any = formula.reason or formula.function
        convention = self.convention
        try:
            cost = self._cost(formula, operation, tensors, path)
            if row is not None:
                formula, rule = row, row.function
                cost = self._cost(row, operation, tensors, path)._replace(macs=cost.macs)
            elif convention.of is not None and formula.is_ours:
                cost = convention.of(cost, operation)._replace(macs=cost.macs)
                rule = convention.of if cost.flops else NOT_COUNTED
        except FormulaError as error:
            if not formula.is_ours:
                raise
            return Count(None, "", str(error))
        is_integer = not convention.integers and any(cost) and is_integral(operation)
        count = Count(cost, rule, "", is_integer)
        return count if formula.is_ours else _count_by_user(count, operation, convention)

    def _registered(
        self, tool_formula: FormulaFunction, operation: Operation, formula: Formula | None, path: str
    ) -> Count:
        """Return the count by a formula that was registered with the tool of the convention. The MACs are from fxflops's own formula."""
        tensors = [*operation.inputs(), *specs_in(operation.out)]
        ours = Cost() if formula is None else self._cost(formula, operation, tensors, path)
        cost = apply(Formula(operation.op, tool_formula), operation, None, path)
        return Count(cost._replace(macs=ours.macs), tool_formula)

    def _cost(self, formula: Formula, operation: Operation, tensors: list[Spec], path: str) -> Cost:
        module = self.module_at(path) if _reads_module(formula, operation) else None
        cost = _applied(formula, operation, module, tensors, path)
        return weighed(cost if self.attention == "dense" else scaled_to_pairs_left(cost, operation), operation, tensors)


def _count_by_user(count: Count, operation: Operation, convention: Convention) -> Count:
    """Return a user formula's count in the unit of a convention.

    If the convention is of a tool that counts MACs, the result is the MACs that the formula states or, without stated MACs, the number that
    the formula returns. fxflops's own MACs convention uses only stated MACs.
    """
    cost = count.cost
    if cost is None or convention.name not in IN_MACS or not (cost.macs or convention is BASE_MACS):
        return count
    return count._replace(cost=macs_alone(cost, operation))


def _reads_module(formula: Formula | None, operation: Operation) -> bool:
    return formula is not None and formula.style != "op" and isinstance(operation.target, type)


def is_by_user_formula(call: Call | Scope, registry: FormulaRegistry) -> bool:
    """Return whether this call of an operation or a module is counted by a user formula."""
    formula = formula_of(call.operation, registry)
    return formula is not None and not formula.is_ours


def unused_formula_warnings(counted: Iterable[Counted], registry: FormulaRegistry, convention: Convention) -> list[str]:
    """If a user formula counted nothing because the code calls the op by another name, return a warning that says so.

    Also return a warning for each row of a user's convention whose op is unknown.
    """
    formulas = {**registry.user_formulas(), **_user_rows(registry, convention)}
    if not formulas:
        return []
    counted = tuple(counted)
    used = {id(each.rule) for each in counted}
    user_function_ids = {id(formula.function) for formula, _ in formulas.values()}
    calls_by_spelling: dict[str, Counter[str]] = {}
    for each in counted:
        if id(each.rule) not in user_function_ids:
            calls_by_spelling.setdefault(each.call.op, Counter())[_spelled(each.call.target)] += 1
    unused = {
        formula.function: (key, op) for key, (formula, op) in formulas.items() if id(formula.function) not in used
    }
    ops = {formula.op for _, formula in registry.items()} | {each.call.op for each in counted}
    unknown_rows = [
        f"the row for {op!r} counts nothing: the op {op!r} is unknown{did_you_mean(op, ops)}"
        for key, (_, op) in formulas.items()
        if isinstance(key, str) and op == key and op not in ops
    ]
    return unknown_rows + [
        f"the formula for {_spelled(key)} counted nothing: the code calls {op} as "
        + ", ".join(f"{spelling} x{calls}" for spelling, calls in calls_by_spelling[op].items())
        + "; register the formula for this name"
        for key, op in unused.values()
        if op in calls_by_spelling and _spelled(key) not in calls_by_spelling[op]
    ]


def _user_rows(registry: FormulaRegistry, convention: Convention) -> dict[Any, tuple[Formula, str]]:
    """Return a convention's rows that the user wrote, by key. Each row comes with the name of the row's op."""
    rows = {key: formula_for([key], row, "") for key, row in convention.rows.items() if not Formula("", row).is_ours}
    return {
        key: (row, key if isinstance(key, str) else getattr(_entry_at(key, registry), "op", ""))
        for key, row in rows.items()
    }


def _is_operator(target: Any) -> bool:
    return isinstance(target, (OpOverload, OpOverloadPacket))


def _spelled(target: Any) -> str:
    """Return a target's name as written in code, e.g. ``torch.nn.Linear``, ``torch.nn.functional.linear``, ``aten::linear``."""
    if isinstance(target, type) and target in vars(nn).values():
        return f"torch.nn.{target.__name__}"
    name = target if isinstance(target, str) else name_of(target)
    return name if "::" in name else name.replace(":", ".")


def formula_of(operation: Operation, registry: FormulaRegistry) -> Formula | None:
    """Return the formula that counts an operation; None if no formula is registered for the operation."""
    return _entry_at(operation.target, registry)


def _entry_at(target: Any, registry: FormulaRegistry) -> Formula | None:
    return registry.find_class(target)[1] if isinstance(target, type) else registry.find(target)


def _key_of(operation: Operation, rows: Mapping[Any, FormulaFunction]) -> Any:
    """Return the key under which a convention's row counts an operation; None if the convention has no row for the operation.

    The key is the module class whose forward runs, the called function, or the op's name.
    """
    if not rows:
        return None
    for cls in operation.target.__mro__ if isinstance(operation.target, type) else ():
        if cls in rows:
            return cls
        if "forward" in vars(cls):
            break
    spellings = operation.target, getattr(operation.target, "overloadpacket", None), operation.op
    return next((key for key in spellings if key in rows), None)


def _applied(
    formula: Formula, operation: Operation, module: nn.Module | None, tensors: Iterable[Spec], path: str
) -> Cost:
    """Return the cost of an operation on these tensors. For nested tensors, return the sum over the nested tensors' parts."""
    counts = [len(spec.facts["parts"]) for spec in tensors if spec.facts and "parts" in spec.facts]
    if not counts:
        return apply(formula, operation, module, path)
    cost = Cost()
    for i in range(max(counts)):
        args, kwargs, out = (_part(value, i) for value in (operation.args, dict(operation.kwargs), operation.out))
        cost = cost.plus(apply(formula, operation._replace(args=args, kwargs=kwargs, out=out), module, path))
    return cost


def _part(value: Any, i: int) -> Any:
    """Return the value with each nested tensor's spec replaced by the spec of its i-th part."""
    if isinstance(value, Spec):
        return value.facts["parts"][i] if "parts" in value.facts else value
    if isinstance(value, tuple):
        return tuple(_part(item, i) for item in value)
    if isinstance(value, dict):
        return {key: _part(item, i) for key, item in value.items()}
    return value


def weighed(cost: Cost, operation: Operation, tensors: Iterable[Spec]) -> Cost:
    """Return the cost in real operations. A complex operation takes several real ones. ``tensors`` are the operation's tensors."""
    if True not in [spec.dtype.is_complex for spec in tensors] or not is_complex(operation):
        return cost
    return Cost(*map(operator.mul, cost, COMPLEX))
