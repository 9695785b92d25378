"""The time that a training step on a mesh is expected to take: kernels and NCCL's collectives as they were measured."""

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
from .links import Links, links_of
from .placement import least_seconds, share_in_node
from .result import RankKind, Simulation


class StepPrediction(NamedTuple):
    """The expected seconds of a step of one rank: ``compute`` by the device's kernels, ``communication`` by NCCL's.

    ``bounds`` are those of these seconds that are known only as a bound: of operations that no calibration has, and of what goes
    between nodes. ``error`` is the mean error of predictions of such kernels, None where it is unknown.
    """

    compute: float
    communication: float
    bounds: float
    error: float | None = None

    @property
    def best(self) -> float:
        """The seconds if all communication goes on while the device computes."""
        return max(self.compute, self.communication)

    @property
    def worst(self) -> float:
        """The seconds if none does."""
        return self.compute + self.communication

    @property
    def share_of_bounds(self) -> float:
        """The share of the seconds, one after the other, that is known only as a bound."""
        return self.bounds / self.worst if self.worst else 0.0


def step_prediction(
    simulation: Simulation, device: str | Device = "H100", links: Links | None = None
) -> StepPrediction:
    """Return what a step of the rank that needs the longest is expected to take.

    ``device`` and ``links`` are those of :func:`step_bound`, which also has the errors. A collective within a node takes what NCCL took
    there, at the mean size of its calls over the same mesh dimension; one between nodes at least what the links allow.
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
    """Return the seconds of all calls but for collectives, and those of them that are bounds.

    What is outside of modules and in the optimizer is taken together, as one kernel: a GPU has kernels for many parameters (``foreach``)
    where the simulated CPU loops over them. Products are not: those of a bare layer, or of an optimizer such as Muon.
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
    """Return the seconds of collectives, and those of them that are bounds."""
    bound = least_seconds(row, mesh, links)
    moved = max(row.sent or 0, row.received or 0)
    kernel = collective_of(row.op, row.ranks, moved // max(1, row.calls))
    if kernel is None or share_in_node(row, mesh, links) < (row.ranks or 1):
        return bound, bound
    [seconds], _ = seconds_of([kernel], device)
    return (bound, bound) if seconds is None else (max(bound, row.calls * seconds), 0.0)
