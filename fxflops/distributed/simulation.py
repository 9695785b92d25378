"""Simulate a training step of a mesh's ranks, one after the other, in this process. Nothing is sent, and tensors have no memory."""

from __future__ import annotations

import gc
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from ..counting.collectives import collectives
from ..errors import InputError, RunError, errors_of_kind
from ..model.modules import all_modules
from ..profiling import models_as_one, profile
from ..report.report import Report
from ..torch_internals import fake_errors_unlogged, fake_group, fake_tensors
from ..trace.fake_constants import MOST
from ..trace.fake_world import READS_VALUES
from ..trace.source import line_that_raised
from .copies import map_in_copies, start_autograd
from .layers import Deeper, deeper, depths
from .rank_mode import Rank
from .result import RankKind, Simulation

Build = Callable[..., tuple["nn.Module | Sequence[nn.Module] | Mapping[str, Any]", Callable[[], Any]]]
NO_DATA = "a C++ kernel reads the data of a tensor, but the tensors of a simulated rank have no data"
OF_STEP = "the step reads the value of a tensor (item(), bool(), nonzero()), but the tensors of a simulated rank have no values"
OF_BUILD = (
    "build reads the value of a tensor (item(), bool(), nonzero()). On a simulated rank, only tensors that are computed from "
    f"constants alone, with at most {MOST:,} elements each, have values: compute the value without parameters, inputs and random numbers"
)
Ran = tuple[Report, "Deeper | None"]
"""The report of a rank's step, and how to extrapolate from the report to a deeper model."""
RanPasses = Sequence[Ran]
"""The result of the requested step; for a step with more than two passes, the results of one pass and of two passes."""
Coordinates = dict[str, int]
"""The place of a rank in the mesh: its index in each dimension."""


def simulate(
    build: Build,
    mesh: Mapping[str, int],
    *,
    differs: Sequence[str] | None = None,
    layers: int | None = None,
    processes: int = 1,
) -> Simulation:
    """Simulate a training step on a mesh of ranks, one rank at a time, without allocating tensors and without sending anything.

    Args:
        build: a function ``build(device_mesh)`` that returns a rank's model (or models), and a function that runs one training
            step: forward, backward, optimizer. ``build`` is called for one rank at a time, under a fake process group that contains all
            ranks. ``build`` is called with a ``DeviceMesh`` with the dimensions of ``mesh``. ``build`` parallelizes the model as on the
            cluster (``fully_shard``, ``parallelize_module``, ``PipelineStage``). All tensors are fake.
        mesh: the size of each dimension, by name: ``{"dp": 64, "tp": 8, "pp": 4}``.
        differs: the dimensions along which ranks do different work, such as a pipeline's dimension. By default, fxflops compares
            the first and the last rank along each dimension.
        layers: the model's number of layers, if ``build(device_mesh, layers)`` can make the model with any number of layers. fxflops then
            runs only models with 4, 5 and 6 layers (with a pipeline of n ranks: at least 4 n layers). The work, the collectives and the
            memory of the other layers are extrapolated. If the models do not grow evenly, the model with all layers is run instead.
            ``simulate`` does not check that deeper layers are like the first layers; :func:`rank_meshes` checks this.
        processes: the number of ranks that are simulated at the same time, each in a copy of this process. Changes that ``build``
            or the step make outside the model are lost with the copy. One process is used if copies are not safe: on systems other than
            Linux, with an accelerator, with other threads, or after a first backward pass on fake tensors.

    Raises InputError for an invalid mesh or ``build``, and if this process already has a process group; RunError if ``build`` or a step
    raises, or a copy is killed. The error names the rank.
    """
    return simulated(build, mesh, differs=differs, layers=layers, processes=processes)


