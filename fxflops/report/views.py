"""The plain data that renderers take, built from a report's sums; and the tree, which prints itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..conventions import OF_MACS
from ..counting.collectives import by_group, collectives
from ..counting.counted_run import CountedRun
from ..counting.rollup import items_of, sums_of, together
from ..counting.steps import OUTSIDE, captured, outside, unobserved
from ..records import Counted, Spec, grouped, prefixes, specs_in
from ..render.columns import MODULES, Column, module_values, titled
from ..render.data import Summary, TreeRow
from ..render.exports import Table, Tabular
from ..render.fold import work_name
from ..render.tree import Options, check_options, notes_on, rows_of, tree
from .compiled import compiled_view
from .rows import PARTS, highest
from .tables import TabledRun


@dataclass(frozen=True, slots=True, repr=False)
class Tree(Tabular):
    """A report's modules as a tree: it prints itself, is a table in a notebook, and has the exports of a table.

    The table has a row for each line of the tree, with raw values. Of identical modules in one row, ``count`` is their
    number; the other values are those of one, and the modules inside have the path of the first.
    """

    root: TreeRow
    options: Options
    provenance: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_options(self.root, **self.options)

    def __call__(self, depth: int | None = None, columns: Sequence[str] | str | None = None) -> Tree:
        """Return the tree with another depth and other columns: a summary has it as an attribute, a report as a method."""
        return replace(
            self, options={**self.options, "depth": depth, "columns": columns or self.options.get("columns")}
        )

    def _as_table(self) -> Table:
        shown, lines, _ = rows_of(self.root, **self.options)
        count = [Column("count", "count", "number")] if any(line.count > 1 for line in lines) else []
        shares = {c.key: c for c in titled(PARTS, self.options.get("counted", "FLOPs")) if c.kind == "%"}
        columns = (MODULES[0], MODULES[1], *count, *(shares.get(c.key, c) for c in shown))
        rows = []
        for line in lines:
            values = {**module_values(line.row, self.root), "count": line.count}
            rows.append(
                (line.path, line.cls if line.path else self.root.cls, *(values[column.key] for column in columns[2:]))
            )
        return Table("modules", columns, tuple(rows), bool(self.options["columns"]), self.provenance)

    def _text(self) -> str:
        return tree(self.root, **self.options)

    def _blocks(self) -> Iterable[str]:
        from ..render.html import note, tree_table

        return [tree_table(self.root, **self.options), *map(note, notes_on(self.root, **self.options))]


def _shapes(calls: Iterable[Iterable[Spec]]) -> str:
    """Return the tensors of a module's first call, and how many other shapes there are in its others."""
    first, *others = dict.fromkeys(tuple((spec, spec.dtype) for spec in specs) for specs in calls) or [()]
    return " ".join(repr(spec) for spec, _ in first) + (f" and {len(others)} more" if others else "")


def tree_row(report: CountedRun, phase: str) -> TreeRow:
    """Return the root of the module tree, with the costs of one phase in each row."""
    modules = report.by_module(phase)
    own = sums_of(((item.path, item.op), item.sums) for item in report._items(phase))
    own_ops: dict[str, dict[str, int]] = {}  # by module, its own operators with their calls, the most FLOPs first
    for (path, op), sums in sorted(own.items(), key=lambda item: -item[1].flops):
        if sums.flops or sums.missing:
            own_ops.setdefault(path, {})[op] = sums.calls
    scopes = grouped((scope.path, scope) for scope in report.scopes)
    children = grouped((path.rpartition(".")[0], path) for path in modules if path)
    if scopes and report.counted and all(isinstance(each.call.target, str) for each in report.counted):
        # No operations were observed, and of modules only those of which there are calls.
        looked_at = {prefix for path in scopes for prefix in prefixes(path)}
        children = {path: [each for each in inside if each in looked_at] for path, inside in children.items()}
    peaks = highest(report.nodes, phase, lambda node: prefixes(node.path))

    def of(path: str) -> TreeRow:
        row = modules[path]
        return TreeRow(
            name=path.rpartition(".")[2],
            cls=row.cls,
            path=path,
            calls=row.calls,
            params=row.params,
            frozen=row.frozen,
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
            inputs=_shapes(scope.inputs() for scope in scopes.get(path, ())),
            output=_shapes(specs_in(scope.out) for scope in scopes.get(path, ())),
            children=tuple(map(of, children.get(path, ()))),
        )

    return _without(of("")._replace(cls=report.model), outside(report._run, report.counted, phase))


def _without(root: TreeRow, others: Sequence[Counted]) -> TreeRow:
    """Return the root with the calls made outside the model as a row of their own, instead of in the model's own work."""
    if not others:
        return root
    by_op = sums_of((item.op, item.sums) for item in items_of(others))
    sums = together([*by_op.values()])
    ops = {op: each.calls for op, each in by_op.items() if each.flops or each.missing}
    row = TreeRow(
        work_name("outside", ops), "", OUTSIDE, 1, 0, sums.macs, sums.flops, missing=sums.missing, seconds=sums.seconds
    )
    return root._replace(
        own_macs=root.own_macs - sums.macs,
        own_flops=root.own_flops - sums.flops,
        own_seconds=None if root.own_seconds is None else root.own_seconds - (sums.seconds or 0.0),
        own_ops={op: left for op, calls in root.own_ops.items() if (left := calls - ops.get(op, 0))},
        children=(*root.children, row),
    )


def summary_of(report: TabledRun, root: TreeRow, utilization: float | None) -> Summary:
    """Return the data of the one-screen summary; ``utilization`` is the MFU, None if it is not known."""
    where, compiled = report.environment, compiled_view(report)
    return Summary(
        title=report.name,
        inputs=report.inputs,
        setting=" · ".join(filter(None, [where.device, where.mode, where.grad, report.trace])),
        root=root,
        int_ops=report.total_int_ops,
        backward_flops=report.total_backward_flops,
        recompute_flops=report._flops_of("recompute"),
        optimizer_flops=report.total_optimizer_flops,
        gradient_flops=report.total_gradient_flops,
        compiled=where.compiled,
        compiled_run=None if compiled is None else compiled.shown,
        convention=report.convention,
        unit=OF_MACS.get(report.convention, "FLOPs"),
        attention=report.attention if report._attends else "",
        counted_calls=sum(not each.missing for each in report.counted),
        calls=len(report.counted),
        params=report.params,
        latency=report.timing,
        nodes_seconds=report.total_time,
        backward_latency=report.backward_timing,
        backward_nodes_seconds=sum(n.backward_timing.median for n in report.nodes if n.backward_timing) or None,
        on_accelerator=any(node.host_timing is not None for node in report.nodes),
        steps=report.step_times(),
        instruments=report.instrument_time,
        device_seconds=report.device_time,
        unsteady=report.unsteady,
        collectives=by_group(collectives(report.counted)),
        bytes_peak=report.max_memory,
        memory=report.memory,
        peak_at=report.memory.at,
        peak_phase=report.memory.phase,
        operators=[*report.by_operator().values()],
        missing=report.missing,
        paste=report.recipe(),
        utilization=utilization,
        provenance=report.provenance,
        remarks=[
            *filter(None, [unobserved(report._run), captured(report._run)]),
            *(f"{each.call.op} in {each.call.path or 'the root'}: {said}" for each, said in report.remarks.items()),
        ],
    )
