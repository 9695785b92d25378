"""A training step of one rank after the other in this process: nothing is sent, no tensor has memory."""

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
from ..profiling import one_model, profile
from ..report.report import Report
from ..torch_internals import fake_errors_unlogged, fake_group, fake_tensors
from ..trace.fake_constants import MOST
from ..trace.source import line_that_raised
from .copies import map_in_copies, start_autograd
from .layers import Deeper, deeper, depths
from .rank_mode import Rank
from .result import RankKind, Simulation

Build = Callable[..., tuple["nn.Module | Sequence[nn.Module] | Mapping[str, Any]", Callable[[], Any]]]
NO_DATA = "a kernel in C++ reads the data of tensors, which a simulated rank has not"
OF_STEP = "the step reads the value of a tensor (item(), bool(), nonzero()), which a simulated rank has not"
OF_BUILD = (
    "build reads the value of a tensor (item(), bool(), nonzero()), which a simulated rank has only if it is computed from "
    f"constants alone, in tensors of at most {MOST:,} elements: compute it without parameters, inputs and random numbers"
)
READS_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""The names of the exceptions that fake tensors raise for what only values could tell."""
Ran = tuple[Report, "Deeper | None"]
"""The report of a rank's step, and what makes a deeper model of it."""
RanPasses = Sequence[Ran]
"""That of the step as it was asked for; or of one pass, and of two, by which the step of more is known."""
Coordinates = dict[str, int]
"""The place of a rank in the mesh: its number in each dimension."""


def simulate(
    build: Build,
    mesh: Mapping[str, int],
    *,
    differs: Sequence[str] | None = None,
    layers: int | None = None,
    processes: int = 1,
) -> Simulation:
    """Run a training step of the ranks of a mesh that does not exist, one rank at a time, without memory and without sending.

    Args:
        build: ``build(device_mesh)`` returns the model (or models) that a rank has, and a function that makes one training
            step of it: forward, backward, optimizer. It is called for one rank at a time, under a fake process group of all
            ranks, with a ``DeviceMesh`` whose dimensions have the names of ``mesh``, and parallelizes the model as on the
            cluster (``fully_shard``, ``parallelize_module``, ``PipelineStage``). Its tensors are fake.
        mesh: the dimensions by name with their sizes: ``{"dp": 64, "tp": 8, "pp": 4}``.
        differs: the dimensions along which ranks do different things, such as a pipeline's. By default that is found out, by
            comparing the first and the last rank along each dimension.
        layers: the number of the model's layers, if ``build(device_mesh, layers)`` makes a model of any number of them. Then only
            4, 5 and 6 are run (along a pipeline of n ranks, at least 4 n), and what each layer adds to the work, to the collectives
            and to the memory at each call is added for the others. If layers do not add the same, all are run. That
            the deeper ones are as the first ones is not seen here; :func:`rank_meshes` makes sure.
        processes: the number of ranks that are simulated at a time, each in a copy of this process. What ``build`` and the
            step change outside of the model is lost with the copy. It is one where copies are not safe: elsewhere than on Linux,
            with an accelerator, beside other threads, or after a first backward pass on fake tensors.

    Raises InputError for a mesh or a ``build`` that does not fit, and where this process has a process group already; RunError
    if ``build`` or a step raises, or a copy is killed, with the rank.
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
    """As :func:`simulate`, with ``layers`` by so many ``shallow`` models: two do not show whether work grows evenly; with 0 ``build`` is
    asked for all layers.

    With ``passes`` the step that ``build`` returns takes a number of passes, forward and backward, whose gradients it sums. Of
    more than two, one and two are run.
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise InputError(f"build must be a function of the mesh that returns a model and its step, not {build!r:.80}")
    sizes = mesh.values() if isinstance(mesh, Mapping) else ()
    named = sizes and all(isinstance(name, str) for name in mesh)
    if not named or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(
            f'mesh must be the sizes of dimensions by name, such as {{"dp": 64, "tp": 8}}, not {mesh!r:.80}'
        )
    if isinstance(differs, str):
        raise InputError(f"differs must be a list of dimensions, such as [{differs!r}], not {differs!r}")
    if unknown := [name for name in differs or () if name not in mesh]:
        raise InputError(
            f"differs names {', '.join(map(repr, unknown))}, which are not among the mesh's dimensions {', '.join(mesh)}"
        )
    if layers is not None and not (isinstance(layers, int) and layers > 0):
        raise InputError(f"layers must be the number of the model's layers, not {layers!r:.80}")
    if layers is not None and not _takes_layers(build):
        raise InputError("with layers=, build must take a mesh and a number of layers: build(mesh, layers)")
    if torch.distributed.is_initialized():
        raise InputError("simulate() makes a process group of its own: call it before torch.distributed is initialized")
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
    """Return what one rank does."""
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
    """Return what tells ranks apart: their calls, with costs and results, what they send, and what they hold.

    The order of calls tells only where it shows in the memory: DDP zeroes unused gradients in the order of their addresses.
    """
    found = []
    for report, more in ran:
        calls = Counter((*each.call[1:], each.call.op, each.flops, repr(each.call.out)) for each in report.counted)
        sent, held = collectives(report.counted), (report.params, report.memory)
        found.append((calls, sent, held, None if more is None else (more.memory, _signature([(more.less, None)]))))
    return found


def _equal(pairs: Iterable[tuple[Any, Any]]) -> list[list[tuple[Any, Any]]]:
    """Return the pairs in lists of those whose second value is equal."""
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
    """Return the report of the training step of one rank, whole or by its layers and its passes."""
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
    """Return the report of the deepest of the ``shallow`` models, and what deeper ones have more; None where that is not known."""
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
    """Return the report of a training step; with ``passes``, of a step of so many, or of one pass and of two."""
    found = made if isinstance(made, tuple) else (made,)
    if len(found) != 2 or not callable(found[1]) or isinstance(found[1], nn.Module):
        names = ", ".join(type(each).__name__ for each in found)
        raise InputError(f"build must return the model and a function that makes a step, in this order, not ({names})")
    model, step = found
    first, *others = [()] if passes is None else [(1,), (2,)] if passes > 2 else [(passes,)]
    step(*first)  # creates the optimizer's state
    replicas = [each for each in all_modules(one_model(model)) if isinstance(each, nn.parallel.DistributedDataParallel)]
    for _ in range(max((1 + each.static_graph for each in replicas), default=0)):
        step(*first)  # before which it makes its buckets anew, once
    reports = []
    for number in (first, *others):
        gc.collect()  # what the step has left in reference cycles
        with profile(model) as p:
            step(*number)
        reports.append(p.report)
    return reports


def _has_buckets(report: Report) -> bool:
    """Return whether gradients are sent in buckets of a size, of which a deeper model has not so many more for each layer."""
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
    """Be this rank of a fake process group, with fake tensors; yield its device mesh, and the mode of its operators."""
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
        stack.enter_context(warnings.catch_warnings())  # torch asks where a fake tensor is as it copies it, and in FSDP
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", module=r"torch\.")
        yield device_mesh, stack.enter_context(Rank(mode))
