"""Make the data for the HTML page of a report (:mod:`fxflops.render.page`). Also make the HTML block that notebooks show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..counting.counted_run import CountedRun
from ..counting.rollup import ModuleRow, Sums, by_operator
from ..records import FORWARD, NO_PARAMS, PARTS, PHASES, Counted, grouped, per_operation, prefixes, specs_in
from ..render.columns import Column
from ..render.data import Summary, TreeRow
from ..render.page_data import MemoryTimeline, Metric, Op, Owner, Page, RooflineData, Tile
from ..roofline.result import Roofline
from ..run.outcome import Run
from .picture import picture

MOST_CALLS = 200
CALLS = (
    Column("operator", "operator"),
    Column("module", "module"),
    Column("macs", "macs", "flops"),
    Column("flops", "flops", "flops"),
    Column("time", "time(s)", "s"),
    Column("tensors", "tensors"),
)
SIZES = (("flops", "FLOPs", "count"), ("macs", "MACs", "count"), ("time", "time", "s"))
PARAMS, MEMORY = Metric("params", "params", "count"), Metric("memory", "memory at the peak", "B")
SHOWN_AS = {"gradient": "forward"}
"""Phases that the page shows as part of another phase. Gradients computed inside the forward are shown as forward."""
PICTURED = "flops"
"""The cost that determines the colours of the page's graph."""
BY_KIND = ("optimizer", "cache")
ONE_ROW = ("params", "buffers", "gradients", *BY_KIND)
"""Memory categories with many tensors. The page has one row per category, or for optimizer state and caches, one row per kind."""


def notebook(counted: Sequence[Counted], summary: Summary) -> str:
    """Return the report as a block for notebooks, with the most expensive calls in a table."""
    from ..render.html import html

    ranked = sorted(counted, key=lambda each: (-(each.call.seconds or 0.0), -each.flops))
    rows = [
        [each.call.op, each.call.path, each.macs, each.flops, each.call.seconds, _shapes(each)]
        for each in ranked[:MOST_CALLS]
    ]
    return html(summary, CALLS, rows, noun="calls, most expensive first", of=len(ranked), units="auto")


def page_of(
    counted_run: CountedRun,
    summary: Summary,
    rooflines: Mapping[str, Roofline],
    mfu: float | None,
    why: str,
    title: str = "",
) -> Page:
    """Return the data of the page. ``rooflines`` has a roofline for each phase. If there are no rooflines, ``why`` is the reason."""
    run, counted = counted_run.run, counted_run.counted
    # A run without calls still has one tab, an empty forward.
    phases = [phase for phase in counted_run.phases if phase not in SHOWN_AS]
    modules = {phase: counted_run.modules(phase) for phase in phases or PHASES[:1]}
    metrics, tiles = _tiles(counted_run, modules, summary.root)
    operators = [
        Op(phase, row.key, "", row.calls, row.total.macs, row.total.flops, row.total.seconds)
        for phase in phases
        for row in by_operator(counted_run.items(phase)).values()
    ]
    return Page(
        summary,
        metrics,
        tiles,
        _calls(counted, rooflines),
        operators,
        _memory(run) if run.memory.peak else None,
        _roofline_data(rooflines, mfu) if rooflines else None,
        why,
        title,
        picture(counted_run, summary.root, PICTURED, None) if run.nodes else "",
    )


def _calls(counted: Iterable[Counted], rooflines: Mapping[str, Roofline]) -> list[Op]:
    """Return every call, with its roofline bound if its phase has a roofline."""
    bounds = {phase: iter(roofline.rows) for phase, roofline in rooflines.items()}
    calls, shapes = [], per_operation(_shapes)
    for each in counted:
        call = each.call
        why = each.missing if each.cost is None else ""
        phase = SHOWN_AS.get(call.phase, call.phase)
        op = Op(phase, call.op, call.path, 1, each.macs, each.flops, call.seconds, shapes(each), missing=why)
        if phase in bounds:
            row = next(bounds[phase])
            op = op._replace(
                work=row.flops, bytes=row.bytes, bound_seconds=row.bound_seconds, dtype=row.dtype, binds=row.binds
            )
        calls.append(op)
    return calls


