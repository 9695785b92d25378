"""Make the tables of a counted run. One table has the operations in run order. The tables with sums are also mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

from ..conventions import BASE_MACS, OF_MACS, title_of
from ..counting import totals
from ..counting.counted_run import CountedRun
from ..counting.rollup import ModuleRow, OperatorRow, Sums, by_module_and_operator, by_operator, check_phase
from ..counting.steps import NO_OPERATION, StepTime, by_step, unsteady
from ..errors import InputError, did_you_mean, no_calls
from ..meters.nodes import Node
from ..names import name_of
from ..records import BACKWARD, FORWARD, PHASES, Counted, per_operation, prefixes, specs_in
from ..render.columns import MODULES, OPERATIONS, STEP_TIMES, SUMS, Column, module_values, titled
from ..render.costs import OTHER, costs
from ..render.data import Summary, TreeRow
from ..render.exports import Cells, Rows, Table
from ..render.parts import Part
from ..render.summary import notes
from ..run.outcome import Run
from ..units import count as readable

NOT_COMPUTING = ("Memcpy", "Memset")
"""The prefixes of torch.profiler's names for copies and fills of device memory."""
KERNELS = (
    Column("operator", "operator"),
    Column("kernel", "kernel"),
    Column("calls", "calls", "number"),
    Column("seconds", "time", "s"),
    Column("flops", "FLOPs", "flops"),
    Column("flops_per_second", "FLOP/s", "flops"),
)
LINES = (
    Column("line", "line"),
    Column("function", "function"),
    Column("seconds", "time", "s"),
    Column("time%", "%", "%"),
)
BY_CONVENTION = (
    Column("convention", "convention"),
    Column("flops", "total", "flops"),
    Column("unit", "unit"),
    Column("per_mac", "per MAC", "number"),
    Column("missing", "missing", "number"),
)
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
COUNTS = ("params", "macs", "flops")
"""The columns that the table for papers always has."""
VALUES_OF_PARTS = ("params", "macs", "flops", "flops%", "time", "time%")
"""The keys of the module's values in the last columns of :data:`PARTS`."""


# Sums


def checked_modules(counted_run: CountedRun, phase: str) -> dict[str, ModuleRow]:
    """Return each module's sums in a phase. Raises InputError for an unknown phase, and for a phase without calls."""
    if not counted_run.items(check_phase(phase)) and phase != FORWARD:
        raise no_calls(phase)
    return counted_run.modules(phase)


def module_table(counted_run: CountedRun, phase: str) -> Rows[ModuleRow]:
    """Return a table with a row for each module. Raises the same errors as :func:`checked_modules`."""
    rows, columns = checked_modules(counted_run, phase), titled(MODULES, counted_run.title)
    return Rows(rows, "modules", columns, _module_cells, counted_run.provenance)


def module_at(counted_run: CountedRun, path: str) -> ModuleRow:
    """Return the row of the module at a path. Raises InputError for an unknown path; the error names similar paths."""
    modules = counted_run.modules(FORWARD)
    if path not in modules:
        first_path = _first_path(counted_run.run, str(path))
        is_alias = first_path != str(path) and first_path in modules
        hint = f": use {first_path!r}, another path of this module" if is_alias else did_you_mean(str(path), modules)
        raise InputError(f"{counted_run.run.model} has no module {path!r}{hint}; report.by_module() lists all modules")
    return modules[path]


def _first_path(run: Run, path: str) -> str:
    """Return the first of a module's paths. Tables list the module under this path. If the module has only one path, return ``path``."""
    first_path = path
    for _ in path.split("."):  # repeat, because a module inside an aliased module may have an alias, too
        alias = next((prefix for prefix in prefixes(first_path) if prefix in run.aliases), "")
        first_path = f"{run.aliases.get(alias, '')}{first_path[len(alias) :]}".lstrip(".")
    return first_path


