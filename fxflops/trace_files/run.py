"""Make a Run from a trace. The run's calls are the trace's operators, each with its phase, module, kernels and time."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from ..errors import InputError
from ..meters.kernels import summed
from ..meters.nodes import Node
from ..meters.stopwatch import BETWEEN
from ..meters.timing import Timing
from ..ops import FormulaRegistry
from ..records import BACKWARD, FORWARD, GRADIENT, RECOMPUTE, Call, Module, Operation, Scope, Step, grouped
from ..run.environment import environment_of_trace
from ..run.outcome import Run, RunMemory
from .arguments import shows_numbers, with_convolutions
from .operations import Operations, commonest_dtype
from .places import TraceOperator, TraceWalk, busy, events_of
from .reading import TraceFile, read_file

STEP, ONE_STEP = "ProfilerStep#", "step 1"
COPIES, EARLIER = "copied by no operator", "begun before the trace"
"""The names of the nodes for device work that does not belong to a call."""
FORWARDS, BACKWARDS = {FORWARD, GRADIENT}, {BACKWARD, RECOMPUTE}
PART_OF = {GRADIENT: FORWARD, RECOMPUTE: BACKWARD}
"""Phases whose time is part of another phase, mapped to this other phase."""


def run_of_trace(path: str | os.PathLike[str], registry: FormulaRegistry, hardware: str | None = None) -> Run:
    """Return the run in a trace. ``hardware`` is the name of the device, which replaces the name in the trace.

    Raises InputError if the file is not a trace with shapes.
    """
    trace = read_file(path)
    has_numbers = shows_numbers(event for events in trace.threads.values() for event in events)
    if not has_numbers:
        trace = trace._replace(threads=with_convolutions(trace.threads))
    operations = Operations(registry, commonest_dtype(trace), has_numbers)
    walk = TraceWalk(trace, operations.sees)
    with_operations = [(operator, operations.of(operator.event)) for operator in walk.operators]
    operations_that_ran = {operation for operator, operation in with_operations if operator.kernels or operator.inner}
    # Checkpoint may stop recomputation inside an operator. Autograd has recorded this operator, but it never runs, so drop it.
    with_operations = [
        (operator, operation)
        for operator, operation in with_operations
        if operator.phase != RECOMPUTE or operator.kernels or operator.inner or operation not in operations_that_ran
    ]
    has_device = bool(trace.on_device)
    if hardware is not None and not has_device:
        raise InputError(
            f"device={hardware!r} does not fit {trace.name}, a trace of a CPU run: it has no kernels; omit device="
        )
    calls_and_nodes = [
        _call_and_node(i, operator, operation, has_device) for i, (operator, operation) in enumerate(with_operations)
    ]
    calls = tuple(call for call, _ in calls_and_nodes)
    nodes = tuple(node for _, node in calls_and_nodes if node is not None)
    for name, events in ((COPIES, walk.copies), (EARLIER, walk.earlier)):
        if events:
            kernels = summed((event.name, event.seconds) for event in events)
            nodes += (Node(name, "", "", "", "", "", range(0), kernels=kernels),)
    # A trace has only the names of the modules' classes, so every module is recorded as a plain Module.
    entered = ((path, Operation(walk.modules[path], torch.nn.Module, (), {}, None)) for path in walk.entered)
    parents = {path.rpartition(".")[0] for path in walk.modules}
    scopes = tuple(Scope(path, operation, {}, path in parents) for path, operation in entered)
    device = trace.hardware if hardware is None else f"{trace.hardware.partition(' ')[0]} ({hardware})"
    return Run(
        model=trace.name,
        inputs="",
        calls=calls,
        scopes=scopes,
        modules=(Module("", trace.name, None), *(Module(path, cls, None) for path, cls in walk.modules.items())),
        params=None,
        aliases={},
        memory=RunMemory.unknown(),
        environment=environment_of_trace(device),
        recorded_as="torch.profiler's trace",
        nodes=nodes,
        steps=tuple(_steps(trace, [operator for operator, _ in with_operations])),
    )


def _call_and_node(
    number: int, operator: TraceOperator, operation: Operation, has_device: bool
) -> tuple[Call, Node | None]:
    """Return a call, and a node for the call's kernels, or None without kernels. In a CPU trace, the call's time is the host's time."""
    event = operator.event
    if not has_device or not operator.kernels:
        seconds = event.seconds if event.is_operator and not has_device else None
        return Call(operation, operator.path, "", "", seconds, operator.phase), None
    kernels = summed((kernel.name, kernel.seconds) for kernel in operator.kernels)
    seconds = busy(operator.kernels)
    forward, backward = (
        Timing(seconds, seconds, seconds, 1) if operator.phase in phases else None for phases in (FORWARDS, BACKWARDS)
    )
    identity = (f"{event.name} {number}", "call_function", event.name, event.name, operator.path, "")
    node = Node(*identity, range(number, number + 1), forward, backward_timing=backward, kernels=kernels)
    return Call(operation, operator.path, node.name, "", seconds, operator.phase), node


def _steps(trace: TraceFile, operators: Sequence[TraceOperator]) -> Iterator[Step]:
    """Yield the steps that are marked by the profiler's ``step()``; without marks, yield the whole trace as a single step.

    On a device, a step lasts from its first kernel to the first kernel of the next step, since the host may be far ahead.
    """
    hosts = [event for events in trace.threads.values() for event in events]
    marks = sorted({(event.start, event.name) for event in hosts if event.name.startswith(STEP)})
    marks = marks or [(min((operator.event.start for operator in operators), default=0), ONE_STEP)]
    starts, has_device = [operator.event.start for operator in operators], bool(trace.on_device)
    bounds = [*(bisect_left(starts, mark) for mark, _ in marks), len(operators)]
    events_by_step = [events_of(operators[first:last], has_device) for first, last in pairwise(bounds)]
    times = [min((event.start for event in events), default=marks[i][0]) for i, events in enumerate(events_by_step)]
    times.append(max((event.end for events in events_by_step for event in events), default=times[-1]))
    for (_, name), (first, last), (begin, end) in zip(marks, pairwise(bounds), pairwise(times), strict=True):
        in_step = operators[first:last]
        by_phase = grouped((PART_OF.get(operator.phase, operator.phase), operator) for operator in in_step)
        parts = {phase: busy(events_of(of_phase, has_device)) for phase, of_phase in by_phase.items()}
        parts[BETWEEN] = max(0.0, (end - begin) / 1e9 - sum(parts.values()))
        yield Step(name.replace("#", " "), range(first, last), parts if any(parts.values()) else {})
