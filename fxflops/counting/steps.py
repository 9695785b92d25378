"""Sums and times of a run by step. Under ``profile``, a step is a call of the model or an iteration of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..meters.stopwatch import BETWEEN, LOADING
from ..meters.timing import Timing
from ..records import ALL_PHASES, BACKWARD, FORWARD, GRADIENT, OPTIMIZER, OUTSIDE, PARTS, RECOMPUTE, Counted, Step
from ..run.outcome import Run
from .rollup import Item, OperatorRow, Sums, items_of, together

NO_MODEL = "(no model)"
"""The model's name in a block that was profiled without a model."""
HOST = "(host)"
"""The op for the time between operations: time in Python, and time in torch before and after a kernel."""
NO_OPERATION = "(no op)"
"""The op for graph nodes that make no call, e.g. an input, an index into a tuple, or a shape."""
TIMED = FORWARD, BACKWARD, OPTIMIZER, LOADING, BETWEEN
LONG_RUN, TOO_FAR_APART = 0.01, 1.5
"""If a run takes more than 0.01 s and the sum of its nodes' times differs from the latency by more than a factor of 1.5, other
work ran on the machine. (In a shorter run, the overhead per node can cause the same difference.)"""


class StepTime(NamedTuple):
    """The time of a step in seconds, in total and by phase, and the FLOPs of all phases of the step.

    ``backward`` includes recomputation. ``loading`` is the time in torch's DataLoader for the step's batch. ``between`` is the
    rest of the step's time.
    """

    seconds: float
    forward: float
    backward: float
    optimizer: float
    loading: float
    between: float
    flops: int


def by_step(run: Run, counted: Sequence[Counted]) -> dict[str, OperatorRow]:
    """Return a row for each phase of each step. The forward's row has the step's name. The last row is the work outside the model."""
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
    """Return the time of each step of a profiled block, by the step's name; {} if the block was not timed.

    A model call that was captured into a graph did not run. The time of its step is added to the time outside the steps.
    """
    times_by_name: dict[str, list[StepTime]] = {}
    for step, indices in _regions(run, len(counted)):
        if step.parts:
            parts = [step.parts.get(phase, 0.0) for phase in TIMED]
            did_run = not run.captured_calls or FORWARD in step.parts or not step.calls
            flops = sum(counted[i].flops for i in indices) if did_run else 0
            name = step.name if did_run else OUTSIDE
            times_by_name.setdefault(name, []).append(StepTime._make([sum(parts), *parts, flops]))
    return {name: StepTime._make(map(sum, zip(*times, strict=True))) for name, times in times_by_name.items()}


def timing_of(run: Run, times: Mapping[str, StepTime], phase: str) -> Timing | None:
    """Return the time of a phase, or of all phases, in the model's run or in all steps of a profiled block; None if it was not timed."""
    if times:
        phases = (FORWARD, BACKWARD, OPTIMIZER) if phase == ALL_PHASES else (phase,)
        seconds = sum(getattr(time, name, 0.0) for time in times.values() for name in phases)
        return Timing(seconds, seconds, seconds, 1) if seconds else None
    timings = {FORWARD: run.latency, BACKWARD: run.backward_latency}
    if phase != ALL_PHASES:
        return timings.get(phase)
    # Gradients inside the forward, and recomputations, are timed with the forward and the backward.
    ran = {FORWARD, *(call.phase for call in run.calls)} - {GRADIENT, RECOMPUTE}
    known = [timing for name in ran if (timing := timings.get(name)) is not None]
    if len(known) < len(ran):
        return None
    return Timing(
        sum(timing.median for timing in known),
        sum(timing.low for timing in known),
        sum(timing.high for timing in known),
        known[0].repeats,
        next((timing.unsteady for timing in known if timing.unsteady), ""),
    )


