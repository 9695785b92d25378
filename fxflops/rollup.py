"""Rolling up: sums over the counted calls by module path, by operator, by dtype. Never walks ``children()``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from .errors import InputError
from .inventory import Module
from .records import PHASES, Counted, specs_in

K = TypeVar("K")


class Sums(NamedTuple):
    """What a set of calls adds up to. ``seconds`` is None where nothing was timed; ``missing`` calls have no formula."""

    calls: int = 0
    flops: int = 0
    macs: int = 0
    int_ops: int = 0
    activations: int = 0
    seconds: float | None = None
    missing: int = 0

    def plus(self, other: Sums) -> Sums:
        """Both sets together; not timed and timed is timed."""
        seconds = self.seconds if other.seconds is None else (self.seconds or 0.0) + other.seconds
        return Sums(
            self.calls + other.calls,
            self.flops + other.flops,
            self.macs + other.macs,
            self.int_ops + other.int_ops,
            self.activations + other.activations,
            seconds,
            self.missing + other.missing,
        )


NOTHING = Sums()


class Item(NamedTuple):
    """One thing to be summed: where it was done, by which operator, in which dtype, and how much."""

    path: str
    op: str
    dtype: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module: ``total`` of its subtree, ``own`` of what is done in it directly. ``calls`` is how often it was called."""

    path: str
    cls: str
    calls: int
    params: int
    own_params: int
    total: Sums
    own: Sums


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator (or dtype): ``total`` and ``own`` are the same sums."""

    key: str
    calls: int
    total: Sums

    @property
    def own(self) -> Sums:
        return self.total


def item_of(counted: Counted) -> Item:
    """A counted call as an item. Activations are the elements that contractions put out (fvcore's definition)."""
    call, macs = counted.call, counted.macs
    outputs = list(specs_in(call.out))
    activations = sum(spec.numel() for spec in outputs) if macs else 0
    dtype = next((spec.dtype_name for spec in itertools.chain(outputs, call.inputs())), "")
    sums = Sums(1, counted.flops, macs, counted.int_ops, activations, call.seconds, int(counted.cost is None))
    return Item(call.path, call.op, dtype, sums)


def sum_by(items: Iterable[Item], key: Callable[[Item], K]) -> dict[K, Sums]:
    """The sums of the items of each key, in order of first appearance."""
    sums: dict[K, Sums] = {}
    for item in items:
        found = sums.get(at := key(item))
        sums[at] = item.sums if found is None else found.plus(item.sums)
    return sums


def prefixes(path: str) -> Iterator[str]:
    """A path with all its ancestors, the root "" first: ``"a.b" -> "", "a", "a.b"``."""
    yield ""
    end = path.find(".")
    while end >= 0:
        yield path[:end]
        end = path.find(".", end + 1)
    if path:
        yield path


def by_module(
    items: Iterable[Item], modules: Iterable[Module], module_calls: Mapping[str, int]
) -> dict[str, ModuleRow]:
    """A row for each module of the model, called or not; parameters of a subtree are summed from its modules' own."""
    own = sum_by(items, lambda item: item.path)
    total: dict[str, Sums] = {}
    for path, sums in own.items():
        for prefix in prefixes(path):
            total[prefix] = total.get(prefix, NOTHING).plus(sums)
    params: dict[str, int] = {}
    listed = list(modules)
    for module in listed:
        for prefix in prefixes(module.path):
            params[prefix] = params.get(prefix, 0) + module.params
    return {
        m.path: ModuleRow(
            m.path,
            m.cls,
            module_calls.get(m.path, 0),
            params[m.path],
            m.params,
            total.get(m.path, NOTHING),
            own.get(m.path, NOTHING),
        )
        for m in listed
    }


def by_operator(items: Iterable[Item], key: Callable[[Item], str] = lambda item: item.op) -> dict[str, OperatorRow]:
    """A row for each operator, largest FLOPs first."""
    rows = [OperatorRow(name, sums.calls, sums) for name, sums in sum_by(items, key).items()]
    return {row.key: row for row in sorted(rows, key=lambda row: -row.total.flops)}


def by_module_and_operator(items: Iterable[Item], modules: Iterable[Module]) -> dict[str, dict[str, OperatorRow]]:
    """For each module, the operators of its subtree."""
    found: dict[str, dict[str, Sums]] = {module.path: {} for module in modules}
    for (path, op), sums in sum_by(items, lambda item: (item.path, item.op)).items():
        for prefix in prefixes(path):
            row = found.setdefault(prefix, {})
            row[op] = row.get(op, NOTHING).plus(sums)
    return {path: {op: OperatorRow(op, s.calls, s) for op, s in ops.items()} for path, ops in found.items()}


def check_phase(phase: str) -> str:
    """The word itself; InputError where it is not one of :data:`PHASES`."""
    if phase not in PHASES:
        raise InputError(f"unknown phase {phase!r}: one of {', '.join(map(repr, PHASES))}")
    return phase
