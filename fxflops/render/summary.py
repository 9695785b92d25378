"""The one-screen summary: how much, how long, how large, where the cost is, and last what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import units
from .data import Missing, OperatorShare, Summary, TreeRow
from .fold import Fold, folded
from .text import align, bar, cells, pad, paint, plain, terminal_width

MOST_MODULES = 8
MOST_OPERATORS = 4
MOST_MISSING = 8
LABEL, VALUE = 9, 12
DOMINANT = 90.0


class Fact(NamedTuple):
    """One line: a label, its number, and what is said beside it."""

    label: str
    value: str
    details: Sequence[str]
    separator: str = " · "


def summary(data: Summary, *, width: int | None = None, color: bool = False) -> str:
    """The summary as text, of lines of at most ``width`` cells (by default the terminal's): longer ones are continued."""
    limit = terminal_width() if width is None else width
    head = [plain(data.title), *([f"input {plain(data.inputs)}"] if data.inputs else []), plain(data.setting)]
    lines = flow(paint(head[0], "bold", color), head[1:], "   ", limit, indent=4)
    for fact in facts(data):
        lines += flow(pad(fact.label, LABEL) + pad(fact.value, VALUE), fact.details, fact.separator, limit, LABEL + VALUE)
    lines += cost_lines(data, limit, color)
    for label, shares in operator_shares(data):
        lines += flow(pad(label, LABEL + VALUE), shares, " · ", limit, LABEL + VALUE)
    lines += [paint(line, "red", color) for line in missing_lines(data.missing)]
    if data.paste:
        lines += ["to count it, paste:", *(f"    {line}" for line in data.paste.rstrip().splitlines())]
    return "\n".join(line.rstrip() for line in lines)


def facts(data: Summary) -> list[Fact]:
    """The lines with a number each; what was not measured has none."""
    found = [_counts(data)]
    if data.backward_flops is not None:
        found.append(_training(data, data.backward_flops))
    found.append(_params(data))
    if data.latency is not None or data.nodes_seconds is not None:
        found.append(_latency(data))
    if data.bytes_peak is not None:
        parts = " + ".join(f"{name} {units.size(part)}" for name, part in data.memory.items())
        details = [f"peak = {parts}" if parts else "peak", *([f"at {plain(data.peak_at)}"] if data.peak_at else [])]
        found.append(Fact("memory", units.size(data.bytes_peak), details, "; "))
    return found


def flow(start: str, parts: Sequence[str], separator: str, limit: int | None, indent: int) -> list[str]:
    """``start`` and the parts in lines of at most ``limit`` cells; a part is never broken."""
    lines, empty = [start], cells(start) >= indent and start.endswith(" ")
    for part in parts:
        joined = lines[-1] + ("" if empty else separator) + part
        if limit is None or empty or cells(joined) <= limit:
            lines[-1] = joined
        else:
            lines.append(" " * indent + part)
        empty = False
    return lines


def cost_lines(data: Summary, limit: int | None, color: bool) -> list[str]:
    """The table of the modules that cost most, with bars of their share of the time, of FLOPs where nothing was timed."""
    rows = costs(data)
    if not rows:
        return []
    timed = any(row.seconds is not None for row in rows)
    header = ["module", "calls", "FLOPs", "%", *(["time", "%"] if timed else [])]
    table = align([header, *(_cost_cells(row, data, timed) for row in rows)], [False, *[True] * (len(header) - 1)])
    margin = " " * (LABEL + VALUE)
    room = 20 if limit is None else min(20, limit - len(margin) - max(map(cells, table)) - 2)
    bars = [bar(_time_share(row, data) if timed else _flops_share(row, data), room) if room > 0 else "" for row in rows]
    lines = [pad("where the cost is", LABEL + VALUE) + table[0]]
    return lines + [f"{margin}{line}  {paint(b, 'cyan', color)}" for line, b in zip(table[1:], bars, strict=True)]


def costs(data: Summary) -> list[TreeRow]:
    """The modules that cost most, largest first, their ``path`` as shown; the rest of the whole in a row "other"."""
    items = folded(data.modules)
    while (heavy := _dominant(items, data)) is not None:
        items = [item for item in items if item is not heavy] + folded(heavy.row.children)
    rows = [row for row in map(_shown, items) if row.flops or row.seconds or row.missing]
    by_time = any(row.seconds is not None for row in rows)
    rows.sort(key=lambda row: (row.seconds or 0.0) if by_time else row.flops, reverse=True)
    rows = rows[:MOST_MODULES]
    flops = data.flops - sum(row.flops for row in rows)
    seconds = None if data.nodes_seconds is None else data.nodes_seconds - sum(row.seconds or 0.0 for row in rows)
    if rows and (flops > 0 or (seconds or 0.0) > 1e-9):
        rows.append(TreeRow("", "", "other", 0, 0, 0, flops, seconds=seconds))
    return rows


def operator_shares(data: Summary) -> list[tuple[str, list[str]]]:
    """The operators' shares of FLOPs, and of the time where it was measured, as labelled parts of a line."""
    by_flops = _shares(data.operators, [op.flops for op in data.operators])
    by_time = _shares(data.operators, [op.seconds or 0.0 for op in data.operators])
    return [line for line in (("by operator", by_flops), ("operators' time", by_time)) if line[1]]


def missing_lines(missing: Sequence[Missing]) -> list[str]:
    """A line for each kind of call that is not counted."""
    lines = [_missing_line(item) for item in missing[:MOST_MISSING]]
    rest = missing[MOST_MISSING:]
    if rest:
        lines.append(f"not counted: {len(rest)} more kinds, {sum(item.calls for item in rest)} calls")
    return lines


def _counts(data: Summary) -> Fact:
    bound = "" if data.complete else ">= "
    attention = f", attention {data.attention}" if data.attention else ""
    state = "complete" if data.complete else "INCOMPLETE"
    details = [
        f"FLOPs  {bound}{units.count(data.flops)}  (convention {plain(data.convention)}{attention})",
        *([f"{units.count(data.int_ops)} integer ops"] if data.int_ops else []),
        f"{state}: {data.counted_calls:,}/{data.calls:,} calls",
    ]
    return Fact("MACs", bound + units.count(data.macs), details, "    ")


def _training(data: Summary, backward: int) -> Fact:
    recompute = data.recompute_flops or 0
    details = [f"FLOPs of forward {units.count(data.flops)}", f"backward {units.count(backward)}"]
    details += [f"recompute {units.count(recompute)}"] if recompute else []
    bound = "" if data.complete else ">= "
    return Fact("training", bound + units.count(data.flops + backward + recompute), details)


def _params(data: Summary) -> Fact:
    parts = {"trainable": data.params_trainable, "frozen": data.params_frozen, "buffers": data.buffers}
    details = [f"{name} {units.count(number)}" for name, number in parts.items()]
    return Fact("params", units.count(data.params_total), [*details, units.size(data.params_bytes)])


def _latency(data: Summary) -> Fact:
    details = []
    median = None
    if data.latency is not None:
        median, low, high, repeats = data.latency
        unit = units.seconds(median).split()[-1]
        spread = f"{units.seconds(low, unit).split()[0]}-{units.seconds(high, unit).split()[0]}"
        details.append(f"median of {repeats}, {spread}" if repeats > 1 else "1 run")
    if data.nodes_seconds is not None:
        ratio = f" ({data.nodes_seconds / median:.2f}x)" if median else ""
        details.append(f"sum of nodes {units.seconds(data.nodes_seconds)}{ratio}")
    if median and data.flops:
        rate = units.count(data.flops / median)
        details.append(f"{rate}FLOP/s" if " " in rate else f"{rate} FLOP/s")
    return Fact("latency", units.seconds(median), details)


def _dominant(items: Sequence[Fold], data: Summary) -> Fold | None:
    """The one module with nearly all FLOPs: a wrapper, better shown as what is in it, unless that is one repeated block."""
    for item in items:
        inside = folded(item.row.children)
        is_repeated = len(inside) == 1 and inside[0].count > 1
        if item.count == 1 and inside and not is_repeated and (units.percent(item.row.flops, data.flops) or 0) >= DOMINANT:
            return item
    return None


def _shown(item: Fold) -> TreeRow:
    from dataclasses import replace

    inside = folded(item.row.children)
    count, row = item.count, item.total()
    if count == 1 and len(inside) == 1 and inside[0].count > 1:
        count, row = inside[0].count, replace(row, calls=inside[0].total().calls)
    return replace(row, path=plain(item.path) + (f" (x{count})" if count > 1 else ""))


def _cost_cells(row: TreeRow, data: Summary, timed: bool) -> list[str]:
    flops = (">= " if row.missing else "") + units.count(row.flops)
    calls = f"{row.calls:,}" if row.calls else ""
    found = [row.path, calls, flops, _percent(_flops_share(row, data))]
    return [*found, units.seconds(row.seconds), _percent(_time_share(row, data))] if timed else found


def _flops_share(row: TreeRow, data: Summary) -> float | None:
    return units.percent(row.flops, data.flops)


def _time_share(row: TreeRow, data: Summary) -> float | None:
    return units.percent(row.seconds, data.nodes_seconds)


def _percent(share: float | None) -> str:
    return units.NOT_MEASURED if share is None else f"{share:.1f}"


def _shares(operators: Iterable[OperatorShare], values: Sequence[float]) -> list[str]:
    whole = sum(values)
    ranked = sorted(zip(values, operators, strict=True), key=lambda pair: -pair[0])
    shown = [(plain(op.name), value) for value, op in ranked[:MOST_OPERATORS] if value]
    rest = sum(value for value, _ in ranked[MOST_OPERATORS:])
    shown += [("other", rest)] if rest else []
    return [f"{name} {100 * value / whole:.1f}%" for name, value in shown]


def _missing_line(item: Missing) -> str:
    parts = [f"not counted: {plain(item.name)} x{item.calls}" + (f" in {plain(item.where)}" if item.where else "")]
    parts += [plain(item.shapes)] if item.shapes else []
    return "  ".join([*parts, *([f"({plain(item.site)})"] if item.site else [])])