def simulated(
    build: Build,
    mesh: Mapping[str, int],
    *,
    differs: Sequence[str] | None = None,
    layers: int | None = None,
    shallow: int = 3,
    passes: int | None = None,
    processes: int = 1,
) -> Simulation:
    """Do the work of :func:`simulate`, with more options.

    With ``layers``, ``shallow`` is the number of models with fewer layers to extrapolate from. With two models, there is no check that
    work grows linearly. If ``shallow`` is 0, the model with all layers is run.

    With ``passes``, the step that ``build`` returns takes the number of passes as an argument. The step runs the forward and backward of
    each pass, and sums the gradients. For more than two passes, fxflops runs only a step with one pass and a step with two passes.
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise InputError(
            f"build must be a function that takes the mesh and returns a model and its step, not {build!r:.80}"
        )
    sizes = mesh.values() if isinstance(mesh, Mapping) else ()
    named = sizes and all(isinstance(name, str) for name in mesh)
    if not named or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f'mesh must map names of dimensions to sizes, such as {{"dp": 64, "tp": 8}}, not {mesh!r:.80}')
    if isinstance(differs, str):
        raise InputError(f"differs must be a list of dimensions, such as [{differs!r}], not {differs!r}")
    if unknown := [name for name in differs or () if name not in mesh]:
        raise InputError(f"differs: unknown dimensions {', '.join(map(repr, unknown))}; the mesh has {', '.join(mesh)}")
    if layers is not None and not (isinstance(layers, int) and layers > 0):
        raise InputError(f"layers must be the number of layers in the model, got {layers!r:.80}")
    if layers is not None and not _takes_layers(build):
        raise InputError(
            "with layers=, build must take two arguments, the mesh and the number of layers: build(mesh, layers)"
        )
    if torch.distributed.is_initialized():
        raise InputError(
            "simulate() creates its own process group; call simulate() before torch.distributed is initialized"
        )
    shared = math.prod(mesh[name] for name in differs or ())
    found: dict[tuple[int, ...], RanPasses] = {}

    def run(places: Sequence[Coordinates]) -> list[RanPasses]:
        new = {key: at for at in places if (key := tuple(at.values())) not in found}
        made = map_in_copies(
            partial(_ran, build, mesh, layers, shallow, shared, passes),
            new.values(),
            processes,
            partial(_rank_named, mesh),
        )
        found.update(zip(new, made, strict=True))
        return [found[tuple(at.values())] for at in places]

    first = dict.fromkeys(mesh, 0)
    if differs is None:
        ends = {name: {**first, name: size - 1} for name, size in mesh.items()}
        signature, *others = map(_signature, run([first, *ends.values()]))
        differs = [name for name, other in zip(ends, others, strict=True) if other != signature]
    places = [
        {**first, **dict(zip(differs, at, strict=True))} for at in product(*(range(mesh[name]) for name in differs))
    ]
    alike = math.prod(mesh.values()) // len(places)
    ran = run(places)
    kinds = _equal((_kind(at, each, passes), _signature(each)) for at, each in zip(places, ran, strict=True))
    told = tuple(same[0][0]._replace(ranks=alike * len(same)) for same in kinds)
    return Simulation(dict(mesh), tuple(differs), told, layers if any(kind.more for kind in told) else None, passes)


def _kind(at: Coordinates, ran: RanPasses, passes: int | None) -> RankKind:
    """Return the RankKind of one rank."""
    *once, whole = (RankKind(at, 1, *each) for each in ran)
    return whole._replace(once=once[0] if once else None, passes=passes or 1)


def _takes_layers(build: Build) -> bool:
    """Return whether a function takes a mesh and a number of layers."""
    try:
        inspect.signature(build).bind(None, 1)
    except TypeError:
        return False
    return True


def _signature(ran: RanPasses) -> Any:
    """Return the data in which two ranks must agree to be treated as equal: calls with costs and results, collectives, parameters and memory.

    The order of calls is compared only where it changes the memory, because DDP zeroes unused gradients in the order of their addresses.
    """
    found = []
    for report, more in ran:
        calls = Counter((*each.call[1:], each.call.op, each.flops, repr(each.call.out)) for each in report.counted)
        sent, held = collectives(report.counted), (report.params, report.memory)
        found.append((calls, sent, held, None if more is None else (more.memory, _signature([(more.less, None)]))))
    return found


def _equal(pairs: Iterable[tuple[Any, Any]]) -> list[list[tuple[Any, Any]]]:
    """Group the pairs by equal second values."""
    found: list[list[tuple[Any, Any]]] = []
    for pair in pairs:
        known = next((equal for equal in found if equal[0][1] == pair[1]), None)
        if known is None:
            found.append([pair])
        else:
            known.append(pair)
    return found


def _ran(
    build: Build,
    mesh: Mapping[str, int],
    layers: int | None,
    shallow: int,
    shared: int,
    passes: int | None,
    at: Mapping[str, int],
) -> RanPasses:
    """Run one rank's training step. Return its report, or reports of smaller steps with the way to extrapolate from them."""
    with errors_of_kind(), _fake_processes(_rank(mesh, at), mesh) as (device_mesh, rank):
        made = partial(rank.build, partial(build, device_mesh))
        try:
            if layers is not None:
                known = _by_layers(made, layers, shared, shallow, passes)
                if known is not None:
                    return known
            return [(report, None) for report in _reports(made() if layers is None else made(layers), passes)]
        except InputError:
            raise
        except Exception as error:
            said = NO_DATA if "data is not allocated" in str(error) else error
            if type(error).__name__ in READS_VALUES:
                said = f"{error}: {OF_STEP if rank.constants is None else OF_BUILD}"
            where = line_that_raised(error)
            raise RunError(f"{_rank_named(mesh, at)} raised\n  {type(error).__name__}: {said}{where}") from error


