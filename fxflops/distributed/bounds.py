"""The least time of a training step on a mesh, and meshes in the order of it.

It is a bound: no step is faster, by the ceilings that makers state. What a step is predicted to take stands beside it
(:mod:`.predicted`); of a pipeline's idle time nothing is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import InputError, RunError
from ..prediction.memory import limit_of
from ..records import COMMUNICATION, PARTS, PHASES
from ..render.columns import Column
from ..render.exports import Table, Tabular
from ..report.report import Report
from ..roofline.devices import Device, find_device
from ..roofline.result import COMPUTE, LAUNCH, NOTHING
from ..roofline.traffic import compute_dtype
from ..units import size
from .copies import map_in_copies
from .layers import FEWEST
from .links import Links, links_of
from .placement import least_seconds
from .predicted import StepPrediction, step_prediction
from .result import RankKind, Simulation
from .simulation import Build, simulated

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
KEPT = Column("activations", "activations")
Tokens = Callable[[Mapping[str, int]], int]
"""The tokens of a step on a mesh."""


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


@dataclass(frozen=True, repr=False)
class Meshes(Tabular):
    """Meshes with their bounds and predicted times, the fastest first; the ``to_*`` methods export the ``table`` of those that fit.

    ``too_large`` are those whose peak is above the ``limit`` in bytes, with that peak; ``failed`` those on which ``build`` or
    its step raised, with the reason. ``tokens`` says how many a step has on a mesh, if they are not the same; ``layers`` are those of the model if it was
    not run whole on each mesh. ``predicted`` are the times that steps are expected to take, in the order of ``found``.
    ``checkpointed`` are the meshes on which layers are checkpointed, None where that is the same on all.
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

    @property
    def table(self) -> Table:
        """A row for each mesh that fits, the fastest first. Rates and the MFU are of the predicted step, overlapped."""
        rows = [
            (
                _named(s.mesh),
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
            *(OF_TOKENS if self.tokens else ()),
            *COLUMNS,
            *([KEPT] if self.checkpointed is not None else []),
        )
        return Table("meshes", columns, tuple(rows), provenance=origin)

    def _rate(self, simulation: Simulation, step: StepPrediction) -> list[float]:
        """Return the tokens of a step and those in a second, if they are known."""
        tokens = self.tokens(simulation.mesh) if self.tokens else 0
        return [tokens, tokens / step.best] if self.tokens else []

    def _trust(self, step: StepPrediction) -> str:
        """Return the line that says how far to trust the predicted times, by those of the first mesh."""
        bounds = step.share_of_bounds
        error = "unknown error" if step.error is None else f"mean error {step.error:.1%} for kernels like these"
        left = f"; {bounds:.0%} of the first mesh's time is only a lower bound" if bounds >= 0.005 else ""
        return f"predicted: {error}; excludes idle time, congestion and the network's latency{left}"

    def _layers_of(self, simulation: Simulation) -> list[str]:
        """Return how activations are kept, if that differs between the meshes."""
        if self.checkpointed is None:
            return []
        return ["checkpointed" if simulation.mesh in self.checkpointed else "kept"]

    def _pieces(self) -> Iterator[str | Table]:
        links = f"{self.links.within / 1e9:g} GB/s within a node of {self.links.node}, {self.links.across / 1e9:g} GB/s between nodes"
        yield f"predicted time of a step, and its lower bound: {self.device.name}, {links}"
        if self.layers is not None:
            yield f"extrapolated to {self.layers} layers from {FEWEST + 2}; checked with all {self.layers} on the first mesh"
        yield self.table if self.found or not self.too_large else "none fits"
        if self.found:
            yield "full overlap: all communication runs while the device computes; no overlap: none does"
            yield self._trust(self.predicted[0])
        if self.too_large:
            over = ", ".join(f"{_named(each.mesh)} ({size(each.max_memory)})" for each in self.too_large)
            said = "" if self.checkpointed is None else " even with every layer checkpointed"
            yield f"does not fit into {size(self.limit)}{said}: {over}"
            if not self.found and (self.limit or 0) < 2**20:
                yield f"the memory is in bytes unless it has a unit, such as {self.limit}GiB"
        yield from (f"{mesh}: {reason}" for mesh, reason in self.failed.items())


def _mfu(simulation: Simulation, step: StepPrediction, device: Device) -> float:
    """Return the share of the device's peak that a step reaches: 2 x MACs of forward and backward, without what is computed again."""

    def computing(report: Report) -> int:
        return sum(each.macs for each in report.counted if each.call.phase in ("forward", "backward"))

    def peaks(report: Report) -> str:
        return compute_dtype(max(report.counted, key=lambda each: each.macs).call)

    kind = max(simulation.kinds, key=lambda kind: kind.macs)
    return 2 * kind.sum(computing) / (step.best * device.peak(peaks(kind.report)))


def with_checkpoints(kept: Meshes, checkpointed: Meshes) -> Meshes:
    """Return the meshes that fit with all activations kept, and those that fit with checkpoints, the fastest first."""
    pairs = [each for meshes in (kept, checkpointed) for each in zip(meshes.found, meshes.predicted, strict=True)]
    bounds, predicted = _fastest_first(pairs, kept.tokens)
    return replace(
        kept,
        found=bounds,
        predicted=predicted,
        too_large=checkpointed.too_large,
        failed={**kept.failed, **checkpointed.failed},
        layers=kept.layers or checkpointed.layers,
        checkpointed=tuple(simulation.mesh for simulation, _ in checkpointed.found),
    )


Pair = tuple[tuple[Simulation, StepBound], StepPrediction]


def _fastest_first(
    pairs: Sequence[Pair], tokens: Tokens | None
) -> tuple[tuple[tuple[Simulation, StepBound], ...], tuple[StepPrediction, ...]]:
    """Return the meshes in the order of their predicted seconds: of a token, or of a step where the tokens are not given."""

    def seconds(pair: Pair) -> float:
        (simulation, _), predicted = pair
        return predicted.best / (tokens(simulation.mesh) if tokens else 1)

    ordered = sorted(pairs, key=seconds)
    return tuple(bound for bound, _ in ordered), tuple(predicted for _, predicted in ordered)


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

    def tried(job: tuple[Mapping[str, int], int]) -> tuple[Simulation, StepBound | None] | dict[str, str]:
        mesh, shallow = job
        try:
            known = differs and [name for name in differs if name in mesh]
            one = simulated(build, mesh, differs=known, layers=layers, shallow=shallow)
        except RunError as error:
            return {_named(mesh): " ".join(str(error).split())}
        return one, None if limit is not None and one.max_memory > limit else step_bound(one, found, between)

    def told_of(jobs: Sequence[tuple[Mapping[str, int], int]]) -> list[Any]:
        return map_in_copies(tried, jobs, processes, lambda job: _named(job[0]), done)

    listed = [*meshes]
    if not listed:
        raise InputError("there is no mesh among meshes")
    if layers is None:
        told = told_of([(mesh, 0) for mesh in listed])
    else:
        jobs = [(listed[0], 0), (listed[0], 3), *((mesh, 2) for mesh in listed[1:])]
        first, *told = told_of(jobs)
        if not _alike(first, told[0]):
            told = [first, *told_of([(mesh, 0) for mesh in listed[1:]])]
    by_layers = any(not isinstance(each, dict) and each[0].layers for each in told)

    fitting: list[tuple[Simulation, StepBound]] = []
    too_large: list[Simulation] = []
    failed: dict[str, str] = {}
    for each in told:
        if isinstance(each, dict):
            failed.update(each)
        elif each[1] is None:
            too_large.append(each[0])
        else:
            fitting.append(each)
    predicted = [step_prediction(simulation, found, between) for simulation, _ in fitting]
    bounds, times = _fastest_first([*zip(fitting, predicted, strict=True)], tokens)
    deep = layers if by_layers else None
    return Meshes(found, between, limit, bounds, tuple(too_large), failed, tokens, deep, times)


def _alike(whole: Any, shallow: Any) -> bool:
    """Return whether a mesh could be simulated by a few layers, with the figures that it has by all."""
    ran = not isinstance(whole, dict) and not isinstance(shallow, dict)
    return ran and shallow[0].layers is not None and whole[0].figures == shallow[0].figures


def _named(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {count}" for name, count in mesh.items())
