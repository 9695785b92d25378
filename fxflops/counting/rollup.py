"""Sum the counted calls by module path, operator or dtype. The sums are computed from calls, never from ``children()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..errors import InputError
from ..records import ALL_PHASES, PHASES, Counted, Module, prefixes, specs_in

K = TypeVar("K")


class Sums(NamedTuple):
    """The sums of a set of calls. ``seconds`` is None if no call was timed. ``missing`` is the number of calls without a cost."""

    calls: int = 0
    flops: int = 0
    macs: int = 0
    int_ops: int = 0
    activations: int = 0
    seconds: float | None = None
    missing: int = 0


ZERO = Sums()


class Item(NamedTuple):
    """One call to be summed: its module path, operator, dtype and numbers."""

    path: str
    op: str
    dtype: str
    sums: Sums


class ModuleRow(NamedTuple):
    """One module. ``total`` sums the operations in the module's subtree; ``own`` sums the operations directly in the module.

    ``calls`` is how often the module was called. ``params`` is the subtree's number of parameters, None if unknown; ``frozen``
    is the number of these parameters that require no gradient.
    """

    path: str
    cls: str
    calls: int
    params: int | None
    own_params: int | None
    total: Sums
    own: Sums
    frozen: int = 0

    @property
    def flops(self) -> int:
        return self.total.flops

    @property
    def macs(self) -> int:
        return self.total.macs

    @property
    def seconds(self) -> float | None:
        return self.total.seconds

    def __repr__(self) -> str:
        """Return the row on one line: ``layer1 (Sequential): 147,968 params, 928,505,856 FLOPs, 462,422,016 MACs, calls: 1``."""
        params = "" if self.params is None else f"{self.params:,} params, "
        return f"{self.path or '(root)'} ({self.cls}): {params}{_sums_text(self.total)}, calls: {self.calls}"


@dataclass(frozen=True, slots=True, repr=False)
class OperatorRow:
    """The sums of one operator or dtype. ``own`` equals ``total``."""

    key: str
    calls: int
    total: Sums

    @property
    def own(self) -> Sums:
        return self.total

    @property
    def flops(self) -> int:
        return self.total.flops

    @property
    def macs(self) -> int:
        return self.total.macs

    @property
    def seconds(self) -> float | None:
        return self.total.seconds

    def __repr__(self) -> str:
        return f"{self.key}: {_sums_text(self.total)}, calls: {self.calls}"


def _sums_text(sums: Sums) -> str:
    took = "" if sums.seconds is None else f", {sums.seconds:.3g} s"
    return f"{sums.flops:,} FLOPs, {sums.macs:,} MACs{took}"


def items_of(counted: Iterable[Counted]) -> list[Item]:
    """Return an item for each counted call. Activations are the output elements of calls with MACs, as in fvcore."""
    # For speed, make the NamedTuple by tuple.__new__, which is three times as fast, and let equal operations share an item.
    items, untimed, make_tuple = list[Item](), dict[Any, Item](), tuple.__new__
    for each in counted:
        (operation, path, _, _, seconds, _, _), count = each
        item = untimed.get((operation, count))
        if item is None:
            item = untimed[operation, count] = _untimed_item(each)
        _, op, dtype, sums = item
        items.append(make_tuple(Item, (path, op, dtype, sums if seconds is None else sums._replace(seconds=seconds))))
    return items


def _untimed_item(counted: Counted) -> Item:
    operation, macs = counted.call.operation, counted.macs
    outputs = list(specs_in(operation.out))
    activations = sum(spec.numel() for spec in outputs) if macs else 0
    first = outputs[0] if outputs else next(operation.inputs(), None)
    dtype = "" if first is None else first.dtype_name
    sums = Sums(1, counted.flops, macs, counted.int_ops, activations, None, int(bool(counted.missing)))
    return Item("", operation.op, dtype, sums)


def together(sums: Sequence[Sums]) -> Sums:
    """Add several sums into one. ``seconds`` is None only if no sum has a time."""
    if len(sums) < 2:
        return sums[0] if sums else ZERO
    calls, flops, macs, int_ops, activations, seconds, missing = zip(*sums, strict=True)
    timed = [number for number in seconds if number is not None]
    total_seconds = sum(timed) if timed else None
    return Sums(sum(calls), sum(flops), sum(macs), sum(int_ops), sum(activations), total_seconds, sum(missing))


def sums_of(pairs: Iterable[tuple[K, Sums]]) -> dict[K, Sums]:
    """Return the total of each key's sums, in order of first appearance."""
    groups: dict[K, list[Sums]] = {}
    for key, sums in pairs:
        groups.setdefault(key, []).append(sums)
    return {key: together(group) for key, group in groups.items()}


