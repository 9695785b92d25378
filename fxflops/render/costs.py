"""The table of the most expensive modules, and the shares of the most expensive operators. All others are summed up as "other"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import units
from ..counting.steps import HOST
from ..records.facts import ATTENTION
from .columns import MODULE_COLUMNS, module_cell, module_values
from .data import Summary, TreeRow
from .parts import Part, parts_of
from .text import align, bar, cells, paint, plain

MOST_PARTS = 8
MOST_OPERATORS = 4
LEAST = 0.5
"""If a part has less than this percentage of the FLOPs and of the time, it is added to "other"."""
BAR = 20
OTHER = "other"
ROOM_FOR_BOTH = 56
"""The smallest width of a table with both FLOPs and times, in cells."""
NOT_A_MODULE = {ATTENTION: f"{ATTENTION} (scaled dot product)"}
"""The names to show for operators that could be confused with a module. An attention module also has projections, the operator does not."""


def cost_lines(data: Summary, room: int | None, color: bool) -> list[str]:
    """Return the lines of a table of the most expensive parts.

    A bar shows the share of the time that each part takes. If times are unsteady or missing, the bar shows the share of the FLOPs. If the
    line has no room for both columns, FLOPs and time, the table has only the column whose shares the bar shows.
    """
    parts = costs(data)
    if not parts:
        return []
    timed, by_time = any(part.row.seconds is not None for part in parts), _by_time(data, parts)
    keys, what = ("flops", "flops%", "time", "time%")[: 4 if timed else 2], "time" if by_time else data.unit
    if data.is_unobserved or (timed and room is not None and room < ROOM_FOR_BOTH):
        keys = ("time", "time%") if by_time else ("flops", "flops%")
    columns = [column for column in MODULE_COLUMNS if column.key in keys]
    values = [module_values(part.row, data.root) for part in parts]
    numbers = [[data.unit if column.key == "flops" else column.header for column in columns]]
    for part, found in zip(parts, values, strict=True):
        numbers.append([module_cell(column, found, None, part.row.missing) for column in columns])
    right = align(numbers, [True] * len(columns))
    left = None if room is None else room - max(map(cells, right)) - 2
    lines = align([*zip(["module", *(part.within(left) for part in parts)], right, strict=True)], [False, True])
    free = BAR if room is None else max(min(BAR, room - max(map(cells, lines)) - 2), 0)
    bars = [bar(found["time%" if by_time else "flops%"], free) if free else "" for found in values]
    if free == BAR:
        bars = [f"0%{f'of {what}':^{BAR - 6}}100%", *bars]
    header, rows = lines[: len(lines) - len(bars)], lines[len(lines) - len(bars) :]
    return [*header, *(f"{line}  {paint(b, 'cyan', color)}" for line, b in zip(rows, bars, strict=True))]


def costs(data: Summary) -> list[Part]:
    """Return the most expensive parts, largest first, and then all other parts as "other".

    A class may have its own line and also have modules in "other". The label of "other" then says how many, e.g. "with 3 more Block".
    """
    parts = [part for part in parts_of(data.root) if _is_worth_a_line(part.row, data)]
    by_time = _by_time(data, parts)
    # Round the seconds: sums of floating-point numbers that should be equal differ in their last digits.
    parts.sort(key=lambda part: round(part.row.seconds or 0.0, 9) if by_time else part.row.flops, reverse=True)
    shown = {part.row.cls for part in parts[:MOST_PARTS] if part.modules}
    parts, more = parts[:MOST_PARTS], [part for part in parts[MOST_PARTS:] if part.modules and part.row.cls in shown]
    flops = data.root.flops - sum(part.row.flops for part in parts)
    taken = sum(part.row.seconds or 0.0 for part in parts)
    seconds = None if data.root.seconds is None else data.root.seconds - taken
    if parts and (flops > 0 or (seconds or 0.0) > 1e-9):
        macs = data.root.macs - sum(part.row.macs for part in parts)
        number = sum(len(part.modules) for part in more if part.row.cls == more[0].row.cls)
        said = f"with {number} more {more[0].row.cls}" if more else ""
        left = (data.root.params or 0) - sum(part.row.params or 0 for part in parts)
        params = left if data.root.params is not None and left >= 0 else None  # below 0 if two parts share parameters
        missing = data.root.missing - sum(part.row.missing for part in parts)
        parts.append(Part(TreeRow("", said, OTHER, 0, params, macs, flops, missing=missing, seconds=seconds)))
    return parts


def _by_time(data: Summary, parts: Iterable[Part]) -> bool:
    """Return whether to compare the parts by their time instead of their FLOPs."""
    return (data.is_unobserved or not data.unsteady) and any(part.row.seconds is not None for part in parts)


def operator_shares(data: Summary) -> list[tuple[str, list[str]]]:
    """Return a line with the share of the FLOPs that each operator has. If times were measured, return a second line with the shares of the time.

    Each line is a pair: its label, and the list of shares as text.
    """
    lines = [("by operator", _shares([(op.key, op.total.flops) for op in data.operators]))]
    if any(op.total.seconds for op in data.operators if op.key != HOST):
        lines.append(("by operator, time", _shares([(op.key, op.total.seconds or 0.0) for op in data.operators])))
    return [line for line in lines if line[1]]


def _is_worth_a_line(row: TreeRow, data: Summary) -> bool:
    """Return True if a module has a large enough share of FLOPs or time. Also return True if the share is unknown, because the module was
    neither counted nor timed."""
    flops, seconds = units.percent(row.flops, data.root.flops), units.percent(row.seconds, data.root.seconds)
    return max(flops or 0.0, seconds or 0.0) >= LEAST or (
        row.missing > 0 and seconds is None and not data.is_unobserved
    )


def _shares(values: Sequence[tuple[str, float]]) -> list[str]:
    """For each of the largest values, return a text such as ``linear 95.2%``. Then return one text for the sum of all other values."""
    whole = sum(value for _, value in values)
    ranked = sorted(values, key=lambda pair: -pair[1])
    shown = [*ranked[:MOST_OPERATORS], (OTHER, sum(value for _, value in ranked[MOST_OPERATORS:]))]
    said = [(NOT_A_MODULE.get(name, plain(name)), 100 * value / whole) for name, value in shown if value]
    return [f"{name} {share:.1f}%" for name, share in said if share >= 0.05]
