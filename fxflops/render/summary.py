"""The one-screen summary: counts, parameters, time, memory, the most expensive modules, and finally the ops that were not counted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from textwrap import wrap
from typing import NamedTuple

from .. import units
from ..counting.collectives import Collective
from ..counting.steps import StepTime
from ..counting.uncounted import PASTE
from ..meters.code_lines import CodeLine
from ..meters.timing import Timing
from ..records import BACKWARD, OUTSIDE, Params
from .conclusion import conclusion, loading
from .costs import LEAST, cost_lines, operator_shares
from .data import CompiledRun, Summary
from .text import cells, pad, paint, place, plain, terminal_width

MOST_MISSING = 8
MOST_LINES = 3
LABEL, VALUE = 9, 12
MARGIN = LABEL + VALUE

WAITS = 0.1
"""If data loading takes at least this share of a block's time, the summary gives advice."""
MANY_WORKERS = 32
"""If a loop needs more workers than this, they are not the answer."""
INFLATED = 2.0
"""If observing a block takes more than this many times the block's own time, and more than a second, the summary says so."""
WORKING = 0.9
"""If an accelerator's own work takes less than this share of the latency, the accelerator waits for the host."""
TOO_LONG = (
    'times may be too long or too short, since observing took much longer; detail="steps" times the loop at full speed'
)
TIMED_ONLY = 'only times were measured; detail="operations" also counts'
UNSTEADY = "unsteady, as on a busy machine: measure again"


class Fact(NamedTuple):
    """A line of the summary: a label, a number, and the details beside the number."""

    label: str
    value: str
    details: Sequence[str]
    separator: str = " · "


def summary(data: Summary, *, width: int | None = None, color: bool = False) -> str:
    """Return the summary as text, wrapped to ``width`` cells; by default to the terminal's width."""
    limit = terminal_width() if width is None else width
    head = [plain(data.title), *([f"input {plain(data.inputs)}"] if data.inputs else []), plain(data.setting)]
    lines = flow(paint(head[0], "bold", color), head[1:], "   ", limit, indent=4)
    if said := conclusion(data, data.utilization):
        first, *more = said.split("; ")
        clauses = flow(first, more, "; ", limit, indent=4)
        lines += clauses if limit is None else [part for each in clauses for part in _wrapped(each, limit)]
    lines += _fact_lines(facts(data), limit, color)
    table = cost_lines(data, None if limit is None else limit - MARGIN, color)
    of_phase = "cost of forward" if data.forward == "forward" else data.forward
    title = of_phase if data.has_backward else "where the cost is"
    lines += [pad("" if position else title, MARGIN) + line for position, line in enumerate(table)]
    for label, shares in operator_shares(data):
        lines += flow(pad(label, MARGIN), shares, " · ", limit, MARGIN)
    if data.provenance and (data.nodes_seconds is not None or data.steps):
        lines += flow(pad("measured", MARGIN), data.provenance.split(" · "), " · ", limit, MARGIN)
    for line in remark_lines(data):
        where, colon, said = line.partition(": ")
        lines += flow(where + colon.rstrip(), [said], " ", limit, 4)
    lines += [paint(line, "red", color) for line in missing_lines(data)]
    if data.paste:
        lines += [f"{paste_where(data)}:", *(f"    {line}" for line in data.paste.rstrip().splitlines())]
    return "\n".join(line.rstrip() for line in lines)


def notes(data: Summary) -> list[str]:
    """Return all lines of the summary except its table of costs, without line wrapping."""
    head = [plain(data.title), *([f"input {plain(data.inputs)}"] if data.inputs else []), plain(data.setting)]
    said = conclusion(data, data.utilization)
    shares = [f"{label}: {' · '.join(values)}" for label, values in operator_shares(data)]
    lines = [", ".join(filter(None, head)), *([said] if said else []), *_fact_lines(facts(data), None, False), *shares]
    return [" ".join(line.split()) for line in (*lines, *remark_lines(data), *missing_lines(data))]