def _shapes(counted: Counted) -> str:
    inputs, out = list(counted.call.inputs()), list(specs_in(counted.call.out))
    return f"{', '.join(map(repr, inputs))} → {', '.join(map(repr, out))}" if inputs or out else ""


def _tiles(
    counted_run: CountedRun, modules: Mapping[str, Mapping[str, ModuleRow]], tree: TreeRow
) -> tuple[list[Metric], list[Tile]]:
    """Return the tiles of the treemap, and the metrics by which the tiles can be sized. A metric that is 0 for all tiles is left out."""
    first = next(iter(modules.values()))
    own: dict[str, dict[str, float]] = {path: {PARAMS.name: row.own_params or 0} for path, row in first.items()}
    for phase, rows in modules.items():
        for path, row in rows.items():
            own[path].update(_values(row.own, phase))
    elsewhere = _memory_by_module(counted_run.run, own)
    metrics = [Metric(key, label, kind, phase) for key, label, kind in SIZES for phase in modules]
    used = {name for values in own.values() for name, value in values.items() if value}
    metrics = [metric for metric in [*metrics, PARAMS, MEMORY] if metric.name in used]
    for phase, rows in modules.items():
        for name, total in _values(rows[""].total, phase).items():
            # ``rest`` is the cost of calls outside all listed modules. Ignore a tiny rest, which comes from rounding the seconds.
            rest = total - sum(values.get(name, 0) for values in own.values())
            if rest > 1e-9:
                elsewhere.setdefault("(elsewhere)", {})[name] = rest
    peaks = {row.path: row.bytes_peak for row in tree.walk()}
    return metrics, _nested_tiles(first, own, elsewhere, peaks, _ops_by_cost(counted_run.counted))


def _nested_tiles(
    rows: Mapping[str, ModuleRow],
    own: Mapping[str, Mapping[str, float]],
    elsewhere: Mapping[str, Mapping[str, float]],
    peaks: Mapping[str, int | None],
    ops: Mapping[str, list[str]],
) -> list[Tile]:
    """Return a tile for each module, parents first. A module with children also has an "(own)" tile for its own operations."""
    # The parent of each module is the innermost listed module around it; the root's parent is None.
    parents = {path: next((p for p in [*prefixes(path)][-2::-1] if p in rows), None) for path in rows}
    holders = set(parents.values())
    place: dict[str | None, int | None] = {None: None}
    tiles: list[Tile] = []
    # The sort is stable, so siblings stay in run order.
    for path in sorted(rows, key=lambda path: path.count(".") + bool(path)):
        row, parent = rows[path], parents[path]
        place[path] = len(tiles)
        name = path.removeprefix(f"{parent}." if parent else "")
        values = {} if path in holders or not path else own[path]
        op = next(iter(ops.get(path, ())), "") if values else ""
        tiles.append(Tile(name or row.cls, row.cls, path, place[parent], row.calls, op, values, peaks.get(path)))
    for path in rows:
        if (path in holders or not path) and any(own[path].values()):
            own_ops = ops.get(path, [])
            more = f" +{len(own_ops) - 1}" if len(own_ops) > 1 else ""
            name = f"(own: {own_ops[0]}{more})" if own_ops else "(own)"
            tiles.append(Tile(name, "", path, place[path], 0, own_ops[0] if own_ops else "", own[path]))
    tiles += [
        Tile(name, "", "", place[""], 0, "", values) for name, values in elsewhere.items() if any(values.values())
    ]
    return tiles


def _values(sums: Sums, phase: str) -> dict[str, float]:
    numbers = {"flops": sums.flops, "macs": sums.macs, "time": sums.seconds or 0.0}
    return {Metric(key, "", "", phase).name: value for key, value in numbers.items() if value}


