"""The result of simulating a training step on a mesh, with one :class:`RankKind` for all ranks that do the same work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..counting.collectives import Collective, sent_by_group, transferred
from ..render.columns import Column, held_columns
from ..render.exports import Table, Tabular
from ..render.files import Path, written
from ..report.gathered import COLLECTIVES
from ..report.report import Report
from .layers import Deeper, N, collectives_of, extended, extended_rows


class RankKind(NamedTuple):
    """Ranks that do the same work in a training step.

    - ``at``: the place in the mesh of one of these ranks.
    - ``ranks``: the number of ranks.
    - ``report``: the report of a rank's step.
    - ``more``: how to extrapolate to all layers, if only models with fewer layers were run. If so, ``report`` describes the deepest of the
      models that were run.
    - ``passes``: the number of forward and backward passes in the step, whose gradients are summed. With more than two passes, ``report``
      describes a step with two passes.
    - ``once``: a step with one pass, if ``passes`` is more than two. Each pass from the third on adds the difference between two passes and
      one. The third and later passes do not change the peak: from the second pass on, the gradients of the first pass are in memory.
    """

    at: Mapping[str, int]
    ranks: int
    report: Report
    more: Deeper | None = None
    once: RankKind | None = None
    passes: int = 1

    @property
    def macs(self) -> int:
        """The MACs of the step."""
        return self.sum(lambda report: sum(each.macs for each in report.counted))

    @property
    def flops(self) -> int:
        """The FLOPs of the step."""
        return self.sum(lambda report: sum(each.flops for each in report.counted))

    @property
    def params(self) -> int:
        """The number of parameters that a rank holds."""
        return self.sum(lambda report: report.total_params or 0)

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes at the peak of a rank's memory, by category."""
        return self.report.memory if self.more is None else self.more.memory

    @property
    def max_memory(self) -> int:
        """The bytes at the peak of a rank's memory."""
        return (self.report.max_memory or 0) if self.more is None else sum(self.more.memory.values())

    @property
    def collectives(self) -> list[Collective]:
        """The sums of a rank's collectives, by operation and mesh dimension."""
        rows = collectives_of(self.report, self.more)
        return rows if self.once is None else extended_rows(rows, self.once.collectives, self.passes - 2)

    def sum(self, of: Callable[[Report], N]) -> N:
        """Return a sum over the step's calls or parameters, extrapolated to all layers and passes. ``of`` computes the sum for one report."""
        figure = of(self.report)
        if self.more is not None:
            figure = extended(figure, of(self.more.less), self.more.times)
        return figure if self.once is None else extended(figure, self.once.sum(of), self.passes - 2)


@dataclass(frozen=True, repr=False)
class Simulation(Tabular):
    """A simulated training step on a mesh: the work, memory and communication of each kind of ranks.

    The ``to_*`` methods export the ``table`` of the ranks.

    - ``mesh``: the size of each dimension.
    - ``differs``: the dimensions along which ranks differ.
    - ``kinds``: the ranks, grouped by equal work.
    - ``layers``: the model's number of layers if the step was extrapolated from models with fewer layers, else None.
    - ``passes``: the requested number of passes in the step, else None. At most two passes were run.
    """

    mesh: Mapping[str, int]
    differs: tuple[str, ...]
    kinds: tuple[RankKind, ...]
    layers: int | None = None
    passes: int | None = None

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return math.prod(self.mesh.values())

    @property
    def figures(self) -> list[tuple[Any, ...]]:
        """The counts, memory and collectives of each kind of ranks, without times. Two simulations of the same step have equal figures."""
        return [
            (
                kind.at,
                kind.ranks,
                (kind.macs, kind.flops, kind.params, kind.max_memory),
                {name: held for name, held in kind.memory.items() if held},
                [row[:8] for row in kind.collectives],
            )
            for kind in self.kinds
        ]

    @property
    def complete(self) -> bool:
        """Whether the counts of all ranks are complete."""
        return all(kind.report.complete for kind in self.kinds)

    @cached_property
    def max_memory(self) -> int:
        """The largest peak memory of any rank, in bytes."""
        return max(kind.max_memory for kind in self.kinds)

    @property
    def provenance(self) -> str:
        """Where the numbers come from, in one line, like a Report's provenance."""
        return self.kinds[0].report.provenance

    @property
    def table(self) -> Table:
        """A table with one row per kind of ranks. A row has the number of ranks, and for one rank of the kind: MACs, FLOPs, parameters,
        bytes at the peak by category, and bytes sent and received."""
        columns = [Column("rank", "rank"), Column("ranks", "ranks", "number"), Column("macs", "MACs", "flops")]
        columns += [Column("flops", "FLOPs", "flops"), Column("params", "params", "elements")]
        columns += [Column("peak", "peak memory", "B"), *held_columns(self._categories)]
        columns += [Column("sent", "sent", "B"), Column("received", "received", "B")]
        return Table("ranks", tuple(columns), tuple(map(self._row, self.kinds)), provenance=self.provenance)

    @cached_property
    def collectives(self) -> Table:
        """The collectives of one rank of each kind. Each row has the operation, the mesh dimension, the calls, and the bytes sent and received."""
        rows = tuple((self._name(kind), *row[2:8]) for kind in self.kinds for row in kind.collectives)
        return Table("collectives", (Column("rank", "rank"), *COLLECTIVES[2:8]), rows, provenance=self.provenance)

    @property
    def _categories(self) -> list[str]:
        """The categories of memory that occur at the peak of any rank."""
        return [*dict.fromkeys(name for kind in self.kinds for name in kind.memory)]

    def to_html(self, path: Path | None = None, *, title: str = "") -> str | None:
        """Return an HTML page with a bar for each kind of ranks, or write the page to ``path``.

        The page opens from disk, loads nothing and runs no script. ``title`` replaces the model's class in the heading.
        """
        from ..render.ranks_page import RankFigures, ranks_page

        ranks = [
            RankFigures(
                self._name(kind),
                kind.ranks,
                kind.flops,
                None,
                kind.memory,
                sent_by_group(kind.collectives),
            )
            for kind in self.kinds
        ]
        tables = {"Ranks": self.table, "Collectives": self.collectives}
        return written(
            ranks_page(title, self._title, ranks, tables, complete=self.complete, origin=self.provenance), path
        )

    @property
    def _title(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.mesh.items())
        depth = "" if self.layers is None else f" of {self.layers} layers, extrapolated from fewer layers"
        return f"{self.kinds[0].report.model} on {sizes} = {self.ranks} ranks, a training step{depth}"

    def _pieces(self) -> Iterator[str | Table]:
        yield f"{self._title}{'' if self.complete else ', INCOMPLETE'}"
        yield self.table
        if len(self.collectives):
            yield ""
            yield self.collectives

    def _name(self, kind: RankKind) -> str:
        return ", ".join(f"{name} {kind.at[name]}" for name in self.differs) or "each"

    def _row(self, kind: RankKind) -> tuple[Any, ...]:
        held = [kind.memory.get(name, 0) for name in self._categories]
        work = (kind.macs, kind.flops, kind.params, kind.max_memory)
        return (self._name(kind), kind.ranks, *work, *held, *transferred(kind.collectives))
