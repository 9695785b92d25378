"""Extrapolate a deep model from two or three shallow ones. This works if all layers add the same work and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from ..counting.collectives import Collective, by_group, collectives
from ..records import BACKWARD, FORWARD
from ..report.report import Report

N = TypeVar("N", int, float)
FEWEST = 4
"""The least number of layers of a shallow model: the first two and the last two layers may differ from the middle layers. With FSDP, for
example, the first layer is the only one that does not gather another layer's parameters ahead of time."""
Figures = Mapping[Hashable, Sequence[int]]
"""Numbers that describe a step (work, bytes), by a key that says what they describe, e.g. an operator in a phase."""


class Deeper(NamedTuple):
    """How to extrapolate from a shallow model's report to a deep model.

    ``less`` is the report of an even shallower model. The difference between the two reports is added ``times`` times. ``memory`` has the
    bytes at the deep model's peak, by category.
    """

    less: Report
    times: int
    memory: Mapping[str, int]


def depths(layers: int, step: int, number: int) -> Sequence[int]:
    """Return ``number`` depths of shallow models from which a model with ``layers`` layers is extrapolated.

    The depths differ by ``step``, the number of ranks among which the layers are divided. The result is empty if the model is not
    deeper than these depths.
    """
    first = FEWEST * step + (layers - FEWEST * step) % step
    found = [first + i * step for i in range(number)]
    return [] if not found or found[-1] >= layers else found


def deeper(reports: Sequence[Report], times: int) -> Deeper | None:
    """Return how to extrapolate from the deepest of the shallow models to the deep model; None if the models do not grow evenly.

    The difference between the last two models is added ``times`` times. Work, collectives and parameters must grow linearly with the
    number of layers; checking this takes three models. The live bytes at each call's peak must also change evenly from layer to
    layer; checking this takes two models. The deep model's peak is then at a call that the shallow models also make. The call is in the
    first two layers, in the last two layers, or outside the layers.
    """
    if _grown([_work(report) for report in reports], times) is None:
        return None
    held = _by_place(reports)
    peaks = None if held is None else _grown(held, times)
    if not peaks:
        return None
    highest = max(peaks.values(), key=sum)
    return Deeper(
        reports[-2], times, {name: size for name, size in zip(_peaks(reports[0])[0].live, highest, strict=True) if size}
    )


def extended(now: N, before: N, times: int) -> N:
    """Extrapolate a number: add the difference from the shallower model's number (``before``) ``times`` times."""
    return now + times * (now - before)


def collectives_of(report: Report, more: Deeper | None) -> list[Collective]:
    """Return the sums of a report's collectives, by operation and group. With ``more``, extrapolate the sums to the deeper model."""
    rows = by_group(collectives(report.counted))
    return rows if more is None else extended_rows(rows, by_group(collectives(more.less.counted)), more.times)


def extended_rows(rows: Iterable[Collective], before: Iterable[Collective], times: int) -> list[Collective]:
    """Extrapolate the rows of a step's collectives. The rows of a smaller step are ``before``; the difference between the two steps is
    added ``times`` times."""
    less = {row.key: row for row in before}

    def more_of(row: Collective, name: str) -> Any:
        now, fewer = getattr(row, name), getattr(less[row.key], name)
        return None if now is None or fewer is None else extended(now, fewer, times)

    return [row._replace(**{name: more_of(row, name) for name in ("calls", "sent", "received")}) for row in rows]


def _work(report: Report) -> Figures:
    """Return the work of each operator in each phase, the collectives, and the parameters."""
    found: dict[Hashable, list[int]] = {}
    for each in report.counted:
        sums = found.setdefault((each.call.phase, each.call.op, each.rule), [0] * 4)
        for i, number in enumerate((1, each.macs, each.flops, each.int_ops)):
            sums[i] += number
    for row in by_group(collectives(report.counted)):
        found[row.key] = [row.calls, *(-1 if size is None else size for size in (row.sent, row.received))]
    found["params"] = [0 if report.params is None else report.params.total]
    return found


def _growing_lists(reports: Sequence[Report]) -> list[dict[tuple[str, ...], int]]:
    """For each report, return the lengths of its module lists, such as a ModuleList of layers, by path. Only lists whose lengths differ
    between the reports are included."""
    lengths = []
    for report in reports:
        found = Counter[tuple[str, ...]]()
        for path in {each.call.path for each in report.counted}:
            names = tuple(path.split("."))
            for i, name in enumerate(names):
                if name.isdigit():
                    found[names[:i]] = max(found[names[:i]], int(name) + 1)
        lengths.append(found)
    same = [
        path
        for path in lengths[0]
        if len({found[path] for found in lengths}) > 1 and all(path in found for found in lengths)
    ]
    return [{path: found[path] for path in same} for found in lengths]


