"""The expected time of a training step on a mesh, from measured times of kernels and of NCCL's collectives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import NamedTuple

from ..counting.collectives import Collective
from ..prediction.calls import Kernel, collective_of
from ..prediction.predict import seconds_of
from ..records import COMMUNICATION
from ..report.report import Report
from ..roofline.devices import Device, find_device
from ..roofline.traffic import traffic_of
from ..units import seconds
from .links import Links, links_of
from .placement import least_seconds, share_in_node
from .result import RankKind, Simulation


class StepPrediction(NamedTuple):
    """The expected seconds of one rank's step: ``compute`` in the device's kernels, ``communication`` in NCCL's kernels.

    ``bounds`` is the part of these seconds that is only a lower bound: operations without a calibration, and communication between nodes.
    ``error`` is the mean error of predictions for single compute kernels, None if unknown.
    """

    compute: float
    communication: float
    bounds: float
    error: float | None = None

    @property
    def best(self) -> float:
        """The seconds if all communication runs while the device computes."""
        return max(self.compute, self.communication)

    @property
    def worst(self) -> float:
        """The seconds if no communication runs while the device computes."""
        return self.compute + self.communication

    @property
    def share_of_bounds(self) -> float:
        """The share of the step's seconds that is only a lower bound. The seconds are those without overlap."""
        return self.bounds / self.worst if self.worst else 0.0

    def __str__(self) -> str:
        error = "an unknown error" if self.error is None else f"a mean error of {self.error:.0%} per compute kernel"
        return "\n".join(
            [
                f"step            {seconds(self.best)} to {seconds(self.worst)} expected: with all communication during computing, or with none",
                f"computing       {seconds(self.compute)}, with {error}",
                f"communication   {seconds(self.communication)}",
                f"lower bounds    {self.share_of_bounds:.0%} of the {seconds(self.worst)} are only a lower bound",
            ]
        )


def step_prediction(
    simulation: Simulation, device: str | Device = "H100", links: Links | None = None
) -> StepPrediction:
    """Return the expected seconds of the slowest rank's step.

    ``device``, ``links`` and the errors are as for :func:`step_bound`. A collective within a node takes the time that was measured for
    NCCL. The time is looked up at the mean size of all calls over the same mesh dimension. Collectives between nodes take the least time
    that the links allow.
    """
    found = find_device(device)
    between = links_of(found) if links is None else links
    return max(
        (_of_kind(kind, simulation.mesh, found, between) for kind in simulation.kinds), key=lambda each: each.best
    )


def _of_kind(kind: RankKind, mesh: Mapping[str, int], device: Device, links: Links) -> StepPrediction:
    computing = cache(partial(_computing, device=device))
    compute = kind.sum(lambda report: computing(report)[0])
    bounds = kind.sum(lambda report: computing(report)[1])
    error = kind.report.predict(device).error
    communication = 0.0
    for row in kind.collectives:
        seconds, bound = _communicating(row, mesh, device, links)
        communication += seconds
        bounds += bound
    return StepPrediction(compute, communication, bounds, error)


def _computing(report: Report, device: Device) -> tuple[float, float]:
    """Return the seconds of all calls except collectives, and the part of these seconds that is only a lower bound.

    The calls outside modules and in the optimizer are predicted as one kernel. A GPU handles many parameters in one kernel (``foreach``),
    while the simulated CPU makes one call per parameter. Matrix products are never combined into this kernel, even if an optimizer such as
    Muon calls them.
    """
    seconds = bounds = 0.0
    together = 0
    for counted, row in zip(report.counted, report.predict(device).rows, strict=True):
        if counted.rule == COMMUNICATION:
            continue
        if counted.macs or (row.path and row.phase != "optimizer"):
            seconds += row.seconds
            bounds += row.bound_only_seconds
        else:
            together += sum(traffic_of(counted))
    if not together:
        return seconds, bounds
    least = together / device.bandwidth
    [found], _ = seconds_of([Kernel("elementwise", "f32", (together, 1))], device)
    return (seconds + least, bounds + least) if found is None else (seconds + max(found, least), bounds)


def _communicating(row: Collective, mesh: Mapping[str, int], device: Device, links: Links) -> tuple[float, float]:
    """Return the seconds of collectives, and the part of these seconds that is only a lower bound."""
    bound = least_seconds(row, mesh, links)
    moved = max(row.sent or 0, row.received or 0)
    kernel = collective_of(row.op, row.ranks, moved // max(1, row.calls))
    if kernel is None or share_in_node(row, mesh, links) < (row.ranks or 1):
        return bound, bound
    [seconds], _ = seconds_of([kernel], device)
    return (bound, bound) if seconds is None else (max(bound, row.calls * seconds), 0.0)
