"""Write a report as a Chrome trace for Perfetto and chrome://tracing. The trace shows modules, operations and memory.

The format is described at https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Operations are measured one by one, so the trace shows them in run order without overlap. Each phase has its own lane (a thread). A phase
starts at the end of the previous phase.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

from ..counting.counted_run import CountedRun
from ..records import FORWARD, PHASES, prefixes
from ..render.text import plain
from ..run.outcome import Run
from .tables import operation_table

Event = dict[str, Any]
FLOPS_PER_US = 10**6
BY_TIME = "measured"
BY_FLOPS = "nothing was timed: 1 us represents 1 MFLOP"
GRAIN = 8
"""Times are rounded to 1/8 of a microsecond, which is exact in binary and in nanoseconds. Otherwise, if a viewer rounds times, an
operation could end after its module."""
ARGS = ("node", "module", "target", "inputs", "output", "params", "macs", "flops", "int_ops", "seconds", "counts")


def chrome_trace(counted_run: CountedRun) -> dict[str, Any]:
    """Return the trace of a run's operations as JSON data.

    If nothing was timed, the length of an operation's slice represents its FLOPs; the lanes' names and the metadata say so.
    """
    run = counted_run.run
    rows = operation_table(counted_run).to_dicts()
    is_timed = any(row["seconds"] is not None for row in rows)
    durations = BY_TIME if is_timed else BY_FLOPS
    process = f"{plain(run.model)} {plain(run.inputs)}".strip()
    events = [_event("M", "process_name", {"name": process}, tid=0)]
    start = 0.0
    for lane, phase in enumerate(PHASES):
        rows_of_phase = [row for row in rows if row["phase"] == phase]
        if rows_of_phase:
            ends = list(accumulate((_length(row, is_timed) for row in rows_of_phase), initial=start))
            bounds = [round(GRAIN * end) / GRAIN for end in ends]
            lane_name = phase if is_timed else f"{phase} ({durations})"
            events.append(_event("M", "thread_name", {"name": lane_name}, tid=lane))
            events += _slices(counted_run, rows_of_phase, bounds, lane)
            events += _counters(run, rows_of_phase, bounds)
            start = ends[-1]
    metadata = {
        "durations": durations,
        "model": run.model,
        "convention": counted_run.convention,
        "trace": run.recorded_as,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata | run.environment._asdict()}


def _length(row: dict[str, Any], is_timed: bool) -> float:
    """Return the length of an operation's slice in microseconds."""
    return 1e6 * (row["seconds"] or 0.0) if is_timed else (row["flops"] or 0) / FLOPS_PER_US


def _slices(counted_run: CountedRun, rows: Sequence[dict[str, Any]], bounds: Sequence[float], lane: int) -> list[Event]:
    """Return the "complete" events (ph "X") of one lane. The event of a module comes before the events inside the module."""
    modules = counted_run.modules(FORWARD)
    events: list[Event] = []
    open_modules: list[tuple[str, Event]] = []
    for row, start, end in zip(rows, bounds, bounds[1:], strict=False):
        path = list(prefixes(row["module"]))
        # Close open modules that do not contain this operation. Then open the other modules around this operation.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], zip(path, open_modules, strict=False)))
        del open_modules[shared:]
        for module in path[shared:]:
            cls = modules[module].cls if module in modules else ""
            name = plain(module.rpartition(".")[2]) or plain(counted_run.run.model)
            args = {"module": module, "class": cls}
            events.append(_event("X", name, args, cat="module", ts=start, dur=0.0, tid=lane))
            open_modules.append((module, events[-1]))
        for _, event in open_modules:
            event["dur"] = end - event["ts"]
        args = {key: row[key] for key in ARGS if row[key] not in (None, "")}
        events.append(_event("X", plain(row["op"]), args, cat="operation", ts=start, dur=end - start, tid=lane))
    return events


def _counters(run: Run, rows: Sequence[dict[str, Any]], bounds: Sequence[float]) -> Iterator[Event]:
    """Yield counter events. The events have the allocated bytes before and after each operation, and the peak during the operation.

    Without a graph, yield the live bytes after each call.
    """
    if not run.nodes:
        yield from _live_bytes(run, rows, bounds)
        return
    for row, start, end in zip(rows, bounds, bounds[1:], strict=False):
        for ts, key in ((start, "bytes_before"), (end, "bytes_after")):
            if row[key] is not None:
                yield _event("C", "memory", {"allocated": row[key]}, ts=ts)
        if row["bytes_peak"] is not None:
            yield _event("C", "peak memory within the operation", {"peak": row["bytes_peak"]}, ts=start)


def _live_bytes(run: Run, rows: Sequence[dict[str, Any]], bounds: Sequence[float]) -> Iterator[Event]:
    """Yield the live bytes after each call that changed their number. The run's moments are in call order."""
    moments = deque(moment for moment in run.memory.history.timeline if moment.phase == rows[0]["phase"])
    for row, end in zip(rows, bounds[1:], strict=True):
        if moments and (moments[0].path, moments[0].op) == (row["module"], row["op"]):
            yield _event("C", "memory", dict(moments.popleft().live), ts=end)


def _event(kind: str, name: str, args: dict[str, Any], **rest: Any) -> Event:
    return {"name": name, "ph": kind, "pid": 1, **rest, "args": args}
