"""The tables of a report: its operations in run order, and its sums as mappings that print as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..conventions import title_of
from ..counting.counted_run import NO_OPERATION
from ..counting.rollup import ModuleRow, OperatorRow, Sums
from ..counting.steps import StepTime
from ..meters.nodes import Node
from ..names import name_of
from ..records import PHASES, Counted, per_operation, specs_in
from ..render.columns import OPERATIONS, SUMS, Column, module_values, titled
from ..render.costs import OTHER, costs
from ..render.data import Summary, TreeRow
from ..render.exports import Cells, Rows, Table
from ..render.parts import Part
from ..render.summary import notes

NO_KERNEL = ("Memcpy", "Memset")
"""The beginnings of the names under which torch.profiler shows copies and fills of a device's memory."""
KERNELS = (
    Column("operator", "operator"),
    Column("kernel", "kernel"),
    Column("calls", "calls", "number"),
    Column("seconds", "time", "s"),
    Column("flops", "FLOPs", "flops"),
    Column("flops_per_second", "FLOP/s", "flops"),
)


SHARED = ("params", "macs", "flops", "flops%", "time", "time%")
PARTS = (
    Column("module", "module"),
    Column("class", "class"),
    Column("modules", "modules", "number"),
    Column("params", "params", "elements"),
    Column("macs", "MACs", "flops"),
    Column("flops", "FLOPs", "flops"),
    Column("flops%", "FLOPs %", "%"),
    Column("seconds", "time", "s"),
    Column("time%", "time %", "%"),
)


def costs_table(data: Summary) -> Table:
    """Return the parts that cost most, and the model as a whole, as a table."""
    rows = [*costs(data)]
    left = (data.root.params or 0) - sum(part.row.params or 0 for part in rows)
    if left > 0 and rows and all(part.row.path != OTHER for part in rows):
        rows.append(Part(TreeRow("", "", OTHER, 0, left, 0, 0)))  # modules that cost nothing may have parameters
    rows.append(Part(data.root._replace(path="total"), (data.root,)))
    cells = []
    for part in rows:
        path = f"{part.row.path or '(root)'} (a lower bound)" if part.row.missing else part.row.path
        values = module_values(part.row, data.root)
        cells.append((path, part.row.cls, len(part.modules) or None, *(values[key] for key in SHARED)))
    # Operations are timed one by one: their sum is not the latency, which is that of the model's own run.
    for name, timing in (("latency", data.latency), ("backward latency", data.backward_latency)):
        if timing is not None:
            doubt = " (unsteady)" if data.unsteady else ""
            cells.append((name + doubt, data.root.cls, *[None] * 5, timing.median, None))
    columns = titled(PARTS, title_of(data.convention))
    return Table("parts", columns, tuple(cells), provenance=data.provenance, notes=tuple(notes(data)))


def operator_rows(rows: Mapping[str, OperatorRow], key: str, counted: str, origin: str) -> Rows[OperatorRow]:
    """Return a table with a row for each operator, dtype or step; ``key`` says which, ``counted`` what the convention
    counts, ``origin`` is the provenance."""
    columns = (Column(key, key), Column("calls", "calls", "number"), *titled(SUMS, counted))
    return Rows(rows, f"{key}s", columns, _operator_cells, origin)


def module_and_operator_rows(
    rows: Mapping[str, Mapping[str, OperatorRow]], counted: str, origin: str
) -> Rows[Rows[OperatorRow]]:
    """Return a table with a row for each operator in each module."""
    columns = (Column("module", "module"), Column("operator", "operator"), Column("calls", "calls", "number"))
    inner = {path: operator_rows(operators, "operator", counted, origin) for path, operators in rows.items()}
    return Rows(inner, "operators of modules", (*columns, *titled(SUMS, counted)), _nested_cells, origin)


