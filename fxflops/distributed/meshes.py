"""Rank meshes by the predicted time of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import units
from ..errors import InputError
from ..prediction.memory import limit_of
from ..render.columns import Column
from ..render.exports import Table, Tabular
from ..report.report import Report
from ..roofline.devices import Device, find_device
from ..roofline.traffic import compute_dtype
from .bounds import StepBound
from .layers import FEWEST
from .links import Links, links_of
from .predicted import StepPrediction, step_prediction
from .result import Simulation
from .simulation import Build
from .trials import DEPTHS, Outcome, Trial, Trials, mesh_name

MESH = Column("mesh", "mesh")
OF_TOKENS = Column("tokens", "tokens/step", "number"), Column("rate", "tokens/s", "elements")
COLUMNS = (
    Column("mfu", "MFU %", "%"),
    Column("predicted_best", "step, full overlap", "s"),
    Column("predicted_worst", "step, no overlap", "s"),
    Column("best", "bound, full overlap", "s"),
    Column("worst", "bound, no overlap", "s"),
    Column("compute", "compute", "s"),
    Column("communication", "communication", "s"),
    Column("memory", "peak memory", "B"),
    Column("binds", "limited by"),
)
OF_BATCH = Column("batch", "sequences per pass", "number"), Column("passes", "passes", "number")
KEPT = Column("activations", "activations")
SHOWN = {
    "mesh": "mesh",
    "batch": "batch",
    "tokens": "tokens/step",
    "rate": "tokens/s",
    "mfu": "MFU %",
    "predicted_best": "step",
    "memory": "peak memory",
    "activations": "activations",
    "binds": "limited by",
}
"""The columns of the printed table with their headers. The printed table shows a range in one column, with the better end first; exports have
a column for each end."""
RANGES = (
    "ranges: from full overlap (all communication runs while the device computes) to no overlap; sorted by full overlap"
)
Tokens = Callable[[Mapping[str, int]], int]
"""A function that returns the number of tokens of a step on a mesh."""


@dataclass(frozen=True, repr=False)
class Meshes(Tabular):
    """Meshes with the bounds and predicted times of a step, the fastest first. The ``to_*`` methods export ``table``.

    - ``found``: the meshes that fit into memory, each as a simulation and its bound.
    - ``predicted``: the expected times of a step, in the order of ``found``.
    - ``too_large``: the simulations whose peak memory is above ``limit`` bytes.
    - ``failed``: the meshes on which ``build`` or the step raised, with the reason.
    - ``tokens``: a function that returns the tokens of a step on a mesh, or None if the caller passed no such function.
    - ``layers``: the model's number of layers if any mesh was simulated with fewer layers, else None.
    - ``checkpointed``: the meshes on which layers are checkpointed, or None if checkpointing was not chosen separately for each mesh.
    - ``batches``: the sequences per pass, by the mesh's name ("dp 8 x tp 2"); empty if the number of sequences was not chosen separately
      for each mesh.
    - ``notes``: sentences to print above the table, e.g. which meshes were left out.
    """

    device: Device
    links: Links
    limit: int | None
    found: tuple[tuple[Simulation, StepBound], ...]
    too_large: tuple[Simulation, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    tokens: Tokens | None = None
    layers: int | None = None
    predicted: tuple[StepPrediction, ...] = ()
    checkpointed: tuple[Mapping[str, int], ...] | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """One row per mesh that fits, the fastest first. Tokens/s and MFU are for the predicted step with full overlap."""
        rows = [
            (
                mesh_name(s.mesh),
                *self._batch_of(s),
                *self._rate(s, p),
                100 * _mfu(s, p, self.device),
                p.best,
                p.worst,
                b.best,
                b.worst,
                b.compute,
                b.communication,
                s.max_memory,
                b.binds,
                *self._layers_of(s),
            )
            for (s, b), p in zip(self.found, self.predicted, strict=True)
        ]
        origin = self.found[0][0].provenance if self.found else ""
        columns = (
            MESH,
            *(OF_BATCH if self.batches else ()),
            *(OF_TOKENS if self.tokens else ()),
            *COLUMNS,
            *([KEPT] if self.checkpointed is not None else []),
        )
        return Table("meshes", columns, tuple(rows), provenance=origin)

    def _rate(self, simulation: Simulation, step: StepPrediction) -> list[float]:
        """Return the tokens per step and per second; nothing if the tokens are unknown."""
        tokens = self.tokens(simulation.mesh) if self.tokens else 0
        return [tokens, tokens / step.best] if self.tokens else []

    def _tokens_per_step(self) -> set[int]:
        """Return the different numbers of tokens per step of the meshes that fit; empty if they are unknown."""
        return {self.tokens(simulation.mesh) for simulation, _ in self.found} if self.tokens else set()

    def _batch_of(self, simulation: Simulation) -> list[int]:
        """Return the sequences per pass and the passes per step; nothing if they are unknown."""
        return [self.batches[mesh_name(simulation.mesh)], simulation.passes or 1] if self.batches else []

    def _trust(self, step: StepPrediction) -> str:
        """Return a line that states the error of the predicted times. The error is from the prediction for the first mesh."""
        bounds = step.share_of_bounds
        error = "unknown" if step.error is None else f"{step.error:.1%} on average for single kernels"
        left = f"; for {bounds:.0%} of the first mesh's time, only a lower bound is known" if bounds >= 0.005 else ""
        return f"error: {error}; the error of a whole step is unknown: idle time, congestion and network latency are not included{left}"

    def _layers_of(self, simulation: Simulation) -> list[str]:
        """Return whether the mesh's activations are "checkpointed" or "kept"; an empty list if checkpointing was not chosen separately for
        each mesh."""
        if self.checkpointed is None:
            return []
        return ["checkpointed" if simulation.mesh in self.checkpointed else "kept"]

    @property
    def _narrow_table(self) -> Table:
        """The table with fewer columns, to fit a screen. Ranges go from full overlap to no overlap."""
        table, tokens_per_step = self.table, self._tokens_per_step()
        left_out = "tokens" if len(tokens_per_step) < 2 else ""
        shown = [name for name in SHOWN if name != left_out and any(column.key == name for column in table.columns)]
        rows = []
        for row in self.to_dicts():
            ratio = row["predicted_best"] / row["predicted_worst"] if row["predicted_worst"] else 1.0
            cells = {
                **row,
                "predicted_best": _span(units.seconds, row["predicted_best"], row["predicted_worst"]),
                "mfu": _span(lambda value, unit=None: f"{value:.1f}", row["mfu"], row["mfu"] * ratio),
            }
            if "rate" in row:
                cells["rate"] = _span(units.billions, row["rate"], row["rate"] * ratio)
            if "batch" in row:
                cells["batch"] = f"{row['batch']} x {row['passes']}"
            rows.append(tuple(cells[name] for name in shown))
        kinds = {"memory": "B", "tokens": "number"}
        columns = tuple(Column(name, SHOWN[name], kinds.get(name, "text")) for name in shown)  # type: ignore[arg-type]
        return Table("meshes", columns, tuple(rows), provenance=table.provenance)

    def _pieces(self) -> Iterator[str | Table]:
        links = f"{self.links.within / 1e9:g} GB/s within a node of {self.links.node}, {self.links.across / 1e9:g} GB/s between nodes"
        yield f"predicted on {self.device.name}, {links}"
        if self.layers is not None:
            yield f"extrapolated to {self.layers} layers from {FEWEST + DEPTHS - 1}; checked with all {self.layers} on the first mesh"
        yield from self.notes
        yield self._narrow_table if self.found or not self.too_large else "no mesh fits"
        if self.found:
            if len(tokens_per_step := self._tokens_per_step()) > 1:
                yield (
                    f"the meshes have different global batches, of {min(tokens_per_step):,} to {max(tokens_per_step):,} tokens per step; "
                    "to rank them for one global batch, give --global-batch (in Python, global_batch)"
                )
            if any(kind.report._counted_run.has_attention for kind in self.found[0][0].kinds):
                yield "MFU: attention is counted for all pairs of tokens, masked pairs too (dense)"
            if self.batches:
                yield "batch: sequences per pass x passes per optimizer step"
            yield RANGES
            yield self._trust(self.predicted[0])
        if self.too_large:
            over = ", ".join(f"{mesh_name(each.mesh)} ({units.size(each.max_memory)})" for each in self.too_large)
            yield f"does not fit into {units.size(self.limit)}{self._even_with()}: {over}"
            if not self.found and (self.limit or 0) < 2**20:
                yield f"a memory limit without a unit is in bytes; for GiB, write {self.limit}GiB"
        yield from (f"{mesh}: {reason}" for mesh, reason in self.failed.items())

    def _even_with(self) -> str:
        """Say in words how memory was saved on the meshes that are still too large."""
        tried = []
        if self.batches and all(self.batches[mesh_name(each.mesh)] == 1 for each in self.too_large):
            tried.append("one sequence per pass")
        if self.checkpointed and all(each.mesh in self.checkpointed for each in self.too_large):
            tried.append("every layer checkpointed")
        return f" even with {' and '.join(tried)}" if tried else ""


def _span(show: Callable[..., str], best: float, worst: float) -> str:
    """Return two values as a range in the unit of the first value, e.g. "2.16-1.82 M". If both print the same, return a single value."""
    first = show(best)
    number, _, unit = first.partition(" ")
    last = show(worst, unit) if unit else show(worst)
    return first if first == last else f"{number}-{last}"


def _mfu(simulation: Simulation, step: StepPrediction, device: Device) -> float:
    """Return the MFU of a step: 2 x MACs of forward and backward, without recomputation, as a share of the device's peak."""

    def computing(report: Report) -> int:
        return sum(each.macs for each in report.counted if each.call.phase in ("forward", "backward"))

    def peaks(report: Report) -> str:
        return compute_dtype(max(report.counted, key=lambda each: each.macs).call)

    kind = max(simulation.kinds, key=lambda kind: kind.macs)
    return 2 * kind.sum(computing) / (step.best * device.peak(peaks(kind.report)))


