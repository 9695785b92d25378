"""From rolled-up rows to the plain data that renderers take, and the tree as a view of its own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .listings import highest
from .missing import Missing
from .outcome import Run
from .records import PHASES, Counted, Node
from .render import data
from .render.data import NO_OPS, OperatorShare, Summary, TreeRow
from .rollup import Item, ModuleRow, OperatorRow, prefixes, sums_of


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


def tree_row(
    modules: Mapping[str, ModuleRow], items: Iterable[Item], nodes: Iterable[Node], phase: str = PHASES[0]
) -> TreeRow:
    """The model's modules, one inside the other, the root first, with what they cost in a phase."""
    own = sums_of(((item.path, item.op), item.sums) for item in items)
    own_ops: dict[str, dict[str, int]] = {}
    for (path, op), sums in sorted(own.items(), key=lambda item: -item[1].flops):
        if sums.flops or sums.missing:
            own_ops.setdefault(path, {})[op] = sums.calls
    children: dict[str, list[str]] = {}
    for path in modules:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    return _row("", modules, children, own_ops, highest(nodes, phase, lambda node: prefixes(node.path)))


def summary_of(
    run: Run,
    tree: TreeRow,
    operators: Mapping[str, OperatorRow],
    counted: Sequence[Counted],
    missing: Iterable[Missing],
    paste: str,
    flops: Mapping[str, int | None],
    asked: Mapping[str, str],
) -> Summary:
    """What the one-screen summary shows; ``flops`` by phase, ``asked`` the convention and attention."""
    where, params = run.environment, run.params
    seconds = [node.timing.median for node in run.nodes if node.timing is not None]
    return Summary(
        title=run.model,
        inputs=run.inputs,
        setting=f"{where.device} · {where.mode} · {where.grad} · {run.trace}",
        macs=tree.macs,
        flops=tree.flops,
        int_ops=sum(each.int_ops for each in counted if each.call.phase == "forward"),
        backward_flops=flops["backward"],
        recompute_flops=flops["recompute"],
        optimizer_flops=flops["optimizer"],
        **asked,
        counted_calls=sum(each.cost is not None for each in counted),
        calls=len(counted),
        params_total=params.total,
        params_trainable=params.trainable,
        params_frozen=params.frozen,
        buffers=params.buffers,
        params_bytes=params.bytes,
        latency=run.latency,
        nodes_seconds=sum(seconds) if seconds else None,
        backward_latency=run.backward_latency,
        backward_nodes_seconds=sum(n.backward_timing.median for n in run.nodes if n.backward_timing is not None),
        bytes_peak=run.peak,
        memory=run.memory,
        peak_at=run.memory.at,
        peak_phase=run.memory.phase,
        modules=tree.children,
        operators=[OperatorShare(r.key, r.calls, r.total.flops, r.total.seconds) for r in operators.values()],
        missing=[data.Missing(m.op, m.calls, m.path, m.shapes, m.site, m.reason) for m in missing],
        paste=paste,
    )


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
        own_ops=own_ops.get(path, NO_OPS),
        missing=row.total.missing,
        seconds=row.total.seconds,
        own_seconds=row.own.seconds,
        bytes_peak=peaks.get(path),
        children=tuple(_row(child, modules, children, own_ops, peaks) for child in children.get(path, ())),
    )
