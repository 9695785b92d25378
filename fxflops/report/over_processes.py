"""What a report tells of several processes: the collectives of its own, and the reports of all of them."""

from __future__ import annotations

from ..counting.collectives import collectives
from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..render.exports import Table
from .gathered import COLLECTIVES, GatheredReport, gathered


class OverProcesses(CountedRun):
    """The part of a Report that is about torch.distributed."""

    @property
    def collectives(self) -> Table:
        """The collectives of this process by module and phase: operation, group, bytes sent and received, seconds.

        The group is named after its mesh dimension. The bytes are the least that the operation needs, by a ring (see
        ``docs/distributed.md``). Seconds pass until the call returned; the bytes may then still be under way.
        """
        rows = tuple(collectives(self.counted))
        return Table("collectives", COLLECTIVES, rows, provenance=self.environment.provenance)

    def gather(self, *, whole: CountedRun | None = None, timeout: float = 60.0) -> GatheredReport:
        """Return one report over all processes of torch.distributed; every process calls this, with its own report.

        ``whole`` is a report of one process for the work of all, such as ``fxflops.count`` of the model on the whole batch:
        FLOPs beyond those are computed by several processes alike, and shown by module. Without torch.distributed the
        result is of one process.

        Raises DistributedError, in every process that calls this, if a process does not within ``timeout`` seconds.
        """
        if whole is not None and not isinstance(whole, CountedRun):
            raise InputError(
                f"whole must be a Report, not {type(whole).__name__}: fxflops.count(model, batch) makes one"
            )
        return gathered(self, whole, timeout)
