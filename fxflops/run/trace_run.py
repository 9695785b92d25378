"""A Run from a trace: its operators as calls, each with its phase, module, kernels and time."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import nn

from ..errors import InputError
from ..meters.history import Place, Remembered
from ..meters.kernels import summed
from ..meters.nodes import Node
from ..meters.stopwatch import BETWEEN
from ..meters.timing import Timing
from ..model.inventory import Module
from ..ops import FormulaRegistry
from ..records import Call, Operation, Scope, Step
from .outcome import Environment, Run
from .trace_file import Event, TraceFile, read_file
from .trace_operations import Operations, tensor_dtype
from .trace_places import BACKWARD, FORWARD, GRADIENT, RECOMPUTE, Places, Seen

STEP, ONE_STEP = "ProfilerStep#", "step 1"
UNKNOWN = "unknown"
COPIES, EARLIER = "copied by no operator", "begun before the trace"
"""The names of the nodes for what the device did for no call."""
BACKWARDS = {BACKWARD, RECOMPUTE}
PART_OF = {GRADIENT: FORWARD, RECOMPUTE: BACKWARD}
"""The phases whose time is part of another phase's."""


def run_of_trace(path: str | os.PathLike[str], registry: FormulaRegistry, hardware: str | None = None) -> Run:
    """Return the run that a trace shows; ``hardware`` is the device's name, where the trace does not have it.

    Raises InputError if the file is no trace with shapes.
    """
    trace = read_file(path)
    operations = Operations(registry, _commonest_dtype(trace))
    places = Places(trace, operations.sees)
    found = [(each, _operation(each, operations)) for each in places.seen]
    works = {operation for each, operation in found if each.kernels or each.inner}
    # Checkpoint stops recomputing inside an operator, which autograd has recorded and which does not run any more.
    found = [
        (each, operation)
        for each, operation in found
        if each.phase != RECOMPUTE or each.kernels or each.inner or operation not in works
    ]
    has_device = bool(trace.on_device)
    if hardware is not None and not has_device:
        raise InputError(f"device={hardware!r}, but {trace.name} has no kernels: it is of a CPU run; leave out device=")
    made = [_made(i, *each, has_device) for i, each in enumerate(found)]
    calls, nodes = tuple(call for call, _ in made), tuple(node for _, node in made if node is not None)
    apart = {COPIES: places.copies, EARLIER: places.earlier}
    nodes += tuple(_without_call(name, events) for name, events in apart.items() if events)
    device = trace.hardware if hardware is None else f"{trace.hardware.partition(' ')[0]} ({hardware})"
    return Run(
        trace.name,
        "",
        calls,
        tuple(_scopes(places)),
        None,
        Remembered(0, Place(), (), ()),
        UNKNOWN,
        (Module("", trace.name, None), *(Module(path, cls, None) for path, cls in places.modules.items())),
        None,
        Environment(device, "", "", ""),
        "torch.profiler's trace",
        nodes=nodes,
        steps=tuple(_steps(trace, [each for each, _ in found])),
    )


def _operation(seen: Seen, operations: Operations) -> Operation:
    """Return what ran; of a kernel that no operator launched nobody knows what it computed."""
    event = seen.event
    return operations.of(event) if event.is_operator else Operation(event.name, event.name, (), {}, None)


def _made(number: int, seen: Seen, operation: Operation, has_device: bool) -> tuple[Call, Node | None]:
    """Return a call, with a node for its kernels, if it has any. Without a device its time is that of the host."""
    event = seen.event
    if not has_device or not seen.kernels:
        seconds = event.seconds if event.is_operator and not has_device else None
        return Call(operation, seen.path, "", "", seconds, seen.phase), None
    kernels = summed((kernel.name, kernel.seconds) for kernel in seen.kernels)
    seconds = _busy(seen.kernels) / 1e9
    timing = Timing(seconds, seconds, seconds, 1)
    node = Node(
        f"{event.name} {number}",
        "call_function",
        event.name,
        event.name,
        seen.path,
        "",
        range(number, number + 1),
        timing=timing if seen.phase in (FORWARD, GRADIENT) else None,
        backward_timing=timing if seen.phase in BACKWARDS else None,
        kernels=kernels,
    )
    return Call(operation, seen.path, node.name, "", seconds, seen.phase), node


def _without_call(name: str, events: Iterable[Event]) -> Node:
    kernels = summed((event.name, event.seconds) for event in events)
    return Node(name, "", "", "", "", "", range(0), kernels=kernels)


def _scopes(places: Places) -> Iterator[Scope]:
    """Yield the module calls. A trace has the names of their classes only, so that each is a plain Module."""
    parents = {path.rpartition(".")[0] for path in places.modules}
    for path in places.entered:
        ran = Operation(places.modules[path], nn.Module, (), {}, None)
        yield Scope(path, ran, {}, path in parents)


def _commonest_dtype(trace: TraceFile) -> torch.dtype:
    """Return the commonest floating dtype of a trace's tensors: that of lists of tensors, which a trace does not tell."""
    names = Counter(
        name
        for events in trace.threads.values()
        for event in events
        if event.is_operator
        for name in event.args.get("Input type") or ()
    )
    found = (tensor_dtype(name) for name, _ in names.most_common())
    return next((dtype for dtype in found if dtype is not None and dtype.is_floating_point), torch.float32)


def _steps(trace: TraceFile, seen: Sequence[Seen]) -> Iterator[Step]:
    """Yield the steps: those of the profiler's ``step()``, or one that is all of the trace.

    On a device a step lasts from its first kernel to that of the next: the host may be far ahead.
    """
    hosts = [event for events in trace.threads.values() for event in events]
    marks = sorted({(event.start, event.name) for event in hosts if event.name.startswith(STEP)})
    marks = marks or [(min((each.event.start for each in seen), default=0), ONE_STEP)]
    starts, has_device = [each.event.start for each in seen], bool(trace.on_device)
    bounds = [*(bisect_left(starts, mark) for mark, _ in marks), len(seen)]
    ran = [_events(seen[first:last], has_device) for first, last in pairwise(bounds)]
    times = [min((event.start for event in events), default=marks[i][0]) for i, events in enumerate(ran)]
    times.append(max((event.end for events in ran for event in events), default=times[-1]))
    for i, (_, name) in enumerate(marks):
        numbers = range(bounds[i], bounds[i + 1])
        by_phase: dict[str, list[Seen]] = {}
        for each in seen[numbers.start : numbers.stop]:
            by_phase.setdefault(PART_OF.get(each.phase, each.phase), []).append(each)
        parts = {phase: _busy(_events(found, has_device)) / 1e9 for phase, found in by_phase.items()}
        parts[BETWEEN] = max(0.0, (times[i + 1] - times[i]) / 1e9 - sum(parts.values()))
        yield Step(name.replace("#", " "), numbers, parts if any(parts.values()) else {})


def _events(seen: Iterable[Seen], has_device: bool) -> list[Event]:
    """Return what took the time of these calls: their kernels, or on a CPU they themselves."""
    return [event for each in seen for event in (each.kernels if has_device else [each.event])]


def _busy(events: Iterable[Event]) -> int:
    """Return the nanoseconds in which at least one of the events went on."""
    total = reached = 0
    for event in sorted(events, key=lambda event: event.start):
        total += max(0, event.end - max(event.start, reached))
        reached = max(reached, event.end)
    return total
