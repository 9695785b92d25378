"""Find the meshes on which a transformers language model can be trained, and the largest passes that fit into memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from ..errors import InputError
from ..prediction.memory import limit_of
from ..prediction.reserved import STATE, beside
from ..roofline.devices import Device, find_device
from .causal_lm import candidates, layers_of, plan_of, training_step
from .links import Links, links_of
from .meshes import Meshes, ranked
from .predicted import step_prediction
from .result import Simulation
from .trials import Outcome, Trial, Trials, mesh_name

FIXED = (*STATE, "gathered")
"""The categories of memory that do not grow with the number of sequences per pass."""
LARGE_SHARE = 0.1
"""The least share of the parameters for which a note says that only some ranks hold them."""
HELD_BY_FEW = "dp ranks hold these parameters"
"""Words in the note about parameters that only some ranks hold."""


class Plan(NamedTuple):
    """How a data-parallel rank divides its share of a step: ``batch`` sequences per pass, the passes, and whether layers are checkpointed."""

    batch: int
    passes: int
    checkpointing: bool


Planned = tuple[Plan, Outcome]
Search = Generator[Plan, Outcome, Planned]
"""A generator that yields plans to simulate, receives the outcomes, and returns the best plan with its outcome."""


def train_meshes(
    model: Any,
    gpus: int,
    *,
    device: str | Device = "H100",
    seq: int = 8192,
    batch: int | None = None,
    global_batch: int | None = None,
    checkpoint: bool | None = None,
    memory: str | int | None = None,
    links: Links | None = None,
    processes: int = 1,
    done: Callable[[], None] = lambda: None,
    started: Callable[[int], None] = lambda number: None,
) -> Meshes:
    """Return the meshes of ``gpus`` devices on which a training step of a language model fits, the fastest first.

    ``fxflops mesh`` prints this result. Weights, gradients and AdamW's state are f32, and ``fully_shard`` shards them over "dp"
    layer by layer. The step computes in bf16. "tp" stays within a node and follows the model's ``tp_plan``.

    Args:
        model: a transformers causal language model; it may be on the meta device.
        gpus: the number of devices.
        device: a Device, or the name of a device in the table.
        seq: the number of tokens per sequence.
        batch: the sequences per pass (forward and backward) of each data-parallel rank. The default is one; with ``global_batch``, the
            default is as many as fit.
        global_batch: the sequences per step on all ranks. If a rank's share does not fit at once, the rank takes several passes and
            sums their gradients before the optimizer's step. A pass gets as many sequences as fit. Layers are checkpointed or not,
            whichever is predicted to be faster. Gradients are reduced after each pass.
        checkpoint: whether layers are checkpointed, so that each layer keeps only its input. By default, layers are checkpointed on meshes
            where the step would not fit otherwise. With ``global_batch``, they are also checkpointed where this is predicted to make the
            step faster.
        memory: the memory for tensors on each device, in bytes or as "70GiB". By default the card's memory minus CUDA's context and
            NCCL's buffers. If the card's memory is unknown, there is no limit.
        links: the speeds of the links, in bytes per second and direction; by default the device's links in the table.
        processes: the number of meshes that are simulated at the same time, each in a copy of this process.
        done: called after each simulation.
        started: called with the number of simulations that are about to run. Their results may lead to more simulations.

    The memory of a pass grows nearly linearly with its number of sequences, so a few simulations find the largest pass that fits. The
    chosen size is always simulated too. Two passes are simulated; further passes add the same work and no memory.

    Raises InputError if the model is not a causal language model, if the links of the device are unknown, or if ``global_batch``
    cannot be divided evenly on any mesh.
    """
    card = find_device(device)
    between = links_of(card) if links is None else links
    limit = limit_of(memory)
    if limit is None and card.memory is not None:
        limit = card.memory - beside(gpus)
    for name, value in {"gpus": gpus, "seq": seq, "batch": batch, "global_batch": global_batch}.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name} must be an integer of at least 1, not {value!r:.80}")
    meshes = candidates(model, gpus, between.node)
    notes = [*_tensor_parallel(model, gpus, between.node, meshes)]
    shares, undivided = _shares(meshes, batch, global_batch)
    if undivided:
        notes.append(
            f"left out: {', '.join(undivided)}, because {global_batch} sequences cannot be divided evenly among the ranks"
        )
    notes += _unsharded(model, max(mesh["dp"] for mesh, share in zip(meshes, shares, strict=True) if share))
    searches = [
        (mesh, _best(share, batch, checkpoint, limit, card, between))
        for mesh, share in zip(meshes, shares, strict=True)
        if share
    ]
    trials = Trials(
        card, between, limit, differs=(), layers=layers_of(model), processes=processes, done=done, started=started
    )

    def trial(mesh: Mapping[str, int], plan: Plan) -> Trial:
        step = training_step(model, tokens=seq, batch=plan.batch, checkpointing=plan.checkpointing)
        return Trial(mesh, step, plan.passes, "checkpointed" if plan.checkpointing else "kept")

    with warnings.catch_warnings():  # the model's output is a dataclass, and no tensor in it is changed in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module.*returned a view")
        plans, outcomes = _searched(searches, trial, trials)
    total = {mesh_name(mesh): mesh["dp"] * (share or 0) for mesh, share in zip(meshes, shares, strict=True)}
    return ranked(
        outcomes,
        card,
        between,
        limit,
        tokens=lambda mesh: seq * total[mesh_name(mesh)],
        layers=layers_of(model),
        checkpointed=tuple(mesh for mesh, _ in searches if (plan := plans.get(mesh_name(mesh))) and plan.checkpointing),
        batches={name: plan.batch for name, plan in plans.items()},
        notes=tuple(notes),
    )


def _shares(
    meshes: list[dict[str, int]], batch: int | None, global_batch: int | None
) -> tuple[list[int | None], list[str]]:
    """For each mesh, return the number of sequences per data-parallel rank in a step. The result also has the names of the meshes that
    cannot divide the sequences evenly.

    A mesh that cannot divide the sequences evenly has None instead of a number of sequences.
    """
    if global_batch is None:
        return [batch or 1] * len(meshes), []
    parts = [mesh["dp"] * (batch or 1) for mesh in meshes]
    shares = [None if global_batch % part else global_batch // part * (batch or 1) for part in parts]
    if not any(shares):
        passes = "" if batch is None else f" in passes of {batch}"
        raise InputError(
            f"a global batch of {global_batch} cannot be divided evenly among the data-parallel ranks of any mesh{passes}; "
            f"the meshes have {', '.join(str(mesh['dp']) for mesh in meshes)} data-parallel ranks"
        )
    return shares, [f"dp {mesh['dp']}" for mesh, share in zip(meshes, shares, strict=True) if share is None]


def _searched(
    searches: list[tuple[dict[str, int], Search]], trial: Callable[[Mapping[str, int], Plan], Trial], trials: Trials
) -> tuple[dict[str, Plan], dict[str, Outcome | str]]:
    """Return the plan and the outcome of each mesh, by name. All searches advance together, so that their trials can run in parallel."""
    plans: dict[str, Plan] = {}
    outcomes: dict[str, Outcome | str] = {mesh_name(mesh): "" for mesh, _ in searches}  # in this order
    running = [(mesh, search, next(search)) for mesh, search in searches]
    while running:
        shown = trials.outcomes([trial(mesh, plan) for mesh, _, plan in running])
        going_on = []
        for (mesh, search, _), outcome in zip(running, shown, strict=True):
            name = mesh_name(mesh)
            if isinstance(outcome, str):
                outcomes[name] = outcome
                continue
            try:
                going_on.append((mesh, search, search.send(outcome)))
            except StopIteration as end:
                plans[name], outcomes[name] = end.value
        running = going_on
    return plans, outcomes


def _best(
    share: int, batch: int | None, checkpoint: bool | None, limit: int | None, device: Device, links: Links
) -> Search:
    """Search for the fastest plan that fits; if no plan fits, return the plan that needs the least memory.

    If the whole share fits in one pass without checkpoints, this plan is the fastest.
    """
    sizes = [batch] if batch else [size for size in range(1, share + 1) if share % size == 0]
    modes = (False, True) if checkpoint is None else (checkpoint,)
    fitting: list[Planned] = []
    for checkpointing in modes:
        planned = yield from _largest(share, sizes, checkpointing, limit)
        plan, outcome = planned
        if outcome.bound is not None:
            fitting.append(planned)
            if plan.batch == sizes[-1] and not checkpointing:
                break

    def seconds(planned: Planned) -> tuple[float, float]:
        step = step_prediction(planned[1].simulation, device, links)
        return step.best, step.worst

    return min(fitting, key=seconds) if fitting else planned


def _largest(share: int, sizes: list[int], checkpointing: bool, limit: int | None) -> Search:
    """Search for the largest pass that fits, among ascending ``sizes``. If no size fits, return the smallest size.

    The memory between two simulated sizes is interpolated linearly. As long as no simulated size fits, the line starts at the memory that a
    pass without any sequences would take.
    """
    plan = Plan(sizes[-1], share // sizes[-1], checkpointing)
    outcome = yield plan
    if outcome.bound is not None or limit is None:
        return plan, outcome
    fitting: Planned | None = None
    low, high = (0, _fixed(outcome.simulation)), (plan.batch, outcome.simulation.max_memory)
    while between := [size for size in sizes if low[0] < size < high[0]]:
        slope = (high[1] - low[1]) / (high[0] - low[0])
        expected = [size for size in between if low[1] + slope * (size - low[0]) <= limit]
        if not expected and fitting is not None:
            break
        size = expected[-1] if expected else between[0]
        plan = Plan(size, share // size, checkpointing)
        outcome = yield plan
        point = size, outcome.simulation.max_memory
        if outcome.bound is None:
            high = point
        else:
            low, fitting = point, (plan, outcome)
    return fitting or (plan, outcome)


def _fixed(simulation: Simulation) -> int:
    """Return the bytes at the peak that do not grow with the number of sequences per pass."""
    kind = max(simulation.kinds, key=lambda kind: kind.max_memory)
    return sum(kind.memory.get(name, 0) for name in FIXED)


def _tensor_parallel(model: Any, gpus: int, node: int, meshes: list[dict[str, int]]) -> list[str]:
    """Return a note if tensor parallelism cannot use all devices of a node."""
    widest = max(mesh["tp"] for mesh in meshes)
    if not plan_of(model):
        return ["only data parallel: the model has no tp_plan, or torch lacks one of the plan's styles"]
    if widest < min(gpus, node):
        return [
            f"tensor parallel over at most {widest} devices: larger sizes do not divide the model's heads, or the {gpus} devices"
        ]
    return []


def _unsharded(model: Any, ranks: int) -> list[str]:
    """Return a note if many parameters, e.g. the weights of experts, have fewer rows than there are ranks.

    ``fully_shard`` splits the first dimension, so some ranks then hold none of these parameters.
    """
    sizes = {name: (each.shape, each.numel()) for name, each in model.named_parameters()}
    total = sum(size for _, size in sizes.values())
    notes = []
    for rows in sorted({shape[0] for shape, _ in sizes.values() if len(shape) and shape[0] < ranks}):
        having = {name: size for name, (shape, size) in sizes.items() if len(shape) and shape[0] == rows}
        share = sum(having.values()) / total
        if share > LARGE_SHARE:
            largest = max(having, key=having.__getitem__)
            notes.append(
                f"{share:.0%} of the parameters, such as {largest}, have {rows} rows. fully_shard splits rows, so only {rows} of {ranks} "
                f"{HELD_BY_FEW}, their gradients and AdamW's state. These ranks have the highest peak memory"
            )
    return notes
