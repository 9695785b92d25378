"""The least time of a training step on a mesh.

It is a bound: no step is faster, by the ceilings that makers state. What a step is predicted to take stands beside it
(:mod:`.predicted`); of a pipeline's idle time nothing is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..records import COMMUNICATION, PARTS, PHASES
from ..report.report import Report
from ..roofline.devices import Device, find_device
from ..roofline.result import COMPUTE, LAUNCH, NOTHING
from .links import Links, links_of
from .placement import least_seconds
from .result import RankKind, Simulation


class StepBound(NamedTuple):
    """The least seconds of a step of one rank: ``compute`` by a device's roofline, ``communication`` by its links.

    ``binds`` is "compute", "launch" where kernels too small for the device take the larger part of that, or the collective that
    takes the longest, with its mesh dimension.
    """

    compute: float
    communication: float
    binds: str

    @property
    def best(self) -> float:
        """The seconds if all communication goes on while the device computes."""
        return max(self.compute, self.communication)

    @property
    def worst(self) -> float:
        """The seconds if none does."""
        return self.compute + self.communication


def step_bound(simulation: Simulation, device: str | Device = "H100", links: Links | None = None) -> StepBound:
    """Return the bound of the rank that needs the longest.

    ``device`` is a name in the table of rooflines, or a Device; ``links`` are its links, by default those of the table. Ranks
    are placed in nodes in their order: the last dimension of the mesh is innermost. Attention takes the pairs that its arguments
    leave; a mask tensor has no values on a simulated rank, and may leave none. Raises InputError for a device or links
    that are not in a table, and if the bytes of a collective are not known.
    """
    found = find_device(device)
    between = links_of(found) if links is None else links
    return max(
        (_of_kind(kind, simulation.mesh, found, between) for kind in simulation.kinds), key=lambda each: each.best
    )


def _of_kind(kind: RankKind, mesh: Mapping[str, int], device: Device, links: Links) -> StepBound:
    compute = kind.sum(lambda report: sum(least for least, _ in _computing(report, device)))
    launches = kind.sum(lambda report: sum(least for least, binds in _computing(report, device) if binds == LAUNCH))
    waits = {f"{row.op} in {row.group}": least_seconds(row, mesh, links) for row in kind.collectives}
    communication = sum(waits.values())
    longest = max(waits, key=waits.__getitem__, default="")
    computing = LAUNCH if launches > compute / 2 else COMPUTE
    return StepBound(compute, communication, computing if compute >= communication else longest)


def _computing(report: Report, device: Device) -> Iterator[tuple[float, str]]:
    """Yield the least seconds of each call but for collectives, and the ceiling that binds it.

    Outside of modules and in the optimizer no launch is taken: a GPU has kernels for many parameters (``foreach``) where
    the simulated CPU loops over them.
    """
    for phase in PHASES:
        made = [each for each in report.counted if each.call.phase in PARTS[phase]]
        if not made or phase == "gradient":  # which is a part of the forward
            continue
        for each, row in zip(made, report.roofline(device, phase).rows, strict=True):
            if each.rule != COMMUNICATION:
                launched = bool(row.path) and phase != "optimizer"
                without = max(row.compute_seconds, row.memory_seconds)
                yield (row.bound_seconds, row.binds) if launched else (without, NOTHING)
