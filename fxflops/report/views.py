"""Build the data of a report that renderers show: the module tree and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..conventions import BASE_CONVENTION, OF_MACS
from ..counting import totals
from ..counting.collectives import by_group, collectives
from ..counting.counted_run import CountedRun
from ..counting.rollup import Sums, by_operator, items_of, sums_of, together
from ..counting.steps import captured, outside, unobserved, unsteady
from ..counting.uncounted import recipe
from ..records import FORWARD, OUTSIDE, Spec, grouped, prefixes, specs_in
from ..records import PARTS as OF_PHASE
from ..render.columns import MODULES, Column, module_values, titled
from ..render.data import Summary, TreeRow
from ..render.exports import Table, Tabular
from ..render.fold import work_name
from ..render.tree import Options, check_options, notes_on, rows_of, tree
from .compiled import compiled_view
from .per_token import active_params
from .tables import PARTS, checked_modules, highest

NAMED = 0.1
"""An operator that counts nothing is named in a row's work if it took at least this share of the row's time."""


@dataclass(frozen=True, slots=True, repr=False)
class Tree(Tabular):
    """A report's modules as a tree. ``print`` shows the tree, a notebook shows a table, and ``to_*`` methods export the table.

    The table has a row of raw values for each line of the tree. If a row stands for several identical modules, ``count`` is the number of
    these modules, and the other values are for one module. Submodules are then listed with the path of the first module.
    """

    root: TreeRow
    options: Options
    provenance: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_options(self.root, **self.options)

    def __call__(
        self,
        depth: int | None = None,
        columns: Sequence[str] | str | None = None,
        *,
        sort_by: str | None = None,
        fold: bool | None = None,
        units: str | None = None,
    ) -> Tree:
        """Return the tree with other options. So ``summary.tree(...)`` works like ``report.tree(...)``."""
        given_options = {"columns": columns, "sort_by": sort_by, "fold": fold, "units": units}
        new_options: Any = {name: value for name, value in given_options.items() if value is not None}
        return replace(self, options={**self.options, **new_options, "depth": depth})

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
    """Return the tensors of a module's first call as text. Add the number of other shapes that appear in the module's other calls."""
    first, *others = dict.fromkeys(tuple((spec, spec.dtype) for spec in specs) for specs in calls) or [()]
    return " ".join(repr(spec) for spec, _ in first) + (f" and {len(others)} more" if others else "")


def tree_row(counted_run: CountedRun, phase: str, with_shapes: bool = True) -> TreeRow:
    """Return the root of the module tree. Each row of the tree has a module's costs in one phase.

    Pass ``with_shapes=False`` for views without shapes: reading the shapes takes half of the time.
    """
    run = counted_run.run
    modules = checked_modules(counted_run, phase)
    outside_work = sums_of((item.op, item.sums) for item in items_of(outside(run, counted_run.counted, phase)))
    own_work = _own_work(counted_run, phase, outside_work)
    scopes = grouped((scope.path, scope) for scope in run.scopes)
    calls_shown = scopes if with_shapes else {}
    children = grouped((path.rpartition(".")[0], path) for path in modules if path)
    if scopes and counted_run.counted and all(isinstance(each.call.target, str) for each in counted_run.counted):
        # No operations were observed: show only modules that were called, and the modules that contain them.
        called = {prefix for path in scopes for prefix in prefixes(path)}
        children = {path: [child for child in paths if child in called] for path, paths in children.items()}
    peaks = highest(run.nodes, phase, lambda node: prefixes(node.path))

    def row_at(path: str) -> TreeRow:
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
            own_ops=_named(own_work.get(path, {})),
            own_counting=_counting(own_work.get(path, {})),
            missing=row.total.missing,
            seconds=row.total.seconds,
            own_seconds=row.own.seconds,
            bytes_peak=peaks.get(path),
            inputs=_shapes(scope.inputs() for scope in calls_shown.get(path, ())),
            output=_shapes(specs_in(scope.out) for scope in calls_shown.get(path, ())),
            children=tuple(map(row_at, children.get(path, ()))),
        )

    return _with_outside(row_at("")._replace(cls=run.model), outside_work)


def _own_work(counted_run: CountedRun, phase: str, outside_work: Mapping[str, Sums]) -> dict[str, dict[str, Sums]]:
    """For each module path, return the sums of each operator that the module calls directly. The root's sums exclude the operators outside
    the model (``outside_work``)."""
    work: dict[str, dict[str, Sums]] = {}
    for (path, op), sums in sums_of(((item.path, item.op), item.sums) for item in counted_run.items(phase)).items():
        work.setdefault(path, {})[op] = sums
    for op, sums in outside_work.items():
        if op in (of_root := work.get("", {})):
            of_root[op] = _minus(of_root[op], sums)
    return work


def _minus(sums: Sums, others: Sums) -> Sums:
    seconds = None if sums.seconds is None else sums.seconds - (others.seconds or 0.0)
    return sums._replace(
        calls=sums.calls - others.calls,
        flops=sums.flops - others.flops,
        missing=sums.missing - others.missing,
        seconds=seconds,
    )


def _counting(work: Mapping[str, Sums]) -> frozenset[tuple[str, int]]:
    """Return the operators that count something or lack a formula, with their numbers of calls."""
    return frozenset((op, sums.calls) for op, sums in work.items() if sums.flops or sums.missing)


def _named(work: Mapping[str, Sums]) -> dict[str, int]:
    """Return the operators that name some work, with their numbers of calls. The operator that took the most time comes first; without times,
    the one with the most FLOPs.

    An operator that counts nothing is named if it took at least a tenth of the time. Times that belong to no operator are not named.
    """
    least = NAMED * sum(sums.seconds or 0.0 for sums in work.values())
    by_size = sorted(work.items(), key=lambda entry: (-(entry[1].seconds or 0.0), -entry[1].flops))
    return {
        op: sums.calls
        for op, sums in by_size
        if op[:1] != "("  # such as "(no op)" and "(not observed)"
        and sums.calls
        and (sums.flops or sums.missing or (sums.seconds and sums.seconds >= least))
    }


def _with_outside(root: TreeRow, work: Mapping[str, Sums]) -> TreeRow:
    """Return the root with a separate row for the operators outside the model, whose sums are ``work``. The root's own work excludes them."""
    if not work:
        return root
    sums = together([*work.values()])
    row = TreeRow(
        work_name("outside", _named(work)),
        "",
        OUTSIDE,
        1,
        0,
        sums.macs,
        sums.flops,
        missing=sums.missing,
        seconds=sums.seconds,
    )
    return root._replace(
        own_macs=root.own_macs - sums.macs,
        own_flops=root.own_flops - sums.flops,
        own_seconds=None if root.own_seconds is None else root.own_seconds - (sums.seconds or 0.0),
        children=(*root.children, row),
    )