def operator_table(counted_run: CountedRun, phase: str) -> Rows[OperatorRow]:
    """Return a table with a row for each operator. The operator with the most FLOPs is first."""
    return _operator_rows(counted_run, by_operator(counted_run.items(check_phase(phase))), "operator")


def dtype_table(counted_run: CountedRun, phase: str) -> Rows[OperatorRow]:
    """Return a table with a row for each output dtype."""
    rows = by_operator(counted_run.items(check_phase(phase)), lambda item: item.dtype or "(no tensor)")
    return _operator_rows(counted_run, rows, "dtype")


def step_table(counted_run: CountedRun) -> Rows[OperatorRow]:
    """Return a table with a row for each step of a profiled block, in run order."""
    return _operator_rows(counted_run, by_step(counted_run.run, counted_run.counted), "step")


def module_and_operator_table(counted_run: CountedRun, phase: str) -> Rows[Rows[OperatorRow]]:
    """Return a table with a row for each operator in each module."""
    sums = by_module_and_operator(counted_run.items(check_phase(phase)), counted_run.run.modules)
    rows = {path: _operator_rows(counted_run, operators, "operator") for path, operators in sums.items()}
    keys = (Column("module", "module"), Column("operator", "operator"), Column("calls", "calls", "number"))
    columns = (*keys, *titled(SUMS, counted_run.title))
    return Rows(rows, "operators of modules", columns, _nested_cells, counted_run.provenance)


def step_time_table(counted_run: CountedRun) -> Rows[StepTime]:
    """Return a table with a row for each step of a profiled block and a column for each part of the step's time."""
    return Rows(counted_run.step_times, "step times", STEP_TIMES, _step_time_cells, counted_run.provenance)


def _operator_rows(counted_run: CountedRun, rows: Mapping[str, OperatorRow], key: str) -> Rows[OperatorRow]:
    """Return a table of rows. ``key`` is the title of the column with the rows' names: "operator", "dtype" or "step"."""
    columns = (Column(key, key), Column("calls", "calls", "number"), *titled(SUMS, counted_run.title))
    return Rows(rows, f"{key}s", columns, _operator_cells, counted_run.provenance)


# These are functions of this module, because a table with lambdas cannot be pickled.


def _module_cells(path: str, row: ModuleRow) -> list[Cells]:
    own = (None, None) if _is_unknown(row.own) else (row.own.macs, row.own.flops)
    return [(path, row.cls, row.calls, row.params, row.own_params, *_cells(row.total), *own, row.own.seconds)]


def _operator_cells(key: str, row: OperatorRow) -> list[Cells]:
    return [(key, row.calls, *_cells(row.total))]


def _nested_cells(path: str, rows: Rows[OperatorRow]) -> list[Cells]:
    return [(path, op, row.calls, *_cells(row.total)) for op, row in rows.items()]


def _step_time_cells(name: str, row: StepTime) -> list[Cells]:
    return [(name, *row, row.flops / row.seconds)]


def _cells(sums: Sums) -> Cells:
    counts = (None, None, None) if _is_unknown(sums) else (sums.macs, sums.flops, sums.int_ops)
    return *counts, sums.activations, sums.seconds, sums.missing


def _is_unknown(sums: Sums) -> bool:
    """Return True if no call has a formula. The counts of a run without any formula are unknown, so they are shown as None, not as 0."""
    return 0 < sums.calls == sums.missing


# Operations


