"""Sums and times of a run by step: each call of the model, or each iteration of the loop, under ``profile``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..meters.stopwatch import BETWEEN, LOADING
from ..meters.timing import Timing
from ..records import PARTS, PHASES, Counted, Step
from ..run.outcome import Run
from .rollup import Item, OperatorRow, Sums, items_of, together

OUTSIDE = "(outside)"
"""The step of work outside every call of the model."""
NO_MODEL = "(no model)"
"""The model's name in a block that was profiled without a model."""
HOST = "(host)"
"""The op of the time between operations: in Python, and in torch before and after a kernel."""
NO_OPERATION = "(no op)"
"""The op of graph nodes that make no call: an input, indexing a tuple, reading a shape."""
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, _ = PHASES
TIMED = FORWARD, BACKWARD, OPTIMIZER, LOADING, BETWEEN
LONG_RUN, TOO_FAR_APART = 0.01, 1.5
"""In runs longer than 0.01 s, a sum of nodes that differs from the latency by more than a factor of 1.5 shows that other
work ran on the machine. (In shorter runs the overhead per node can cause such a difference.)"""


class StepTime(NamedTuple):
    """The seconds of a step, in total and by phase, and the FLOPs of all its phases.

    ``backward`` includes recomputation; ``loading`` is the time in torch's DataLoader for the step's batch; ``between`` is the
    rest.
    """

    seconds: float
    forward: float
    backward: float
    optimizer: float
    loading: float
    between: float
    flops: int


def by_step(run: Run, counted: Sequence[Counted]) -> dict[str, OperatorRow]:
    """Return the sums of each step's phases, the forward's under the step's name; last the sums of calls outside the model."""
    rows: dict[str, list[Sums]] = {}
    outside: list[Sums] = []
    items = items_of(counted)
    for step, indices in _regions(run, len(counted)):
        phases: dict[str, list[Sums]] = {} if step.name == OUTSIDE else {FORWARD: []}
        for i in indices:
            phase, sums = counted[i].call.phase, items[i].sums
            if phase in PARTS[FORWARD] and i not in step.calls:
                outside.append(sums._replace(seconds=None) if step.parts else sums)
            else:
                phases.setdefault(FORWARD if phase in PARTS[FORWARD] else phase, []).append(sums)
        totals = {phase: together(sums) for phase, sums in phases.items()}
        if step.parts:
            outside.append(Sums(seconds=sum(step.parts.get(part, 0.0) for part in (LOADING, BETWEEN))))
            recomputed = totals.get(RECOMPUTE, Sums()).seconds or 0.0
            seconds_of = {**step.parts, BACKWARD: step.parts.get(BACKWARD, 0.0) - recomputed, RECOMPUTE: recomputed}
            totals = {phase: sums._replace(seconds=seconds_of.get(phase)) for phase, sums in totals.items()}
        for phase, total in totals.items():
            rows.setdefault(_row_name(step, phase), []).append(total)
    if outside:
        rows[OUTSIDE] = outside
    sums_of_rows = {name: together(sums) for name, sums in rows.items()}
    return {name: OperatorRow(name, sums.calls, sums) for name, sums in sums_of_rows.items()}


def step_times(run: Run, counted: Sequence[Counted]) -> dict[str, StepTime]:
    """Return the time of each step of a profiled block, by its name; {} if it was not timed.

    A step whose call of the model was captured into a graph did not run; its time counts as outside the steps.
    """
    times_by_name: dict[str, list[StepTime]] = {}
    for step, indices in _regions(run, len(counted)):
        if step.parts:
            parts = [step.parts.get(phase, 0.0) for phase in TIMED]
            did_run = not run.captured or FORWARD in step.parts or not step.calls
            flops = sum(counted[i].flops for i in indices) if did_run else 0
            name = step.name if did_run else OUTSIDE
            times_by_name.setdefault(name, []).append(StepTime._make([sum(parts), *parts, flops]))
    return {name: StepTime._make(map(sum, zip(*times, strict=True))) for name, times in times_by_name.items()}