def compiled_lines(run: CompiledRun) -> str:
    """Return the lines about a compiled model as text, wrapped to the terminal's width."""
    return "\n".join(line.rstrip() for line in _fact_lines(_compiled(run), terminal_width(), False))


def _fact_lines(found: Sequence[Fact], limit: int | None, color: bool) -> list[str]:
    lines = []
    for fact in found:
        details = [paint(part, "red", color and part.startswith("INCOMPLETE")) for part in fact.details]
        # The blank after each part keeps a label or a number that is wider than its column apart from the next column.
        columns = pad(pad(f"{fact.label} ", LABEL) + f"{fact.value} ", MARGIN)
        lines += flow(columns, details, fact.separator, limit, MARGIN)
    return lines


def facts(data: Summary) -> list[Fact]:
    """Return the lines of the summary that show one number each. Numbers that were not measured have no line."""
    found = _counts(data)
    if data.backward_flops is not None:
        found.append(_training(data, data.backward_flops))
    if data.gradient_flops is not None:
        found.append(
            Fact(
                "gradient",
                units.count(data.gradient_flops),
                [f"of the forward's {data.unit} are for derivatives that the forward computes itself"],
            )
        )
    if data.optimizer_flops is not None:
        found.append(_with_optimizer(data, data.optimizer_flops))
    if data.params is not None and not data.is_without_model:
        found.append(_params(data.params, data.active_params))
    if data.latency is not None or data.nodes_seconds is not None:
        found.append(_latency("latency", data.latency, data.nodes_seconds, data.root.flops, data.on_accelerator))
    if data.backward_latency is not None:
        flops, seconds = data.backward_flops or 0, data.backward_nodes_seconds
        found.append(_latency("backward", data.backward_latency, seconds, flops, data.on_accelerator))
    if data.steps:
        found += _block(data.steps, data.instruments, data.device_seconds, data.workers)
    if data.lines is not None:
        found.append(_code(data.lines, data.is_unobserved))
    if data.unsteady:
        found.append(Fact("unsteady", "", [*data.unsteady.split("; "), "measure again on an idle machine"], "; "))
    if data.compiled_run is not None:
        found += _compiled(data.compiled_run)
    elif data.compiled:
        found.append(Fact("compile", "no", ["counted and timed eagerly, not compiled"]))
    if data.collectives:
        found.append(_sent(data.collectives))
    if data.bytes_peak is not None:
        said = {"gradients": "gradients so far"} if data.peak_phase == BACKWARD else {}
        held = " + ".join(f"{said.get(name, name)} {units.size(part)}" for name, part in data.memory.items() if part)
        at = f"at {place(data.peak_at)}" if data.peak_at else ""
        phase = f"in the {data.peak_phase}" if data.peak_phase != "forward" else ""
        details = [f"peak = {held}" if held else "peak", " ".join(filter(None, [at, phase]))]
        found.append(Fact("memory", units.size(data.bytes_peak), [*filter(None, details)], "; "))
    return found


def flow(start: str, parts: Sequence[str], separator: str, limit: int | None, indent: int) -> list[str]:
    """Join ``start`` and the parts into lines of at most ``limit`` cells. All lines but the first are indented by ``indent`` blanks.

    If a part is too long for one line, it may be broken only before " + ".
    """
    lines, empty = [start], cells(start) >= indent and start.endswith(" ")
    for part in parts:
        first, *terms = part.split(" + ")
        if terms and limit is not None and indent + cells(part) > limit:
            lines[-1:] = flow(lines[-1], [first, *(f"+ {term}" for term in terms)], " ", limit, indent)
            empty = False
            continue
        joined = lines[-1] + ("" if empty else separator) + part
        if limit is None or empty or cells(joined) <= limit:
            lines[-1] = joined
        else:
            lines.append(" " * indent + part)
        empty = False
    return lines


def _wrapped(clause: str, limit: int) -> list[str]:
    """Wrap a clause that may be longer than one line."""
    return wrap(clause, limit, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)