def operation_table(counted_run: CountedRun) -> Table:
    """Return a table with a row for each call in run order. A graph node that takes time but makes no call also has a row.

    ``params`` is a leaf module's number of parameters, shown only at the module's first call. The memory columns are those of the graph
    node that makes the call. For a backward call, the memory columns are those of its node's backward. The counts of a call without a
    formula are None. The column ``counts`` describes what is counted for the call. If there is a remark on the call, the remark follows.
    """
    run, counted, remarks = counted_run.run, counted_run.counted, counted_run.remarks
    node_at = {node.name: node for node in run.nodes}
    params_left = {module.path: module.params for module in run.modules}
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
            params_left.pop(call.path, 0) if isinstance(call.target, type) else None,
            *counts,
            call.seconds,
            *_memory(call.phase, node_at.get(call.node)),
            f"{each.how}; {remarks[each]}" if remarks and each in remarks else each.how,
        )

    rows: list[Cells] = []
    shown = 0  # the number of calls that already have a row
    for node in run.nodes:
        if node.calls:
            rows += map(row, counted[shown : node.calls.stop])
            shown = node.calls.stop
        elif node.timing is not None:
            where = (node.name, NO_OPERATION, node.path, node.target, FORWARD, "", "", None)
            rows.append((*where, 0, 0, 0, node.timing.median, *_memory(FORWARD, node), ""))
    rows += map(row, counted[shown:])
    columns = titled(OPERATIONS, counted_run.title)
    return Table("operations", columns, tuple(rows), provenance=counted_run.provenance, whole=_times_of_run(run))


def _times_of_run(run: Run) -> tuple[tuple[str, object], ...]:
    """Return the times of the whole run. A CSV or JSON file repeats these times in each row."""
    times = (
        ("latency", totals.latency(run)),
        ("backward_latency", totals.backward_latency(run)),
        ("unsteady", unsteady(run, totals.nodes_seconds(run))),
    )
    return tuple((key, value) for key, value in times if value)


def _described(counted: Counted) -> tuple[str, str, str]:
    """Return the target, inputs and output of a call as text. The text is the same for all calls of one operation."""
    inputs, output = (" ".join(map(repr, specs)) for specs in (counted.call.inputs(), specs_in(counted.call.out)))
    return name_of(counted.call.target), inputs, output


def _memory(phase: str, node: Node | None) -> tuple[int | None, int | None, int | None]:
    if node is None:
        return None, None, None
    if phase == BACKWARD:
        return None, node.backward_bytes_after, node.backward_bytes_peak
    return node.bytes_before, node.bytes_after, node.bytes_peak


def kernel_table(counted_run: CountedRun) -> Table:
    """Return a table with a row for each kernel of each operator, slowest first.

    A kernel's FLOPs are known only if its operator launched no other kernel. Copies and fills of memory do not matter. If the FLOPs of a
    kernel are not known, they are None.
    """
    sums: dict[tuple[str, str], tuple[int, float, int | None]] = {}
    for node in counted_run.run.nodes:
        flops = sum(each.flops for each in counted_run.counted[node.calls.start : node.calls.stop])
        is_alone = sum(not kernel.name.startswith(NOT_COMPUTING) for kernel in node.kernels) == 1
        for name, calls, seconds in node.kernels:
            key = node.function or node.name, name
            calls_before, seconds_before, flops_before = sums.get(key, (0, 0.0, 0))
            own_flops = flops if is_alone and node.calls and not name.startswith(NOT_COMPUTING) else None
            total = None if own_flops is None or flops_before is None else flops_before + own_flops
            sums[key] = calls_before + calls, seconds_before + seconds, total
    longest_first = sorted(sums.items(), key=lambda item: -item[1][1])
    rows = (
        (*key, calls, seconds, flops, flops / seconds if flops and seconds else None)
        for key, (calls, seconds, flops) in longest_first
    )
    return Table("kernels", KERNELS, tuple(rows), provenance=counted_run.provenance)


def line_table(counted_run: CountedRun) -> Table:
    """Return a table with a row for each line of the user's code, slowest first. Raises InputError if lines were not sampled."""
    lines = counted_run.run.block.lines
    if lines is None:
        raise InputError("the lines of code were not sampled: use fxflops.profile(model, lines=True)")
    total_seconds = sum(line.seconds for line in lines)
    rows = tuple((line.place, line.function, line.seconds, 100 * line.seconds / total_seconds) for line in lines)
    return Table("lines", LINES, rows, provenance=counted_run.provenance)