def ranked(
    outcomes: Mapping[str, Outcome | str],
    device: Device,
    links: Links,
    limit: int | None,
    *,
    tokens: Tokens | None = None,
    layers: int | None = None,
    **more: Any,
) -> Meshes:
    """Return the meshes ranked by predicted seconds per token, or without ``tokens``, by seconds per step. The fastest mesh comes first."""
    fitting, too_large = [], []
    for outcome in outcomes.values():
        if isinstance(outcome, str):
            continue
        simulation, bound = outcome
        if bound is None:
            too_large.append(simulation)
        else:
            fitting.append(((simulation, bound), step_prediction(simulation, device, links)))
    fitting.sort(key=lambda pair: pair[1].best / (tokens(pair[0][0].mesh) if tokens else 1))
    by_layers = any(not isinstance(each, str) and each.simulation.layers for each in outcomes.values())
    return Meshes(
        device,
        links,
        limit,
        tuple(bound for bound, _ in fitting),
        tuple(too_large),
        {name: reason for name, reason in outcomes.items() if isinstance(reason, str)},
        tokens,
        layers if by_layers else None,
        tuple(predicted for _, predicted in fitting),
        **more,
    )


def rank_meshes(
    build: Build,
    meshes: Iterable[Mapping[str, int]],
    *,
    device: str | Device = "H100",
    links: Links | None = None,
    memory: str | int | None = None,
    differs: Sequence[str] | None = None,
    tokens: Tokens | None = None,
    layers: int | None = None,
    processes: int = 1,
    done: Callable[[], None] = lambda: None,
    started: Callable[[int], None] = lambda number: None,
) -> Meshes:
    """Simulate a training step on each mesh. Return the meshes that fit into ``memory``, ranked by predicted time, the fastest first.

    Args:
        build: as for :func:`simulate`.
        meshes: the meshes to rank, each a mapping of dimension names to sizes.
        device: as for :func:`step_bound`, with the same assumptions and errors.
        links: as for :func:`step_bound`.
        memory: the memory of one device, in bytes or as "80GiB"; None for no limit.
        differs: as for :func:`simulate`. If a mesh has no dimension of this name, the name is ignored for the mesh.
        tokens: a function that returns the tokens of a step on a mesh. Pass this function if meshes do different work per step: meshes are
            then ranked by tokens per second.
        layers: as for :func:`simulate`.
        processes: the number of meshes that are simulated at the same time, each in its own copy of this process.
        done: called after each simulation.
        started: called with the number of simulations that are about to run. Their results may lead to more simulations.

    With ``layers``, each mesh is simulated with two shallow models. The two models show whether all layers add the same memory. The first
    mesh is also simulated with all layers, to check that work grows linearly with the layers. If the results differ, all meshes are
    simulated with all layers.
    """
    if isinstance(meshes, Mapping):
        raise InputError(f"meshes must be a list of meshes, such as [{meshes!r:.60}], not a single mesh")
    found = find_device(device)
    between = links_of(found) if links is None else links
    limit = limit_of(memory)

    listed = [*meshes]
    if not listed:
        raise InputError("meshes is empty; pass at least one mesh, such as {'dp': 8}")
    trials = Trials(
        found, between, limit, differs=differs, layers=layers, processes=processes, done=done, started=started
    )
    outcomes = trials.outcomes([Trial(mesh, build) for mesh in listed])
    named = dict(zip(map(mesh_name, listed), outcomes, strict=True))
    return ranked(named, found, between, limit, tokens=tokens, layers=layers)