def _macs_at_zero(counted_run: CountedRun) -> float:
    """Return the share of the forward's MACs in calls that the convention counts as 0.

    For example, a tool that hooks modules counts functions as 0. If the tool charges a whole module, the calls inside the module do not
    count as 0, because the charge covers them.
    """
    if counted_run.convention == BASE_CONVENTION or not counted_run.forward.macs:
        return 0.0
    calls = len(counted_run.run.calls)
    charged = {each.call.path for each in counted_run.counted[calls:] if each.flops}
    at_zero = sum(
        each.macs
        for each in counted_run.counted[:calls]
        if each.macs
        and each.call.phase in OF_PHASE[FORWARD]
        and not each.flops
        and each.cost is not None
        and charged.isdisjoint(prefixes(each.call.path))
    )
    return at_zero / counted_run.forward.macs


def summary_of(counted_run: CountedRun, root: TreeRow, utilization: float | None) -> Summary:
    """Return the data of the one-screen summary. ``utilization`` is the MFU; None if the MFU is unknown."""
    run, counted, environment = counted_run.run, counted_run.counted, counted_run.run.environment
    compiled, at_peak = compiled_view(counted_run), run.memory.by_category
    nodes_seconds = totals.nodes_seconds(run)
    on_run = filter(None, [unobserved(run), captured(run)])
    on_calls = (
        f"{each.call.op} in {each.call.path or 'the root'}: {text}" for each, text in counted_run.remarks.items()
    )
    return Summary(
        title=counted_run.name,
        inputs=run.inputs,
        setting=" · ".join(filter(None, [environment.device, environment.mode, environment.grad, run.recorded_as])),
        root=root,
        int_ops=counted_run.forward.int_ops,
        backward_flops=totals.backward_flops(counted_run),
        recompute_flops=totals.flops_of(counted_run, "recompute"),
        optimizer_flops=totals.flops_of(counted_run, "optimizer"),
        gradient_flops=totals.flops_of(counted_run, "gradient"),
        compiled=environment.compiled,
        compiled_run=None if compiled is None else compiled.shown,
        convention=counted_run.convention,
        unit=OF_MACS.get(counted_run.convention, "FLOPs"),
        attention=counted_run.attention if counted_run.has_attention else "",
        counted_calls=len(counted) - sum(op.calls for op in counted_run.missing),
        calls=len(counted),
        params=run.params,
        active_params=active_params(counted_run),
        macs_at_zero=_macs_at_zero(counted_run),
        latency=run.latency,
        nodes_seconds=nodes_seconds,
        backward_latency=run.backward_latency,
        backward_nodes_seconds=sum(n.backward_timing.median for n in run.nodes if n.backward_timing) or None,
        on_accelerator=any(node.host_timing is not None for node in run.nodes),
        steps=counted_run.step_times,
        workers=run.block.workers,
        lines=run.block.lines,
        instruments=run.block.instrument_seconds,
        device_seconds=run.block.device_seconds,
        unsteady=unsteady(run, nodes_seconds),
        collectives=by_group(collectives(counted)),
        bytes_peak=run.memory.peak,
        memory=at_peak,
        peak_at=at_peak.at,
        peak_phase=at_peak.phase,
        operators=[*by_operator(counted_run.items(FORWARD)).values()],
        missing=counted_run.missing,
        paste=recipe(counted) if counted_run.missing else "",
        utilization=utilization,
        provenance=counted_run.provenance,
        remarks=[*on_run, *on_calls],
    )
