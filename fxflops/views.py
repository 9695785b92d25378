"""From rolled-up rows to the plain data that renderers take, and the tree as a view of its own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .records import Node
from .render.data import OperatorShare, TreeRow
from .rollup import Item, ModuleRow, OperatorRow, Sums, prefixes, sum_by


@dataclass(frozen=True, slots=True)
class Tree:
    """A view of a report's modules: its text by ``str``, HTML in notebooks."""

    root: TreeRow
    depth: int | None
    sort_by: str | None
    fold: bool
    columns: Sequence[str] | None
    units: str | None

    def __str__(self) -> str:
        from .render.tree import tree

        columns = None if self.columns is None else list(self.columns)
        return tree(
            self.root, depth=self.depth, sort_by=self.sort_by, fold=self.fold, columns=columns, units=self.units
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def tree_row(modules: Mapping[str, ModuleRow], items: Iterable[Item], nodes: Iterable[Node]) -> TreeRow:
    """The model's modules, one inside the other, the root first."""
    own_ops: dict[str, dict[str, int]] = {}
    for (path, op), sums in sorted(sum_by(items, lambda item: (item.path, item.op)).items(), key=_dearest_first):
        if sums.flops or sums.missing:
            own_ops.setdefault(path, {})[op] = sums.calls
    children: dict[str, list[str]] = {}
    for path in modules:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    return _row("", modules, children, own_ops, _peaks(nodes))


def shares(operators: Mapping[str, OperatorRow]) -> tuple[OperatorShare, ...]:
    """Each operator with what all its calls cost."""
    return tuple(OperatorShare(r.key, r.calls, r.total.flops, r.total.seconds) for r in operators.values())


def _dearest_first(item: tuple[tuple[str, str], Sums]) -> int:
    return -item[1].flops


def _row(
    path: str,
    modules: Mapping[str, ModuleRow],
    children: Mapping[str, list[str]],
    own_ops: Mapping[str, Mapping[str, int]],
    peaks: Mapping[str, int],
) -> TreeRow:
    row = modules[path]
    return TreeRow(
        name=path.rpartition(".")[2],
        cls=row.cls,
        path=path,
        calls=row.calls,
        params=row.params,
        macs=row.total.macs,
        flops=row.total.flops,
        own_params=row.own_params,
        own_macs=row.own.macs,
        own_flops=row.own.flops,
        own_ops=own_ops.get(path, {}),
        missing=row.total.missing,
        seconds=row.total.seconds,
        own_seconds=row.own.seconds,
        bytes_peak=peaks.get(path),
        children=tuple(_row(child, modules, children, own_ops, peaks) for child in children.get(path, ())),
    )


def _peaks(nodes: Iterable[Node]) -> dict[str, int]:
    """The largest of the peaks of each module's nodes."""
    peaks: dict[str, int] = {}
    for node in nodes:
        if node.bytes_peak is not None:
            for prefix in prefixes(node.path):
                peaks[prefix] = max(peaks.get(prefix, 0), node.bytes_peak)
    return peaks