def timing_of(run: Run, times: Mapping[str, StepTime], phase: str) -> Timing | None:
    """Return the time of a phase: of the model's own run, or of all steps of a profiled block; None if it was not timed."""
    if not times:
        return {FORWARD: run.latency, BACKWARD: run.backward_latency}.get(phase)
    seconds = sum(getattr(time, phase, 0.0) for time in times.values())
    return Timing(seconds, seconds, seconds, 1) if seconds else None


def outside(run: Run, counted: Sequence[Counted], phase: str) -> list[Counted]:
    """Return the calls of a phase in a profiled block outside every call of its models, e.g. for a loss or a batch."""
    in_models = {i for step in run.steps for i in step.calls}
    calls = enumerate(counted[: len(run.calls)] if run.steps else ())
    return [each for i, each in calls if i not in in_models and not each.call.path and each.call.phase in PARTS[phase]]


def unobserved(run: Run) -> str:
    """Return a remark if a run has no trace, or if nothing, or none of its models, was called in a block; else ""."""
    if run.trace == "no trace":
        return f"no trace: {run.trace_reason}; the times of modules are those of a run that was observed"
    if run.scopes or not run.steps or run.params is None:  # the last: a trace, not a block
        return ""
    if not run.calls:
        return "nothing was observed in the block: what is to be counted must run inside it, in the same thread"
    return "" if run.model == NO_MODEL else "the given model was never called in the block: all calls are outside it"


def captured(run: Run) -> str:
    """Return a remark on calls that were captured into a graph, "" if there are none."""
    if not run.captured:
        return ""
    whose = "1 call was" if run.captured == 1 else f"{run.captured:,} calls were"
    return f"{whose} captured into a graph: counted once and not timed; replays of the graph are not counted"


def unsteady(run: Run, nodes: float | None) -> str:
    """Return the reasons not to rely on a run's times, as text; ``nodes`` is the sum of its graph's node times."""
    compiled = None if run.compiled is None else run.compiled.latency
    timings = {FORWARD: run.latency, BACKWARD: run.backward_latency, "compiled": compiled}
    timed = {which: timing for which, timing in timings.items() if timing}
    labels = {which: f"{which}: " if len(timed) > 1 else "" for which in timed}
    reasons = [labels[which] + timing.unsteady for which, timing in timed.items() if timing.unsteady]
    latency = run.latency.median if run.latency else 0.0
    # If an accelerator waits for the host, its operations take less time than the model.
    waits_for_host = any(node.host_timing is not None for node in run.nodes)
    least_ratio = 0.0 if waits_for_host else 1 / TOO_FAR_APART
    if latency > LONG_RUN and nodes and not least_ratio < nodes / latency < TOO_FAR_APART:
        reasons.append(f"{labels[FORWARD]}the operations add up to {nodes / latency:.1f}x the time of the model")
    return "; ".join(filter(None, [*reasons, run.interrupted]))


def host_items(run: Run, phase: str) -> Iterator[Item]:
    """Yield items for the time between operations: per module call in the forward, one item in any other phase."""
    if phase == FORWARD:
        for scope in run.scopes:
            if scope.seconds is not None:
                yield Item(scope.path, HOST, "", Sums(seconds=scope.seconds))
    elif phase_seconds := sum(step.parts.get(phase, 0.0) for step in run.steps):
        phases = (phase, RECOMPUTE) if phase == BACKWARD else (phase,)
        operation_seconds = sum(call.seconds or 0.0 for call in run.calls if call.phase in phases)
        yield Item("", HOST, "", Sums(seconds=phase_seconds - operation_seconds))


def _regions(run: Run, end: int) -> Iterator[tuple[Step, range]]:
    """Yield each step with the indices of all calls from its start to the next step's start."""
    is_one_call = not run.steps and any(not scope.path for scope in run.scopes)
    first = Step("step 1", range(end)) if is_one_call else Step(OUTSIDE, range(0))
    starts = [0, *(step.calls.start for step in run.steps), end]
    for step, (start, stop) in zip([first, *run.steps], pairwise(starts), strict=True):
        yield step, range(start, stop)


def _row_name(step: Step, phase: str) -> str:
    if phase == FORWARD:
        return step.name
    return f"({phase})" if step.name == OUTSIDE else f"{step.name} {phase}"