def remark_lines(data: Summary) -> list[str]:
    """Return the first :data:`MOST_MISSING` remarks on calls or on the profiled block, without duplicates."""
    return [plain(line) for line in dict.fromkeys(data.remarks)][:MOST_MISSING]


def missing_lines(data: Summary) -> list[str]:
    """Return a line for each of the first :data:`MOST_MISSING` ops that were not counted. All other such ops share one line."""
    lines: list[str] = []
    if data.is_unobserved:
        return lines
    for item in data.missing[:MOST_MISSING]:
        where = f" in {plain(item.path)}" if item.path else ""
        site = f"({plain(item.site)})" if item.site else ""
        parts = [f"not counted: {plain(item.op)} x{item.calls}{where}", plain(item.shapes), site]
        lines += ["  ".join(filter(None, parts)), *([f"    {plain(item.reason)}"] if item.reason else [])]
    rest = data.missing[MOST_MISSING:]
    if rest:
        lines.append(f"not counted: {len(rest)} more kinds, {sum(item.calls for item in rest)} calls")
    return lines


def paste_where(data: Summary) -> str:
    """Return the sentence above the code to paste."""
    return f"to count {'it' if len(data.missing) == 1 else 'them'}, {PASTE}"


def _counts(data: Summary) -> list[Fact]:
    """Return the lines for MACs and for FLOPs. If the convention counts another unit, the lines are for this unit.

    Each number is shown in a readable form, and exactly, as for a paper.
    """
    counted = f"{'complete' if data.complete else 'INCOMPLETE'}: {data.counted_calls:,} of {data.calls:,} calls"
    if data.is_unobserved:
        return [Fact("FLOPs", "unknown", [TIMED_ONLY])]
    if data.missing and not data.counted_calls:
        return [Fact("FLOPs", "unknown", [counted])]
    bound = ">= " if data.root.missing else ""
    is_much = data.int_ops > LEAST / 100 * data.root.flops
    scope = f" of the {data.forward}" if data.has_backward else ""
    details = [
        "".join([*_exact(data.root.flops, bound), scope]).strip(),
        *([] if data.unit == "FLOPs" else [f"{plain(data.convention)} {data.unit}"]),
        plain(data.rules),
        *([f"{units.count(data.int_ops)} operations on integers"] if is_much else []),
        counted,
        f"{data.macs_at_zero:.0%} of the MACs count as 0 by its rules" if data.macs_at_zero >= LEAST / 100 else "",
    ]
    details = [*filter(None, details)]
    label = data.unit if data.unit == "FLOPs" else "counted"
    macs = Fact("MACs", bound + units.count(data.root.macs), _exact(data.root.macs, bound))
    return [Fact(label, bound + units.count(data.root.flops), details), macs]


def _exact(number: int, bound: str = "") -> list[str]:
    """Return a list with the number written with all its digits. The list is empty if the readable form already shows all digits."""
    return [f"{bound}{number:,}"] if " " in units.count(number) else []


def _params(params: Params, active: float | None) -> Fact:
    details = [
        *_exact(params.total),
        f"{units.billions(active)} active per token" if active else "",
        f"{params.frozen:,} of them frozen" if params.frozen else "all trainable" if params.total else "",
        f"{params.sharded:,} of them sharded" if params.sharded else "",
        units.size(params.bytes),
        f"{params.buffers:,} in buffers" if params.buffers else "",
    ]
    return Fact("params", units.billions(params.total), [*filter(None, details)])


def _with_optimizer(data: Summary, optimizer: int) -> Fact:
    """Return the line with the FLOPs of the whole training step, including the optimizer. Without a backward pass, return the line with
    the FLOPs of the optimizer."""
    if data.backward_flops is None:
        return Fact("opt step", units.count(optimizer), [f"{data.unit} of the optimizer"])
    whole = data.root.flops + data.backward_flops + (data.recompute_flops or 0) + optimizer
    parts = f"{data.unit} of all phases, the optimizer's {units.count(optimizer)} included"
    is_whole_block = len(data.steps) > 1 or data.is_without_model
    return Fact("in all" if is_whole_block else "step", units.count(whole), [*_exact(whole), parts])