def highest(nodes: Iterable[Node], phase: str, keys: Callable[[Node], Iterable[str]]) -> dict[str, int]:
    """Return, for each key, the highest memory peak of all nodes with this key. ``keys`` returns the keys of a node.

    Peaks are only measured in forward and backward. For other phases, the result is empty.
    """
    peaks: dict[str, int] = {}
    for node in nodes:
        peak = _memory(phase, node)[2] if phase in PHASES[:2] else None
        if peak is not None:
            peaks.update({key: max(peaks.get(key, 0), peak) for key in keys(node)})
    return peaks


def convention_table(counted_runs: Sequence[CountedRun], near: float | None) -> Table:
    """Return a table with one row per convention: one run, counted under each of the conventions.

    With ``near``, the convention whose total is closest to this number is first, and a column has the difference in percent.
    """
    rows: list[Cells] = []
    for each in counted_runs:
        name, total = each.convention, each.forward
        unit, per_mac = (
            ("MACs", 1) if name == BASE_MACS.name else (OF_MACS.get(name, "FLOPs"), 1 if name in OF_MACS else 2)
        )
        rows.append((name, total.flops, unit, per_mac, total.missing))
    columns: tuple[Column, ...] = BY_CONVENTION
    if near is not None:
        if not near > 0:
            raise InputError(f"near must be a number above 0, such as 4.5e9; got {near!r}")
        columns = (*columns, Column("difference%", "% off", "%"))
        rows = [(*row, 100 * (row[1] - near) / near) for row in sorted(rows, key=lambda row: abs(row[1] - near))]
    notes = () if near is None else (_verdict(rows, near),)
    table = Table("conventions", columns, tuple(rows), provenance=counted_runs[0].provenance, notes=notes)
    return table.without_empty_columns(["flops", "difference%"])


def _verdict(rows: Iterable[Cells], near: float) -> str:
    """Say in words which conventions give this number, rounded to the digits that it has, and how they count a multiply-accumulate."""
    published = Decimal(repr(float(near))).normalize()
    last_digit = float(Decimal(1).scaleb(int(published.as_tuple().exponent)))
    equal = [(name, per_mac) for name, total, _, per_mac, *_ in rows if abs(total - near) <= last_digit / 2]
    if not equal:
        return f"no convention's total rounds to {readable(near)}: was the number rounded, or are the inputs of another size?"
    kinds = {per_mac for _, per_mac in equal}
    kind = f"; a multiply-accumulate counts as {kinds.pop()}" if len(kinds) == 1 else ""
    return f"rounds to {readable(near)}: {', '.join(name for name, _ in equal)}{kind}"


# Papers


def costs_table(data: Summary) -> Table:
    """Return a table of the most expensive parts of the model. The last rows are the whole model and its latency."""
    parts = [*costs(data)]
    params_left = (data.root.params or 0) - sum(part.row.params or 0 for part in parts)
    if params_left > 0 and parts and all(part.row.path != OTHER for part in parts):
        parts.append(
            Part(TreeRow("", "", OTHER, 0, params_left, 0, 0))
        )  # the other modules have parameters, but no cost
    parts.append(Part(data.root._replace(path="total"), (data.root,)))
    rows: list[Cells] = [_part_cells(part, data.root) for part in parts]
    # The sum of the operations' times is not the latency: operations are timed one by one, the latency is timed on a whole run.
    for name, timing in (("latency", data.latency), ("backward latency", data.backward_latency)):
        if timing is not None:
            doubt = " (unsteady)" if data.unsteady else ""
            rows.append((name + doubt, data.root.cls, *[None] * 5, timing.median, None))
    columns = titled(PARTS, title_of(data.convention))
    return Table("parts", columns, tuple(rows), provenance=data.provenance, notes=tuple(notes(data)))


def _part_cells(part: Part, root: TreeRow) -> Cells:
    path = f"{part.row.path or '(root)'} (a lower bound)" if part.row.missing else part.row.path
    values = module_values(part.row, root)
    return path, part.row.cls, len(part.modules) or None, *(values[key] for key in VALUES_OF_PARTS)
