"""A report as a Chrome trace for Perfetto and chrome://tracing: modules, their operations, and memory.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Operations were measured one by one, so they are laid end to end in run order. Each phase has a lane (a thread) of its
own and starts where the phase before it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

from ..counting.counted_run import CountedRun
from ..records import PHASES, prefixes
from ..render.exports import Table
from ..render.text import plain

Event = dict[str, Any]
FLOPS_PER_US = 10**6
BY_TIME = "measured"
BY_FLOPS = "nothing was timed: 1 us stands for 1 MFLOP"
GRAIN = 8
"""Times are rounded to eighths of a microsecond. Those are exact in binary and whole nanoseconds, so that no operation
ends after the module it is in, however a reader rounds."""
ARGS = ("node", "module", "target", "inputs", "output", "params", "macs", "flops", "int_ops", "seconds", "counts")


def chrome_trace(totals: CountedRun, table: Table) -> dict[str, Any]:
    """Return the trace of the operations in ``table`` as JSON data.

    If nothing was timed, lengths stand for FLOPs; the lanes' names and metadata say so.
    """
    rows = table.to_dicts()
    timed = any(row["seconds"] is not None for row in rows)
    said = BY_TIME if timed else BY_FLOPS
    process = f"{plain(totals.model)} {plain(totals.inputs)}".strip()
    events = [_event("M", "process_name", {"name": process}, tid=0)]
    start = 0.0
    for lane, phase in enumerate(PHASES):
        found = [row for row in rows if row["phase"] == phase]
        if found:
            # Microseconds at which operations end.
            lengths = (1e6 * (row["seconds"] or 0.0) if timed else (row["flops"] or 0) / FLOPS_PER_US for row in found)
            ends = list(accumulate(lengths, initial=start))
            bounds = [round(GRAIN * end) / GRAIN for end in ends]
            events.append(_event("M", "thread_name", {"name": phase if timed else f"{phase} ({said})"}, tid=lane))
            events += _slices(totals, found, bounds, lane)
            events += _counters(totals, found, bounds)
            start = ends[-1]
    about = {"durations": said, "model": totals.model, "convention": totals.convention, "trace": totals.trace}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about | totals.environment._asdict()}


def _slices(totals: CountedRun, rows: Sequence[dict[str, Any]], bounds: Sequence[float], lane: int) -> list[Event]:
    """Return the "complete" events (ph "X") of one lane, each module's before the events inside it."""
    modules = totals.by_module()
    events: list[Event] = []
    inside: list[tuple[str, Event]] = []
    for row, start, end in zip(rows, bounds, bounds[1:], strict=False):
        path = list(prefixes(row["module"]))
        # Leave the open modules that this operation is not in, then open those that it is in.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], zip(path, inside, strict=False)))
        del inside[shared:]
        for module in path[shared:]:
            cls = modules[module].cls if module in modules else ""
            name = plain(module.rpartition(".")[2]) or plain(totals.model)
            about = {"module": module, "class": cls}
            events.append(_event("X", name, about, cat="module", ts=start, dur=0.0, tid=lane))
            inside.append((module, events[-1]))
        for _, event in inside:
            event["dur"] = end - event["ts"]
        said = {key: row[key] for key in ARGS if row[key] not in (None, "")}
        events.append(_event("X", plain(row["op"]), said, cat="operation", ts=start, dur=end - start, tid=lane))
    return events


def _counters(totals: CountedRun, rows: Sequence[dict[str, Any]], bounds: Sequence[float]) -> Iterator[Event]:
    """Yield counter events: the bytes allocated before and after each operation and its peak; without a graph, the live
    bytes after each call."""
    if not totals.nodes:
        yield from _live_bytes(totals, rows, bounds)
        return
    for row, start, end in zip(rows, bounds, bounds[1:], strict=False):
        for ts, key in ((start, "bytes_before"), (end, "bytes_after")):
            if row[key] is not None:
                yield _event("C", "memory", {"allocated": row[key]}, ts=ts)
        if row["bytes_peak"] is not None:
            yield _event("C", "memory at most within the operation", {"peak": row["bytes_peak"]}, ts=start)


def _live_bytes(totals: CountedRun, rows: Sequence[dict[str, Any]], bounds: Sequence[float]) -> Iterator[Event]:
    moments = deque(moment for moment in totals.timeline if moment.phase == rows[0]["phase"])
    for row, end in zip(rows, bounds[1:], strict=True):
        if moments and (moments[0].path, moments[0].op) == (row["module"], row["op"]):
            yield _event("C", "memory", dict(moments.popleft().live), ts=end)


def _event(kind: str, name: str, args: dict[str, Any], **rest: Any) -> Event:
    return {"name": name, "ph": kind, "pid": 1, **rest, "args": args}