def _training(data: Summary, backward: int) -> Fact:
    outside = 0 if data.outside is None else data.outside.flops
    details = [
        f"{data.unit} of forward {units.count(data.root.flops - outside)}",
        *([f"outside the model {units.count(outside)}"] if outside else []),
        f"backward {units.count(backward)}",
        *([f"plus recompute {units.count(data.recompute_flops)}"] if data.recompute_flops else []),
    ]
    return Fact("training", ("" if data.complete else ">= ") + units.count(data.root.flops + backward), details)


def _sent(rows: Sequence[Collective]) -> Fact:
    """Return the line with the bytes that this process sends, separately for each collective and process group."""
    known = [row.sent for row in rows if row.sent is not None]
    bound = ">= " if len(known) < len(rows) else ""
    details = [
        f"{row.op} x{row.calls}{f' in {plain(row.group)}' * bool(row.group)}"
        f"{'' if row.ranks is None else f' ({row.ranks})'} {units.size(row.sent)}"
        for row in rows
    ]
    return Fact("sent", bound + units.size(sum(known)), details)


def _latency(label: str, latency: Timing | None, nodes: float | None, flops: int, on_accelerator: bool) -> Fact:
    """Return the line with the latency of the model's forward or backward, the sum of its nodes' times, and the FLOP/s.

    On an accelerator, the nodes' times are the device's work. If the latency is longer than their sum, the device waits for the host.
    """
    median, details = (None, []) if latency is None else (latency.median, [_repeats(latency)])
    if nodes is not None:
        ratio = f" ({nodes / median:.2f}x)" if median else ""
        waits = on_accelerator and median is not None and nodes < WORKING * median
        details.append(f"operations add up to {units.seconds(nodes)}{ratio}{', the device waits for the host' * waits}")
    if median and flops:
        details.append(units.amount(flops / median, "FLOP/s"))
    return Fact(label, units.seconds(median), details)


def _compiled(compiled: CompiledRun) -> list[Fact]:
    """Return the lines about the compiled model: its time, its graph breaks, the reasons for recompilations, and the modules that did not
    get faster."""
    run = compiled.run
    if run.latency is None:
        return [Fact("compiled", "no", [f"not timed: {plain(run.missing)}"])]
    details = [
        _repeats(run.latency),
        *([f"{compiled.speedup:.2f}x as fast as eager"] if compiled.speedup else []),
        f"{run.graphs or 'no'} graph{'s' * (run.graphs != 1)}",
        *([f"compiled in {units.seconds(run.compiling)}"] if run.compiling else []),
    ]
    facts = [Fact("compiled", units.seconds(run.latency.median), details)]
    if (backward := run.backward_latency) is not None:
        gain = f"{compiled.backward_speedup:.2f}x as fast as eager" if compiled.backward_speedup else ""
        facts.append(
            Fact("", units.seconds(backward.median), [*filter(None, ["its backward", _repeats(backward), gain])])
        )
    for label, found in (("breaks", run.breaks), ("rebuilt", run.recompilations)):
        shown = [Fact("", "", [plain(where), plain(reason)], "  ") for reason, where in found[:MOST_MISSING]]
        facts += [shown[0]._replace(label=label, value=f"{len(found)}"), *shown[1:]] if shown else []
    if compiled.unsteady:
        facts.append(Fact("no gain", "", [f"kernels {UNSTEADY}"]))
    if losers := compiled.losers:
        facts.append(Fact("no gain", f"{len(losers)}", [", ".join(map(plain, losers[:MOST_MISSING]))]))
    return facts


def _enough_workers(whole: StepTime, workers: int) -> str:
    """Return advice for a loop that waits for its batches: the number of workers that load batches as fast as the loop uses them.

    Without workers, the time to load all batches is the waiting time. Else all workers load all the time, as long as the block.
    """
    used = max(whole.seconds - whole.loading, 1e-9)
    needed = math.ceil(round((whole.seconds * workers if workers else whole.loading) / used, 3))
    if needed > MANY_WORKERS:
        return (
            f"loading takes about {needed} times as long as the rest of the loop: make it cheaper, and use many workers"
        )
    free = f", if {needed} cores are free for them" if needed > 1 else ""
    return f"a DataLoader with about {needed} worker{'s' * (needed > 1)} (num_workers={needed}) loads batches as fast as the loop uses them{free}"


