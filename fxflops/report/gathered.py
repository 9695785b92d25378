"""Combine the reports of all processes. The result shows what each process computes, stores and sends, the sums, and the imbalance."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .. import units
from ..counting import totals
from ..counting.collectives import Collective, by_group, collectives, known_sum, sent_by_group, transferred
from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..render.columns import ROOT, Column, held_columns
from ..render.exports import MOST_SHOWN, Cells, Table, Tabular
from ..render.files import Path, written

LEAST_REPEATED = 0.05
"""A smaller share of repeated work is not shown: the additions that combine the processes' partial sums cause a small share."""
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""The attributes in which DistributedDataParallel, torch.compile, FSDP and the checkpoint wrapper store the wrapped module."""
OPTIMIZER = "(optimizer)"
QUANTITIES = (
    Column("macs", "MACs", "flops"),
    Column("flops", "FLOPs", "flops"),
    Column("params", "params", "elements"),
    Column("sharded", "sharded", "elements"),
    Column("memory", "peak memory", "B"),
    Column("sent", "sent", "B"),
    Column("received", "received", "B"),
    Column("seconds", "time", "s"),
)


class RankRow(NamedTuple):
    """The quantities of one process. An unknown quantity is None.

    ``macs`` and ``flops`` are sums over all phases. ``params`` is the number of parameters that the process stores; ``sharded`` is
    the number of these parameters that are shards of larger tensors. ``memory`` is the peak in bytes. ``sent`` and ``received`` are
    bytes. ``seconds`` is the time of the profiled block, or of forward and backward.
    """

    macs: int
    flops: int
    params: int | None
    sharded: int | None
    memory: int | None
    sent: int | None
    received: int | None
    seconds: float | None


class WorkRow(NamedTuple):
    """The FLOPs of one module's own calls, over all processes and phases.

    ``needed`` is the FLOPs of the same work in a single process. ``repeated`` is the rest, which several processes compute again.
    """

    flops: int
    needed: int
    repeated: int


WORK = (
    Column("module", "module"),
    *(
        Column(name, title, "flops")
        for name, title in zip(WorkRow._fields, ("FLOPs", "of one", "repeated"), strict=True)
    ),
)


@dataclass(frozen=True, repr=False)
class GatheredReport(Tabular):
    """The combined reports of all processes. The ``to_*`` methods export ``table``, which has a row for each process.

    ``ranks`` has a row for each process, in rank order. ``complete`` is True if all reports are complete. ``modules`` is None unless a
    report of the same work in one process was passed to ``gather``. With such a report, ``modules`` compares each module's FLOPs with that
    report. The optimizer is the entry "(optimizer)". The paths in ``modules`` omit wrappers such as DistributedDataParallel. ``memory`` has
    the bytes at each process's peak by category. ``provenance`` is from rank 0's report.
    """

    model: str
    ranks: tuple[RankRow, ...]
    rows: tuple[tuple[Collective, ...], ...]
    complete: bool
    modules: Mapping[str, WorkRow] | None = None
    memory: tuple[Mapping[str, int], ...] = ()
    provenance: str = field(default="", compare=False)

    @cached_property
    def sum(self) -> RankRow:
        """The sum of each quantity over the processes; None if the value of a process is unknown."""
        return RankRow._make(map(known_sum, zip(*self.ranks, strict=True)))

    @cached_property
    def max(self) -> RankRow:
        """The largest value of each quantity over the processes; None if the value of a process is unknown."""
        return RankRow._make(None if None in column else max(column) for column in zip(*self.ranks, strict=True))

    @cached_property
    def imbalance(self) -> Mapping[str, float]:
        """For each known quantity, the largest value of a process divided by the mean over all processes. The result is 1 if all processes
        have the same value."""
        columns = zip(RankRow._fields, zip(*self.ranks, strict=True), strict=True)
        measured = {name: column for name, column in columns if None not in column and any(column)}
        return {name: max(column) / statistics.fmean(column) for name, column in measured.items()}

    @cached_property
    def collectives(self) -> Table:
        """The collectives of each process: operation, group, calls, bytes sent and received."""
        columns = (Column("rank", "rank", "number"), *COLLECTIVES[2:])
        rows = tuple((i, *row[2:]) for i, rows in enumerate(self.rows) for row in by_group(rows))
        return Table("collectives", columns, rows, provenance=self.provenance)

    @property
    def table(self) -> Table:
        """A table with one row per process. The last columns are the bytes at the process's peak by category."""
        names = [*dict.fromkeys(name for memory in self.memory for name, nbytes in memory.items() if nbytes)]
        categories = [[memory.get(name, 0) for name in names] for memory in self.memory] or [[]] * len(self.ranks)
        columns = Column("rank", "rank", "number"), *QUANTITIES, *held_columns(names)
        rows = tuple(
            (rank, *row, *nbytes) for rank, (row, nbytes) in enumerate(zip(self.ranks, categories, strict=True))
        )
        return Table("ranks", columns, rows, provenance=self.provenance)

    def to_html(self, path: Path | None = None, *, title: str = "") -> str | None:
        """Return one HTML page with a bar for each process. With ``path``, write the page to this file instead. The page needs no server,
        loads no other files and runs no script. ``title`` is the page's heading; the default heading has the model's class."""
        from ..render.ranks_page import RankFigures, ranks_page

        ranks = [
            RankFigures(
                f"rank {i}", 1, row.flops, row.seconds, self.memory[i] if self.memory else {}, sent_by_group(rows)
            )
            for i, (row, rows) in enumerate(zip(self.ranks, self.rows, strict=True))
        ]
        tables, repeated = {"Ranks": self.table, "Collectives": self.collectives}, ""
        if self.modules is not None:
            tables["Work of all"] = Table("modules", WORK, tuple((path, *row) for path, row in self.modules.items()))
            most = max(self._repeated, key=self._repeated.__getitem__, default="")
            repeated = f"{units.amount(sum(self._repeated.values()), 'FLOPs')}, most in {most}" if most else "no work"
            repeated = self._unmatched or repeated
        page = ranks_page(
            title, self._title, ranks, tables, repeated=repeated, complete=self.complete, origin=self.provenance
        )
        return written(page, path)

    @property
    def _title(self) -> str:
        return f"{self.model} on {len(self.ranks)} processes"

    @cached_property
    def _repeated(self) -> dict[str, int]:
        """The FLOPs that more than one process computes, by module."""
        rows = (self.modules or {}).items()
        return {path or ROOT: row.repeated for path, row in rows if row.repeated > LEAST_REPEATED * row.needed}

    @cached_property
    def _unmatched(self) -> str:
        """The reason why the repeated work is unknown. The repeated work is unknown if no module is in both reports; otherwise the result is ""."""
        rows = self.modules or {}
        rows = {path: row for path, row in rows.items() if path not in ("", OPTIMIZER)} or rows
        if not rows or any(row.needed and row.flops for row in rows.values()):
            return ""
        sides = ([path or ROOT for path, row in rows.items() if getattr(row, name)] for name in ("needed", "flops"))
        paths_of_whole, paths_of_ranks = (
            ", ".join(paths[:3]) + (" ..." if paths[3:] else "") or ROOT for paths in sides
        )
        return (
            f"unknown: whole and the ranks have no module in common (whole: {paths_of_whole}; ranks: {paths_of_ranks})"
        )

    def _pieces(self) -> Iterator[str | Table]:
        yield f"{self._title}{'' if self.complete else ', INCOMPLETE'}"
        shares = [None if name not in self.imbalance else f"{self.imbalance[name]:.2f}x" for name in RankRow._fields]
        below: list[Cells] = [("sum", *self.sum), ("max", *self.max), ("max/mean", *shares)]
        shown = [(str(rank), *row) for rank, row in enumerate(self.ranks)][: MOST_SHOWN - len(below)]
        yield Table("ranks", (Column("rank", "rank"), *QUANTITIES), (*shown, *below))
        if len(shown) < len(self.ranks):
            yield f"first {len(shown)} of {len(self.ranks)} ranks"
        if any(self.rows):
            yield ""
            yield self.collectives
        if self.modules is not None:
            needed, spent = (sum(getattr(row, name) for row in self.modules.values()) for name in ("needed", "flops"))
            repeated = [f"{units.count(flops)} in {path}" for path, flops in self._repeated.items()]
            yield ""
            yield f"FLOPs: {units.count(spent)} over all processes; {units.count(needed)} if one process does the same work"
            yield f"repeated work: {self._unmatched or ', '.join(repeated) or 'none'}"

    def print_once(self) -> None:
        """Print the report on rank 0, and nothing on other ranks."""
        from .exchange import rank

        if rank() == 0:
            print(self)


