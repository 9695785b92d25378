"""Totals of a counted run: FLOPs by phase, and times in seconds. The total of a phase that did not run is None, never 0."""

from __future__ import annotations

from ..conventions import SEES_BACKWARD
from ..run.outcome import Run
from .counted_run import CountedRun
from .rollup import Sums


def of_phase(counted_run: CountedRun, phase: str) -> Sums | None:
    """Return the sums over all calls of a phase; None if the phase has no calls."""
    return counted_run.modules(phase)[""].total if phase in counted_run.phases else None


def flops_of(counted_run: CountedRun, phase: str) -> int | None:
    """Return the FLOPs of a phase; None if the phase has no calls."""
    sums = of_phase(counted_run, phase)
    return None if sums is None else sums.flops


def backward_flops(counted_run: CountedRun) -> int | None:
    """Return the FLOPs of the backward pass. Return None if no backward pass ran, or if the convention does not say how to count the backward."""
    sums = of_phase(counted_run, "backward")
    if sums is None:
        return None
    # MACs without FLOPs: the convention does not count the backward pass, so its FLOPs are unknown, not 0.
    is_unknown = sums.macs and not sums.flops and counted_run.convention not in SEES_BACKWARD
    return None if is_unknown else sums.flops


def backward_macs(counted_run: CountedRun) -> int | None:
    """Return the multiply-accumulates of the backward pass; None if no backward pass ran."""
    sums = of_phase(counted_run, "backward")
    return None if sums is None else sums.macs


def recompute_flops(counted_run: CountedRun) -> int | None:
    """Return the FLOPs of forward work that the backward pass recomputed; None if no backward pass ran."""
    return flops_of(counted_run, "recompute") or (0 if "backward" in counted_run.phases else None)


def training_flops(counted_run: CountedRun) -> int | None:
    """Return the FLOPs of forward and backward; None if :func:`backward_flops` returns None."""
    backward = backward_flops(counted_run)
    return None if backward is None else counted_run.forward.flops + backward


def params(counted_run: CountedRun) -> int | None:
    """Return the model's number of parameters; None for a profiler trace, because a trace does not contain parameters."""
    return None if counted_run.run.params is None else counted_run.run.params.total


def latency(run: Run) -> float | None:
    """Return the median time of the model's forward pass in seconds; None if the forward was not timed."""
    return None if run.latency is None else run.latency.median


def backward_latency(run: Run) -> float | None:
    """Return the median time of the model's backward pass in seconds; None if the backward was not timed."""
    return None if run.backward_latency is None else run.backward_latency.median


def block_seconds(counted_run: CountedRun) -> float | None:
    """Return the duration of a profiled block in seconds; None if the block was not timed."""
    return sum(time.seconds for time in counted_run.step_times.values()) or None


def nodes_seconds(run: Run) -> float | None:
    """Return the sum of the median times of the graph's nodes, in seconds; None if no node was timed."""
    medians = [node.timing.median for node in run.nodes if node.timing is not None]
    return sum(medians) if medians else None