def _memory_by_module(run: Run, own: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Add two numbers of bytes to each module in ``own``: the bytes that the module allocated and that are alive at the peak, and its
    parameters' bytes.

    Return the bytes that no module allocated, by category. A module's number of parameters does not determine their bytes if parameters
    have several dtypes or are partly unallocated. Then all parameters are part of the returned bytes.
    """
    params, at_peak = run.params or NO_PARAMS, run.memory.by_category
    # True if all parameters have the same number of bytes per element and are alive at the peak.
    is_even = params.total > 0 and params.bytes % params.total == 0 and at_peak.get("params") == params.bytes
    elsewhere: Counter[str] = Counter()
    for tensor in run.memory.history.at_peak:
        if tensor.op and tensor.path in own:
            own[tensor.path][MEMORY.name] = own[tensor.path].get(MEMORY.name, 0) + tensor.bytes
        elif not (is_even and tensor.category == "params"):
            elsewhere[tensor.category] += tensor.bytes
    for values in own.values() if is_even else ():
        values[MEMORY.name] = values.get(MEMORY.name, 0) + values[PARAMS.name] * (params.bytes // params.total)
    elsewhere["other"] += max(at_peak.get("other", 0), 0)
    return {f"({name})": {MEMORY.name: nbytes} for name, nbytes in elsewhere.items() if nbytes}


def _ops_by_cost(counted: Iterable[Counted]) -> dict[str, list[str]]:
    """Return the operators that each module calls directly. Forward operators come first; within a phase, operators are sorted by FLOPs and
    then by time."""
    costs: dict[str, dict[str, tuple[bool, int, float]]] = {}
    for each in counted:
        if each.flops or each.call.seconds or each.cost is None:
            costs_in_module = costs.setdefault(each.call.path, {})
            forward, flops, seconds = costs_in_module.get(each.call.op, (False, 0, 0.0))
            forward = forward or each.call.phase in PARTS[FORWARD]
            costs_in_module[each.call.op] = forward, flops + each.flops, seconds + (each.call.seconds or 0.0)
    return {path: sorted(ops, key=lambda op: ops[op], reverse=True) for path, ops in costs.items()}


def _memory(run: Run) -> MemoryTimeline:
    """Return the memory over the run. The tensors of a category in :data:`ONE_ROW` are combined into one row."""
    history, at_peak = run.memory.history, run.memory.by_category
    tensors = history.at_peak
    owners = [Owner(t.category, t.path, t.op, repr(t.spec), t.bytes) for t in tensors if t.category not in ONE_ROW]
    # Optimizer state and caches have one row per kind, e.g. "exp_avg" or "keys".
    sizes_by_kind = grouped(
        ((t.category, t.name.rpartition(".")[2] if t.category in BY_KIND else ""), t.bytes)
        for t in tensors
        if t.category in ONE_ROW
    )
    owners += [
        Owner(category, "", name, "", sum(sizes), len(sizes)) for (category, name), sizes in sizes_by_kind.items()
    ]
    other = at_peak.get("other", 0)
    if other > 0:
        owners.append(Owner("other", "", "", "other memory of the allocator", other, 0))
    owners.sort(key=lambda owner: -owner.bytes)
    return MemoryTimeline(history.timeline, run.memory.peak or 0, at_peak.at, owners, at_peak.source)


def _roofline_data(rooflines: Mapping[str, Roofline], mfu: float | None) -> RooflineData:
    device = next(iter(rooflines.values())).device
    dtypes = sorted({row.dtype for roofline in rooflines.values() for row in roofline.rows if row.flops})
    bounds = {
        phase: {kind: (row.bound_seconds, row.seconds, row.calls) for kind, row in roofline.by_bound().items()}
        for phase, roofline in rooflines.items()
    }
    totals = [roofline.total for roofline in rooflines.values()]
    seconds = sum(row.seconds or 0.0 for row in totals)
    device_facts = {"device": device.name, "source": device.source, "bandwidth": device.bandwidth}
    return RooflineData(
        {**device_facts, "caches": [list(cache) for cache in device.caches]},
        {dtype: device.peak(dtype) for dtype in dtypes},
        not seconds,
        bounds,
        mfu,
        sum(row.bound_seconds for row in totals) / seconds if seconds else None,
    )