COLLECTIVES = (
    Column("module", "module"),
    Column("phase", "phase"),
    Column("op", "op"),
    Column("group", "group"),
    Column("ranks", "ranks", "number"),
    Column("calls", "calls", "number"),
    Column("sent", "sent", "B"),
    Column("received", "received", "B"),
    Column("seconds", "time", "s"),
)


def collective_table(counted_run: CountedRun) -> Table:
    """Return a table of a run's collectives by module and phase."""
    rows = tuple(collectives(counted_run.counted))
    return Table("collectives", COLLECTIVES, rows, provenance=counted_run.provenance)


def gathered(counted_run: CountedRun, whole: CountedRun | None, timeout: float) -> GatheredReport:
    """Exchange data with all processes and return the combined report; see :meth:`~fxflops.report.report.Report.gather`."""
    from .exchange import exchanged

    texts = exchanged(json.dumps(_figures(counted_run)), timeout)
    figures_by_rank = [json.loads(text) for text in texts]
    first_rank = dict[str, int]()
    for rank, figures in enumerate(figures_by_rank):
        first_rank.setdefault(figures["made_by"], rank)
    if len(first_rank) > 1:
        functions = ", ".join(f"{name}() on rank {rank}" for name, rank in first_rank.items())
        raise InputError(f"cannot gather reports from different functions: {functions}")
    work = None if whole is None else _work([figures["modules"] for figures in figures_by_rank], _flops(whole))
    return GatheredReport(
        counted_run.run.model,
        tuple(RankRow(*figures["row"]) for figures in figures_by_rank),
        tuple(tuple(Collective(*row) for row in figures["collectives"]) for figures in figures_by_rank),
        all(figures["complete"] for figures in figures_by_rank),
        work,
        tuple(figures["memory"] for figures in figures_by_rank),
        figures_by_rank[0]["provenance"],
    )


