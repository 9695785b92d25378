"""The modules and operators that cost most, and the rest as "other"."""

from __future__ import annotations

from collections.abc import Sequence

from .. import units
from ..counting.steps import HOST
from .columns import MODULE_COLUMNS, module_cell, module_values
from .data import Summary, TreeRow
from .fold import Fold, folded
from .text import align, bar, cells, paint, plain

MOST_MODULES = 8
MOST_OPERATORS = 4
DOMINANT = 90.0
"""Percent of the FLOPs at which a module is shown as its children."""
BAR = 20
OTHER = "other"


def cost_lines(data: Summary, room: int | None, color: bool) -> list[str]:
    """Return a table of the modules that cost most, with bars of their share of the time, or of FLOPs if not timed."""
    rows = costs(data)
    if not rows:
        return []
    timed = any(row.seconds is not None for row in rows)
    keys = ("calls", "flops", "flops%", "time", "time%") if timed else ("calls", "flops", "flops%")
    columns = [column for column in MODULE_COLUMNS if column.key in keys]
    values = [module_values(row, data.root) for row in rows]
    table = [["module", *(column.header for column in columns)]]
    for row, found in zip(rows, values, strict=True):
        numbers = [module_cell(column, found, None, row.missing) for column in columns]
        table.append([row.path, *(numbers if row.path != OTHER else ["", *numbers[1:]])])
    lines = align(table, [False, *[True] * len(columns)])
    free = BAR if room is None else max(min(BAR, room - max(map(cells, lines)) - 2), 0)
    bars = [bar(found["time%" if timed else "flops%"], free) if free else "" for found in values]
    return [lines[0], *(f"{line}  {paint(b, 'cyan', color)}" for line, b in zip(lines[1:], bars, strict=True))]


def costs(data: Summary) -> list[TreeRow]:
    """Return the modules that cost most, largest first, with ``path`` as it is shown; the rest is a row "other"."""
    items = folded(data.root.children)
    # Replace wrappers by their children until no single module has nearly all FLOPs.
    while (heavy := _dominant(items, data.root.flops)) is not None:
        items = [item for item in items if item is not heavy] + folded(heavy.row.children)
    rows = [row for row in map(_shown, items) if _is_worth_a_line(row, data)]
    by_time = any(row.seconds is not None for row in rows)
    rows.sort(key=lambda row: (row.seconds or 0.0) if by_time else row.flops, reverse=True)
    rows = rows[:MOST_MODULES]
    flops = data.root.flops - sum(row.flops for row in rows)
    seconds = None if data.root.seconds is None else data.root.seconds - sum(row.seconds or 0.0 for row in rows)
    # Differences of sums of seconds are not exactly 0.
    if rows and (flops > 0 or (seconds or 0.0) > 1e-9):
        rows.append(TreeRow("", "", OTHER, 0, 0, 0, flops, seconds=seconds))
    return rows


def operator_shares(data: Summary) -> list[tuple[str, list[str]]]:
    """Return the operators' shares of FLOPs, and of the time if measured: a label and the parts of each line."""
    lines = [("by operator", _shares([(op.key, op.total.flops) for op in data.operators]))]
    if any(op.total.seconds for op in data.operators if op.key != HOST):
        lines.append(("by operator, time", _shares([(op.key, op.total.seconds or 0.0) for op in data.operators])))
    return [line for line in lines if line[1]]


def _dominant(items: Sequence[Fold], flops: int) -> Fold | None:
    """Return a module with nearly all FLOPs, to be shown as its children; None if there is none.

    A module that only repeats one block is no such wrapper: it is shown itself, with the number of blocks.
    """
    for item in items:
        inside = folded(item.row.children)
        is_heavy = (units.percent(item.row.flops, flops) or 0.0) >= DOMINANT
        if item.count == 1 and is_heavy and inside and not _is_one_block(inside):
            return item
    return None


def _shown(item: Fold) -> TreeRow:
    """Return one row for a fold, named by its path and the number of repeats (of itself, or of the one block in it)."""
    inside = folded(item.row.children)
    count, row = item.count, item.total()
    if count == 1 and _is_one_block(inside):
        count, row = inside[0].count, row._replace(calls=inside[0].total().calls)
    return row._replace(path=plain(item.path) + (f" (x{count})" if count > 1 else ""))


def _is_worth_a_line(row: TreeRow, data: Summary) -> bool:
    """Return True if its share does not print as 0.0, or is unknown because it is neither counted nor timed."""
    flops, seconds = units.percent(row.flops, data.root.flops), units.percent(row.seconds, data.root.seconds)
    return max(flops or 0.0, seconds or 0.0) >= 0.05 or (row.missing > 0 and seconds is None)


def _is_one_block(items: Sequence[Fold]) -> bool:
    return len(items) == 1 and items[0].count > 1


def _shares(values: Sequence[tuple[str, float]]) -> list[str]:
    """Return ``linear 95.2%`` for each of the largest, and one share for the rest."""
    whole = sum(value for _, value in values)
    ranked = sorted(values, key=lambda pair: -pair[1])
    shown = [*ranked[:MOST_OPERATORS], (OTHER, sum(value for _, value in ranked[MOST_OPERATORS:]))]
    return [f"{plain(name)} {100 * value / whole:.1f}%" for name, value in shown if value]