def _by_place(reports: Sequence[Report]) -> Sequence[Figures] | None:
    """For each report, return the live bytes by category at the peak of each call in the first and last layers.

    Calls are identified by their layer, counted from the nearer end. Repeated calls outside the layers are numbered in the same way.
    Return None if the bytes do not change evenly through the layers in the middle.
    """
    rows = [_rows(report, sizes) for report, sizes in zip(reports, _growing_lists(reports), strict=True)]
    found: list[dict[Hashable, Sequence[int]]] = [{} for _ in rows]
    if any(row.keys() != rows[0].keys() for row in rows):
        return None
    for kind, (fewest, _) in rows[0].items():
        for figures, row in zip(found, rows, strict=True):
            length, held = row[kind]
            for number, live in held.items():
                if number < fewest // 2:
                    figures[kind, number] = live
                elif number >= length - (fewest - fewest // 2):
                    figures[kind, number - length] = live
        *_, (length, _), (longest, held) = (row[kind] for row in rows)
        period, half = length - fewest, fewest // 2
        for first in range(half - period, half):
            numbers = range(first, longest - (fewest - half) + period, period)
            inner = [sum(held[number]) for number in numbers if number in held]
            if longest - length != period or len(inner) not in (0, len(numbers)) or not _is_even(inner):
                return None
    return found


def _rows(report: Report, lists: Mapping[tuple[str, ...], int]) -> dict[Hashable, tuple[int, dict[int, Any]]]:
    """For each kind of call in layers, return the number of layers that make the call, and each layer's live bytes by category at the peak
    of the call.

    For each kind of call outside layers, return how often a pass makes the call, and the live bytes at the peak of each repetition.
    """
    seen = Counter[Hashable]()
    passes, phase = 0, ""
    found: dict[Hashable, tuple[int, dict[int, Any]]] = {}
    for moment in _peaks(report):
        live = tuple(moment.live.values())
        passes += moment.phase == FORWARD and phase == BACKWARD
        phase = moment.phase
        nth = seen[moment.phase, moment.path, moment.op]
        seen[moment.phase, moment.path, moment.op] += 1
        path, number, length = _place(moment.path, lists)
        if length:
            found.setdefault((moment.phase, path, moment.op, nth), (length, {}))[1][number] = live
        else:  # keep the passes separate: in the second pass, the same calls run while the first pass's gradients are in memory
            kind = (moment.phase, path, moment.op, passes)
            length, held = found.setdefault(kind, (0, {}))
            held[length] = live
            found[kind] = (length + 1, held)
    return found


def _peaks(report: Report) -> Any:
    """Return the live bytes at the peak of each call that allocates or frees memory. The report must come from a run in this process.

    Calls that allocate and free nothing are skipped, e.g. the calls on empty tensors in torch 2.11's checkpoint. Such calls belong to
    no layer, and their peak equals the peak of another call.
    """
    history: Any = report._run.memory.history
    changes = [*zip(history.changes[1::3], history.changes[2::3], strict=True)]
    numbers = dict.fromkeys(number for _, number in changes if 0 <= number < len(history.calls))
    changing = {number for change, number in changes if change}
    return [moment for number, moment in zip(numbers, history.peaks, strict=True) if number in changing]


def _place(path: str, lists: Mapping[tuple[str, ...], int]) -> tuple[str, int, int]:
    """Split a path into the path without the layer's index, the index, and the number of layers. Outside layers, the number of layers is 0."""
    names = path.split(".")
    for i, name in enumerate(names):
        if name.isdigit() and tuple(names[:i]) in lists:
            return ".".join((*names[:i], "", *names[i + 1 :])), int(name), lists[tuple(names[:i])]
    return path, 0, 0


def _grown(figures: Sequence[Figures], times: int) -> Figures | None:
    """Return the extrapolated numbers of the deep model; None if the shallow models have different keys or do not grow evenly."""
    *_, before, last = figures
    if any(each.keys() != last.keys() for each in figures):
        return None
    if not all(_is_even(each) for key in last for each in zip(*(depth[key] for depth in figures), strict=True)):
        return None
    return {key: tuple(extended(b, a, times) for a, b in zip(before[key], last[key], strict=True)) for key in last}


def _is_even(numbers: Iterable[int]) -> bool:
    """Return whether all differences between successive numbers are equal."""
    return len({after - before for before, after in pairwise(numbers)}) < 2