def _figures(counted_run: CountedRun) -> dict[str, Any]:
    """Return the JSON data that this process sends to the other processes."""
    run, rows = counted_run.run, collectives(counted_run.counted)
    made_by = "profile" if run.block.instrument_seconds is not None else "count" if run.latency is None else "analyze"
    return {
        "row": _row_of(counted_run, rows),
        "collectives": rows,
        "complete": not counted_run.missing,
        "modules": _flops(counted_run),
        "memory": run.memory.by_category,
        "provenance": counted_run.provenance,
        "made_by": made_by,
    }


def _row_of(counted_run: CountedRun, rows: Sequence[Collective]) -> RankRow:
    run, counted = counted_run.run, counted_run.counted
    block_seconds = totals.block_seconds(counted_run)
    medians = [timing.median for timing in (run.latency, run.backward_latency) if timing is not None]
    sent, received = transferred(rows)
    return RankRow(
        macs=sum(each.macs for each in counted),
        flops=sum(each.flops for each in counted),
        params=None if run.params is None else run.params.total,
        sharded=None if run.params is None else run.params.sharded,
        memory=run.memory.peak,
        sent=sent,
        received=received,
        seconds=block_seconds if block_seconds is not None else sum(medians) if medians else None,
    )


def _flops(counted_run: CountedRun) -> dict[str, int]:
    """Return the FLOPs of each module's own calls, by the module's path without wrappers. The optimizer has an extra entry."""
    flops: dict[str, int] = {}
    for each in counted_run.counted:
        path = ".".join(name for name in each.call.path.split(".") if name not in WRAPPERS)
        path = OPTIMIZER if each.call.phase == "optimizer" else path
        flops[path] = flops.get(path, 0) + each.flops
    return {path: number for path, number in flops.items() if number}


def _work(flops_by_rank: Sequence[Mapping[str, int]], whole: Mapping[str, int]) -> dict[str, WorkRow]:
    """Compare each module's FLOPs on all ranks with the module's FLOPs in one process that does the same work."""
    paths = dict.fromkeys([*whole, *(path for rank in flops_by_rank for path in rank)])
    sums = {path: sum(rank.get(path, 0) for rank in flops_by_rank) for path in paths}
    return {path: WorkRow(flops, whole.get(path, 0), flops - whole.get(path, 0)) for path, flops in sums.items()}