def _by_layers(
    build: Callable[[int], Any], layers: int, shared: int, shallow: int, passes: int | None
) -> RanPasses | None:
    """Return the report of the deepest of the ``shallow`` models, and how to extrapolate it to all layers; None if that is impossible."""
    fewer = depths(layers, shared, shallow)
    by_depth: list[list[Report]] = []
    for number in fewer:
        by_depth.append(_reports(build(number), passes))
        if _has_buckets(by_depth[-1][-1]):
            return None
    found: list[Ran] = []
    for reports in zip(*by_depth, strict=True):
        more = deeper(reports, (layers - fewer[-1]) // shared)
        if more is None:
            return None
        found.append((reports[-1], more))
    return found or None


def _reports(made: Any, passes: int | None) -> list[Report]:
    """Return the report of a training step. For more than two ``passes``, return two reports: of a step with one pass, and of a step with
    two passes."""
    found = made if isinstance(made, tuple) else (made,)
    if len(found) != 2 or not callable(found[1]) or isinstance(found[1], nn.Module):
        names = ", ".join(type(each).__name__ for each in found)
        raise InputError(f"build must return the model and a function that runs a step, in this order, not ({names})")
    model, step = found
    first, *others = [()] if passes is None else [(1,), (2,)] if passes > 2 else [(passes,)]
    step(*first)  # creates the optimizer's state
    replicas = [
        each for each in all_modules(models_as_one(model)) if isinstance(each, nn.parallel.DistributedDataParallel)
    ]
    for _ in range(max((1 + each.static_graph for each in replicas), default=0)):
        step(*first)  # DDP rebuilds its buckets once, before a later step
    reports = []
    for number in (first, *others):
        gc.collect()  # frees tensors that the previous step left in reference cycles
        with profile(model) as p:
            step(*number)
        reports.append(p.report)
    return reports


def _has_buckets(report: Report) -> bool:
    """Return whether DDP sends gradients in buckets. Buckets have a fixed size, so their number does not grow evenly with the layers."""
    return any(row.cls == nn.parallel.DistributedDataParallel.__name__ for row in report.by_module().values())


def _rank(mesh: Mapping[str, int], at: Mapping[str, int]) -> int:
    """Return the number of the rank at this place."""
    rank = 0
    for name, size in mesh.items():
        rank = rank * size + at[name]
    return rank


def _rank_named(mesh: Mapping[str, int], at: Mapping[str, int]) -> str:
    return f"rank {_rank(mesh, at)} ({', '.join(f'{name} {place}' for name, place in at.items())})"


@contextmanager
def _fake_processes(rank: int, mesh: Mapping[str, int]) -> Iterator[tuple[Any, Rank]]:
    """Act as this rank of a fake process group, with fake tensors; yield the device mesh and the rank's dispatch mode."""
    from torch.distributed.device_mesh import init_device_mesh

    start_autograd()
    with ExitStack() as stack:
        try:
            stack.enter_context(fake_group(rank, math.prod(mesh.values())))
        except NotImplementedError as error:
            raise InputError(str(error)) from None
        device_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        mode = stack.enter_context(fake_tensors()[1](allow_non_fake_inputs=True))
        stack.enter_context(fake_errors_unlogged())  # the error itself is raised
        stack.enter_context(
            warnings.catch_warnings()
        )  # torch reads the address of fake tensors when it copies them, and in FSDP
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", module=r"torch\.")
        yield device_mesh, stack.enter_context(Rank(mode))