def outside(run: Run, counted: Sequence[Counted], phase: str) -> list[Counted]:
    """Return the calls of a phase that a profiled block made outside its models, e.g. to compute a loss or prepare a batch."""
    in_models = {i for step in run.steps for i in step.calls}
    calls = enumerate(counted[: len(run.calls)] if run.steps else ())
    return [each for i, each in calls if i not in in_models and not each.call.path and each.call.phase in PARTS[phase]]


def unobserved(run: Run) -> str:
    """Return a remark if the run has no trace, if a profiled block ran no operation, or if it never called its model; otherwise return ""."""
    if run.recorded_as == "no trace":
        return f"no trace: {run.recorded_why}; the module times are from a run that was observed"
    if run.scopes or not run.steps or run.params is None:  # without params, the run is a profiler trace, not a block
        return ""
    if not run.calls and run.recorded_why:  # the exception that ended the block
        return f"nothing ran in the block before the error: {run.recorded_why}"
    if not run.calls:
        return "nothing ran in the block: call the model inside the block, in the same thread"
    return "" if run.model == NO_MODEL else "the model was never called in the block: all calls are outside the model"


def captured(run: Run) -> str:
    """Return a remark on calls that were captured into a graph; "" if no call was captured."""
    if not run.captured_calls:
        return ""
    whose = "1 call was" if run.captured_calls == 1 else f"{run.captured_calls:,} calls were"
    return f"{whose} captured into a graph: counted once and not timed; replays of the graph are not counted"


def unsteady(run: Run, nodes: float | None) -> str:
    """Return the reasons why a run's times are unreliable, as text. ``nodes`` is the sum of the graph nodes' times."""
    compiled = None if run.compiled is None else run.compiled.latency
    timings = {FORWARD: run.latency, BACKWARD: run.backward_latency, "compiled": compiled}
    timed = {which: timing for which, timing in timings.items() if timing}
    labels = {which: f"{which}: " if len(timed) > 1 else "" for which in timed}
    reasons = [labels[which] + timing.unsteady for which, timing in timed.items() if timing.unsteady]
    latency = run.latency.median if run.latency else 0.0
    # If an accelerator waits for the host, the sum of its operations is rightly smaller than the model's time.
    waits_for_host = any(node.host_timing is not None for node in run.nodes)
    least_ratio = 0.0 if waits_for_host else 1 / TOO_FAR_APART
    if latency > LONG_RUN and nodes and not least_ratio < nodes / latency < TOO_FAR_APART:
        reasons.append(f"{labels[FORWARD]}the operations add up to {nodes / latency:.1f}x the time of the model")
    return "; ".join(filter(None, [*reasons, run.block.interrupted]))


def host_items(run: Run, phase: str) -> Iterator[Item]:
    """Yield an item for each piece of time between operations. The forward has an item for each module call; every other phase has a single item."""
    if phase == FORWARD:
        for scope in run.scopes:
            if scope.seconds is not None:
                yield Item(scope.path, HOST, "", Sums(seconds=scope.seconds))
    elif phase_seconds := sum(step.parts.get(phase, 0.0) for step in run.steps):
        phases = (phase, RECOMPUTE) if phase == BACKWARD else (phase,)
        operation_seconds = sum(call.seconds or 0.0 for call in run.calls if call.phase in phases)
        yield Item("", HOST, "", Sums(seconds=phase_seconds - operation_seconds))


def _regions(run: Run, end: int) -> Iterator[tuple[Step, range]]:
    """For each step, yield the step and the indices of all calls from its start to the start of the next step."""
    is_one_call = not run.steps and any(not scope.path for scope in run.scopes)
    first = Step("step 1", range(end)) if is_one_call else Step(OUTSIDE, range(0))
    starts = [0, *(step.calls.start for step in run.steps), end]
    for step, (start, stop) in zip([first, *run.steps], pairwise(starts), strict=True):
        yield step, range(start, stop)


def _row_name(step: Step, phase: str) -> str:
    if phase == FORWARD:
        return step.name
    return f"({phase})" if step.name == OUTSIDE else f"{step.name} {phase}"
