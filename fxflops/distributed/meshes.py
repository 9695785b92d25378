"""Meshes in the order of the predicted time of a training step on them."""

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
OF_BATCH = Column("batch", "sequences of a pass", "number"), Column("passes", "passes", "number")
KEPT = Column("activations", "activations")
SHOWN = {
    "mesh": "mesh",
    "batch": "batch",
    "rate": "tokens/s",
    "mfu": "MFU %",
    "predicted_best": "step",
    "memory": "peak memory",
    "activations": "activations",
    "binds": "limited by",
}
"""The columns of the text, of those that exports have, with their headers: a range is one column, from the better end to the worse."""
RANGES = "full overlap to no overlap: all communication runs while the device computes, or none does; in the order of full overlap"
Tokens = Callable[[Mapping[str, int]], int]
"""The tokens of a step on a mesh."""


@dataclass(frozen=True, repr=False)
class Meshes(Tabular):
    """Meshes with their bounds and predicted times, the fastest first; the ``to_*`` methods export the ``table`` of those that fit.

    ``too_large`` are those whose peak is above the ``limit`` in bytes, with that peak; ``failed`` those on which ``build`` or
    its step raised, with the reason. ``tokens`` says how many a step has on a mesh, if they are not the same; ``layers`` are those of the model if it was
    not run whole on each mesh. ``predicted`` are the times that steps are expected to take, in the order of ``found``.
    ``checkpointed`` are the meshes on which layers are checkpointed, None where that is the same on all. ``batches`` are the sequences of a
    pass by the mesh's name ("dp 8 x tp 2"), where they were chosen; ``notes`` say which meshes are not among them, and what else is to be known.
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
        """A row for each mesh that fits, the fastest first. Rates and the MFU are of the predicted step, overlapped."""
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
        """Return the tokens of a step and those in a second, if they are known."""
        tokens = self.tokens(simulation.mesh) if self.tokens else 0
        return [tokens, tokens / step.best] if self.tokens else []

    def _batch_of(self, simulation: Simulation) -> list[int]:
        """Return the sequences of a pass, and the passes of a step, if they are known."""
        return [self.batches[mesh_name(simulation.mesh)], simulation.passes or 1] if self.batches else []

    def _trust(self, step: StepPrediction) -> str:
        """Return the line that says how far to trust the predicted times, by those of the first mesh."""
        bounds = step.share_of_bounds
        error = "unknown" if step.error is None else f"{step.error:.1%} on average for single kernels"
        left = (
            f"; {bounds:.0%} of the first mesh's time is not predicted, only bounded below" if bounds >= 0.005 else ""
        )
        return f"error: {error}; the error of a whole step is not known: idle time, congestion and the network's latency are left out{left}"

    def _layers_of(self, simulation: Simulation) -> list[str]:
        """Return how activations are kept, if that differs between the meshes."""
        if self.checkpointed is None:
            return []
        return ["checkpointed" if simulation.mesh in self.checkpointed else "kept"]

    @property
    def _narrow_table(self) -> Table:
        """The table with fewer columns, which fit a screen: with ranges between full overlap and none."""
        table = self.table
        shown = [name for name in SHOWN if any(column.key == name for column in table.columns)]
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
        kinds = {"memory": "B"}
        columns = tuple(Column(name, SHOWN[name], kinds.get(name, "text")) for name in shown)  # type: ignore[arg-type]
        return Table("meshes", columns, tuple(rows), provenance=table.provenance)

    def _pieces(self) -> Iterator[str | Table]:
        links = f"{self.links.within / 1e9:g} GB/s within a node of {self.links.node}, {self.links.across / 1e9:g} GB/s between nodes"
        yield f"predicted on {self.device.name}, {links}"
        if self.layers is not None:
            yield f"extrapolated to {self.layers} layers from {FEWEST + DEPTHS - 1}; checked with all {self.layers} on the first mesh"
        yield from self.notes
        yield self._narrow_table if self.found or not self.too_large else "none fits"
        if self.found:
            if self.batches:
                yield "batch: sequences of a pass x passes before the optimizer's step"
            yield RANGES
            yield self._trust(self.predicted[0])
        if self.too_large:
            over = ", ".join(f"{mesh_name(each.mesh)} ({units.size(each.max_memory)})" for each in self.too_large)
            yield f"does not fit into {units.size(self.limit)}{self._even_with()}: {over}"
            if not self.found and (self.limit or 0) < 2**20:
                yield f"the memory is in bytes unless it has a unit, such as {self.limit}GiB"
        yield from (f"{mesh}: {reason}" for mesh, reason in self.failed.items())

    def _even_with(self) -> str:
        """Return what was tried so that the meshes that are too large may fit."""
        tried = []
        if self.batches and all(self.batches[mesh_name(each.mesh)] == 1 for each in self.too_large):
            tried.append("one sequence in a pass")
        if self.checkpointed and all(each.mesh in self.checkpointed for each in self.too_large):
            tried.append("every layer checkpointed")
        return f" even with {' and '.join(tried)}" if tried else ""


def _span(show: Callable[..., str], best: float, worst: float) -> str:
    """Return two values as a range in the unit of the first: "2.16-1.82 M"; one if they look the same."""
    first = show(best)
    number, _, unit = first.partition(" ")
    last = show(worst, unit) if unit else show(worst)
    return first if first == last else f"{number}-{last}"


def _mfu(simulation: Simulation, step: StepPrediction, device: Device) -> float:
    """Return the share of the device's peak that a step reaches: 2 x MACs of forward and backward, without what is computed again."""

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
    """Return the meshes that fit, the fastest first: by their predicted seconds of a token, or of a step where the tokens are not given."""
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
) -> Meshes:
    """Simulate a training step on each mesh; return those that fit into ``memory``, the fastest by its predicted time first.

    If meshes do different work per step, pass ``tokens(mesh)``, the tokens of a step: meshes are then ranked by tokens per second.

    ``memory`` is that of a device, in bytes or as "80GiB". ``build``, ``differs`` and ``layers`` are those of :func:`simulate`,
    where names in ``differs`` that a mesh does not have are left out; ``device`` and ``links`` are those of :func:`step_bound`, which has its
    assumptions and errors. So many ``processes`` simulate a mesh each at a time, as those of :func:`simulate` a rank.
    ``done`` is called after each simulation.

    With ``layers`` the first mesh is simulated with all layers, too. Unless that gives the same figures, all meshes are. The others
    are known by two depths, which show whether layers add the same memory; that work grows evenly the first one has shown.
    """
    if isinstance(meshes, Mapping):
        raise InputError(f"meshes must be a list of meshes, such as [{meshes!r:.60}], not one")
    found = find_device(device)
    between = links_of(found) if links is None else links
    limit = limit_of(memory)

    listed = [*meshes]
    if not listed:
        raise InputError("there is no mesh among meshes")
    trials = Trials(found, between, limit, differs=differs, layers=layers, processes=processes, done=done)
    outcomes = trials.outcomes([Trial(mesh, build) for mesh in listed])
    named = dict(zip(map(mesh_name, listed), outcomes, strict=True))
    return ranked(named, found, between, limit, tokens=tokens, layers=layers)
