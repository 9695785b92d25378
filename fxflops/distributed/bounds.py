"""A lower bound of the time of a training step on a mesh.

No step can be faster than the bound, because the bound follows from the peaks and bandwidths in datasheets. :mod:`.predicted` has the
expected time. The bound ignores a pipeline's idle time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..records import COMMUNICATION, PARTS, PHASES
from ..report.report import Report
from ..roofline.devices import Device, find_device
from ..roofline.result import COMPUTE, LAUNCH, NOTHING
from ..units import seconds
from .links import Links, links_of
from .placement import least_seconds
from .result import RankKind, Simulation


class StepBound(NamedTuple):
    """The least seconds of one rank's step: ``compute`` follows from the device's roofline, ``communication`` from its links.

    ``binds`` names what limits the step. If communication takes longer than computing, ``binds`` is the slowest collective and its
    mesh dimension. If computing takes longer, ``binds`` is "compute" or "launch". "launch" means that most of the computing time goes to
    kernels that are limited by their launch time.
    """

    compute: float
    communication: float
    binds: str

    @property
    def best(self) -> float:
        """The seconds if all communication runs while the device computes."""
        return max(self.compute, self.communication)

    @property
    def worst(self) -> float:
        """The seconds if no communication runs while the device computes."""
        return self.compute + self.communication

    def __str__(self) -> str:
        return "\n".join(
            [
                f"step            at least {seconds(self.best)}, limited by {self.binds}; {seconds(self.worst)} if no communication runs during computing",
                f"computing       {seconds(self.compute)}",
                f"communication   {seconds(self.communication)}",
            ]
        )


def step_bound(simulation: Simulation, device: str | Device = "H100", links: Links | None = None) -> StepBound:
    """Return the bound of the slowest rank.

    ``device`` is a Device, or the name of a device in the table. ``links`` are the device's links, by default from the table. Ranks
    fill nodes in order: the last dimension of the mesh is innermost. Attention with a mask tensor adds only its bytes to the bound, because
    a mask tensor has no values on a simulated rank. Raises InputError for a device or links that are not listed, and for a collective whose
    bytes are unknown.
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
    """For each call that is not a collective, yield the least seconds that it needs, and the ceiling that limits it.

    Calls outside modules and calls of the optimizer add no launch time. A GPU handles many parameters in one kernel (``foreach``), while
    the simulated CPU makes one call per parameter.
    """
    for phase in PHASES:
        made = [each for each in report.counted if each.call.phase in PARTS[phase]]
        if not made or phase == "gradient":  # PARTS["forward"] contains this phase
            continue
        for each, row in zip(made, report.roofline(device, phase).rows, strict=True):
            if each.rule != COMMUNICATION:
                launched = bool(row.path) and phase != "optimizer"
                without = max(row.compute_seconds, row.memory_seconds)
                yield (row.bound_seconds, row.binds) if launched else (without, NOTHING)