def operations(
    counted: Sequence[Counted], nodes: Sequence[Node], params: Mapping[str, int | None], remarks: Mapping[Counted, str]
) -> Table:
    """Return a table with a row for each call in run order, and for each graph node that takes time but makes no call.

    ``params`` has the number of each module's own parameters by path; it is shown at a leaf's first call. ``remarks`` are sentences
    on calls; they are added to the column ``counts``, which says what is counted. Memory is that of the call's node, in
    the backward that of the node's backward. The counts of a call without a formula are None.
    """
    by_name, left = {node.name: node for node in nodes}, {**params}
    described = per_operation(_described)

    def row(each: Counted) -> Cells:
        call, (target, inputs, output) = each.call, described(each)
        counts = (None, None, None) if each.missing else (each.macs, each.flops, each.int_ops)
        return (
            call.node,
            call.op,
            call.path,
            target,
            call.phase,
            inputs,
            output,
            left.pop(call.path, 0) if isinstance(call.target, type) else None,
            *counts,
            call.seconds,
            *_memory(call.phase, by_name.get(call.node)),
            f"{each.how}; {remarks[each]}" if remarks and each in remarks else each.how,
        )

    rows: list[Cells] = []
    begun = 0
    for node in nodes:
        if node.calls:
            rows += map(row, counted[begun : node.calls.stop])
            begun = node.calls.stop
        elif node.timing is not None:
            about = (node.name, NO_OPERATION, node.path, node.target, PHASES[0], "", "", None)
            rows.append((*about, 0, 0, 0, node.timing.median, *_memory(PHASES[0], node), ""))
    return Table("operations", OPERATIONS, (*rows, *map(row, counted[begun:])))


def _described(each: Counted) -> tuple[str, str, str]:
    """Return a call's target, inputs and output as text; they are the same for all calls of one operation."""
    inputs, output = (" ".join(map(repr, specs)) for specs in (each.call.inputs(), specs_in(each.call.out)))
    return name_of(each.call.target), inputs, output


def _memory(phase: str, node: Node | None) -> tuple[int | None, int | None, int | None]:
    if node is None:
        return None, None, None
    if phase == "backward":
        return None, node.backward_bytes_after, node.backward_bytes_peak
    return node.bytes_before, node.bytes_after, node.bytes_peak


def kernel_table(counted: Sequence[Counted], nodes: Iterable[Node]) -> Table:
    """Return a table with a row for each kernel of each operator, the longest first.

    A kernel has FLOPs if its operator made no other one, but for copies and fills of memory; otherwise they are None.
    """
    sums: dict[tuple[str, str], tuple[int, float, int | None]] = {}
    for node in nodes:
        flops = sum(each.flops for each in counted[node.calls.start : node.calls.stop])
        alone = sum(not kernel.name.startswith(NO_KERNEL) for kernel in node.kernels) == 1
        for name, times, seconds in node.kernels:
            key = node.function or node.name, name
            calls, before, known = sums.get(key, (0, 0.0, 0))
            mine = flops if alone and node.calls and not name.startswith(NO_KERNEL) else None
            sums[key] = calls + times, before + seconds, None if mine is None or known is None else known + mine
    longest = sorted(sums.items(), key=lambda item: -item[1][1])
    rows = ((*key, n, s, flops, flops / s if flops and s else None) for key, (n, s, flops) in longest)
    return Table("kernels", KERNELS, tuple(rows))


def highest(nodes: Iterable[Node], phase: str, keys: Callable[[Node], Iterable[str]]) -> dict[str, int]:
    """Return, for each key, the highest memory peak of the nodes that have this key; ``keys`` gives the keys of a node.

    Peaks are read in forward and backward only; any other phase gives no keys.
    """
    peaks: dict[str, int] = {}
    for node in nodes:
        peak = _memory(phase, node)[2] if phase in PHASES[:2] else None
        if peak is not None:
            peaks.update({key: max(peaks.get(key, 0), peak) for key in keys(node)})
    return peaks


def _sums(sums: Sums) -> Cells:
    counts = (None, None, None) if _is_unknown(sums) else (sums.macs, sums.flops, sums.int_ops)
    return *counts, sums.activations, sums.seconds, sums.missing


def _is_unknown(sums: Sums) -> bool:
    """Return True if none of the calls has a formula; their counts are shown as None, since unknown is not zero."""
    return 0 < sums.calls == sums.missing


def step_time_cells(name: str, row: StepTime) -> list[Cells]:
    return [(name, *row, row.flops / row.seconds)]


def module_cells(path: str, row: ModuleRow) -> list[Cells]:
    own = (None, None) if _is_unknown(row.own) else (row.own.macs, row.own.flops)
    return [(path, row.cls, row.calls, row.params, row.own_params, *_sums(row.total), *own, row.own.seconds)]


def _operator_cells(key: str, row: OperatorRow) -> list[Cells]:
    """Return the cells of a row; a function of the module, since a lambda cannot be pickled with the table."""
    return [(key, row.calls, *_sums(row.total))]


def _nested_cells(path: str, rows: Rows[OperatorRow]) -> list[Cells]:
    return [(path, op, row.calls, *_sums(row.total)) for op, row in rows.items()]