def by_module(
    items: Iterable[Item], modules: Iterable[Module], module_calls: Mapping[str, int]
) -> dict[str, ModuleRow]:
    """Return a row for each module of the model, by path. Modules that were not called have a row, too."""
    all_modules = list(modules)
    own_by_path = sums_of([(path, sums) for path, _, _, sums in items])
    sums_inside: dict[str, list[Sums]] = {}
    paths = {module.path for module in all_modules}
    for path in own_by_path.keys() - paths:  # the module was removed: add its sums to the nearest ancestor that exists
        ancestor = path
        while ancestor not in paths:
            ancestor = ancestor.rpartition(".")[0]
        sums_inside.setdefault(ancestor, []).append(own_by_path[path])
    params: dict[str, int] = {}
    frozen_below: dict[str, int] = {}
    rows, make_tuple = [], tuple.__new__
    for module in reversed(all_modules):  # children before their parents
        path, cls, own_params, _, frozen_params = module
        own_sums, child_sums = own_by_path.get(path, ZERO), sums_inside.get(path)
        total = (
            own_sums if child_sums is None else together(child_sums if own_sums is ZERO else [own_sums, *child_sums])
        )
        all_params = None if own_params is None else own_params + params.get(path, 0)
        frozen_params += frozen_below.get(path, 0)
        row = path, cls, module_calls.get(path, 0), all_params, own_params, total, own_sums, frozen_params
        rows.append((path, make_tuple(ModuleRow, row)))
        if path:
            parent = path.rpartition(".")[0]
            params[parent] = params.get(parent, 0) + (all_params or 0)
            if frozen_params:
                frozen_below[parent] = frozen_below.get(parent, 0) + frozen_params
            if total is not ZERO:
                sums_inside.setdefault(parent, []).append(total)
    return dict(reversed(rows))


def by_operator(items: Iterable[Item], key: Callable[[Item], str] = lambda item: item.op) -> dict[str, OperatorRow]:
    """Return a row for each operator, most FLOPs first. Another ``key`` groups the items by another property, e.g. the dtype."""
    sums = sums_of((key(item), item.sums) for item in items)
    rows = [OperatorRow(name, total.calls, total) for name, total in sums.items()]
    return {row.key: row for row in sorted(rows, key=lambda row: -row.total.flops)}


def by_module_and_operator(items: Iterable[Item], modules: Iterable[Module]) -> dict[str, dict[str, OperatorRow]]:
    """Return, by module path, a row for each operator in the module's subtree."""
    rows: dict[str, dict[str, OperatorRow]] = {module.path: {} for module in modules}
    own = sums_of(((item.path, item.op), item.sums) for item in items)
    total = sums_of(((prefix, op), sums) for (path, op), sums in own.items() for prefix in prefixes(path))
    for (path, op), sums in total.items():
        rows.setdefault(path, {})[op] = OperatorRow(op, sums.calls, sums)
    return rows


def check_phase(phase: str, *, or_all: bool = False) -> str:
    """Return ``phase``. Raises InputError if it is not one of :data:`~fxflops.records.PHASES`. ``or_all``: "all" is allowed, too."""
    known = (*PHASES, ALL_PHASES) if or_all else PHASES
    if phase not in known:
        raise InputError(f"unknown phase {phase!r}; expected one of {', '.join(map(repr, known))}")
    return phase