def _block(
    steps: Mapping[str, StepTime], instruments: float | None, device: float | None, workers: Sequence[int]
) -> list[Fact]:
    """Return the lines about a profiled block: the parts of its time, the time in which the device worked, and the time of a step."""
    whole = StepTime._make(map(sum, zip(*steps.values(), strict=True)))
    parts = {"forward": whole.forward, "backward": whole.backward, "optimizer": whole.optimizer}
    details = [
        *(f"{name} {units.seconds(part)}" for name, part in parts.items() if part),
        *([f"{loading(whole, workers)}"] if whole.loading else []),
        f"other code {units.seconds(whole.between)}",
        *([f"excluding {units.seconds(instruments)} of profiling overhead"] if instruments else []),
    ]
    facts = [Fact("block", units.seconds(whole.seconds), details)]
    if instruments is not None and instruments > max(INFLATED * whole.seconds, 1.0):
        facts.append(Fact("", "", [TOO_LONG]))
    if whole.loading >= WAITS * whole.seconds and workers:
        facts.append(Fact("", "", [_enough_workers(whole, min(workers))]))
    if device is not None and whole.seconds:
        said = [f"busy for {device / whole.seconds:.0%} of the block"]
        if device < WORKING * whole.seconds:
            said.append(
                'otherwise it waits for the host, which profiling slows down; detail="steps" times the loop at full speed'
            )
        facts.append(Fact("device", units.seconds(device), said))
    by_model: dict[str, list[StepTime]] = {}
    for name, step in steps.items():
        if name != OUTSIDE and step.seconds:
            model = name.rpartition(" step ")[0] if " step " in name else ""
            by_model.setdefault(model, []).append(step)
    facts += [_step_times(plain(model) if len(by_model) > 1 else "", timed) for model, timed in by_model.items()]
    return facts


def _step_times(model: str, steps: Sequence[StepTime]) -> Fact:
    """Return the line with the median time of steps. ``model`` names the model that was called, if there are several."""
    taken = [step.seconds for step in steps]
    rates = [step.flops / step.seconds for step in steps if step.flops]
    median = statistics.median(taken)
    details = [
        *([f"each a call of {model}"] if model else []),
        *([f"median, {_spread(median, min(taken), max(taken))}"] if len(taken) > 1 else []),
        *([units.amount(statistics.median(rates), "FLOP/s")] if rates else []),
    ]
    return Fact("step" if len(taken) == 1 else f"{len(taken):,} steps", units.seconds(median), details)


def _code(lines: Sequence[CodeLine], is_unobserved: bool) -> Fact:
    """Return the line with the slowest lines of the user's code, by host time."""
    if not lines:
        return Fact("code", "-", ["too short to sample lines of code (one sample per millisecond)"])
    whole = sum(line.seconds for line in lines)
    details = [
        f"{PurePath(line.place).name}{f' {line.function}()' * line.function.isidentifier()} {units.seconds(line.seconds)} ({line.seconds / whole:.0%})"
        for line in lines[:MOST_LINES]
    ]
    if not is_unobserved:
        details.append(
            'observing operations slows down some lines more than others; detail="steps" samples at full speed'
        )
    return Fact("code", units.seconds(whole), details)


def _repeats(of: Timing) -> str:
    return f"median of {of.repeats}, {_spread(of.median, of.low, of.high)}" if of.repeats > 1 else "1 run"


def _spread(median: float, low: float, high: float) -> str:
    """Return the lowest and the highest time as text. The two times have the unit of the median time; the unit itself is left out."""
    unit = units.seconds(median).split()[-1]
    return f"{units.seconds(low, unit).split()[0]}-{units.seconds(high, unit).split()[0]}"
