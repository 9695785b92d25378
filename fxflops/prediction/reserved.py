"""Predict the memory that CUDA's caching allocator reserves for a counted run. Also predict whether the run fits on a device.

The run's storages are requested from :class:`~fxflops.prediction.allocator.CachingAllocator` in the order in which the run makes
and frees them. Memory that is not in tensors is added:

- cuBLAS's workspaces. Each thread that multiplies matrices has one: the thread of the forward, and autograd's thread. A workspace has
  8,519,680 bytes, or 32 MiB from Hopper on (``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch; ``Device.workspace``). cuBLASLt, which
  computes products with a bias, has another workspace of 1 MiB. The 48 runs in ``benchmarks/results/gpu/snapshots.jsonl.gz`` have these sizes.
- The CUDA context with torch's kernels, and NCCL's buffers: :data:`CONTEXT` and :data:`NCCL`. The CUDA context and NCCL's buffers do not
  come from the allocator.

Temporary buffers of kernels are not included, because their sizes are unknown. For example, the buffer of cuDNN's convolutions depends on
the algorithm that cuDNN chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import InputError
from ..meters.history import History, triples
from ..records import BACKWARD, OPTIMIZER, PARTS, Counted
from ..records.facts import ATTENTIONS
from ..roofline.devices import Device, find_device
from .allocator import MIB, CachingAllocator
from .memory import Reserved

STEPS = 2
"""The number of steps to simulate. The first step has no optimizer state until its end. Its segments are reused by the second step, and all
later steps are like the second."""
BIAS_WORKSPACE = MIB
"""The bytes of cuBLASLt's workspace in each thread that computes products with a bias."""
CONTEXT = 676 * MIB
"""The bytes of the CUDA context with torch's kernels. On an H100 with torch 2.11, a process used 730.00 MiB, of which the allocator had
reserved 54.00 MiB (benchmarks/results/gpu/failures.md). ai-dynamo/aiconfigurator states 551 MB (systems/h100_sxm.yaml, 095f58a51c4c)."""
NCCL = {1: 0, 2: 342 * MIB, 4: 392 * MIB}
"""The bytes of NCCL's buffers, by the least number of GPUs in the job: ``nccl_mem`` in ai-dynamo/aiconfigurator, systems/*.yaml
(095f58a51c4c)."""


STATE = ("params", "buffers", "gradients", "optimizer")
"""The categories of storages whose sizes do not depend on the batch."""


class Request(NamedTuple):
    """A request to the allocator for a block of ``bytes`` bytes with the number ``block``. With 0 bytes, it is a request to free this block.

    The blocks of workspaces have negative numbers.
    """

    block: int
    bytes: int


def reserved(
    history: object,
    counted: Sequence[Counted],
    device: str | Device,
    counted_for: str,
    *,
    gpus: int = 1,
    allocator: CachingAllocator | None = None,
) -> Reserved:
    """Return the memory that the allocator of ``device`` reserves for a run. ``counted`` are the run's calls with their MACs.

    ``allocator`` is an allocator with the settings to use. After this function returns, the allocator is in its state at the end of the
    run. Raises InputError if ``history`` is not a History. In a report that was read from a file, it is not.
    """
    if device in ("cpu", "meta"):
        raise InputError(
            f"{device} has no caching allocator: use report.max_memory, the peak memory of the run's tensors"
        )
    device = find_device(device)
    allocator = allocator or CachingAllocator()
    if not isinstance(history, History):
        raise InputError(
            "this report has no record of individual allocations, only the memory after each call; "
            "use the report that count(), analyze() or profile() returned, not a report read from a file"
        )
    if gpus < 1:
        raise InputError(f"gpus must be the number of GPUs in the job, at least 1, not {gpus}")
    requests = [*requests_of(history, workspaces_of(counted, device))]
    last_growth = replay(requests, allocator)
    fullest = _like(allocator)
    replay(requests[: last_growth + 1], fullest)
    return Reserved(
        device=device,
        allocated=allocator.peak_allocated,
        reserved=allocator.peak_reserved,
        workspaces=sum(each.bytes for each in requests if each.block < 0),
        context=CONTEXT,
        nccl=beside(gpus) - CONTEXT,
        segments=tuple(fullest.segments),
        fits=_fits(requests, allocator, device, beside(gpus)),
        counted_for=counted_for,
        missing=sum(each.cost is None for each in counted),
        convolutions=sum(each.call.op.startswith("conv") for each in counted),
        state=most_state(history),
        trains=any(each.call.phase == BACKWARD for each in counted),
    )


def total(history: History, counted: Sequence[Counted], device: Device) -> int:
    """Return :attr:`Reserved.total` of a run on one GPU. This function is faster than :func:`reserved`, for searches that need many totals."""
    allocator = CachingAllocator()
    replay(requests_of(history, workspaces_of(counted, device)), allocator)
    return allocator.peak_reserved + CONTEXT


def most_state(history: History) -> int:
    """Return the peak bytes of weights, buffers, gradients and optimizer state together.

    Neither a smaller batch nor checkpoints lower this peak.
    """
    now = most = 0
    for storage, nbytes, _ in triples(history.changes):
        if history.category(storage) in STATE:
            now += nbytes
            most = max(most, now)
    return most


def beside(gpus: int) -> int:
    """Return the bytes that a process takes outside the allocator. The bytes outside the allocator are the CUDA context and the buffers of
    NCCL in a job of ``gpus`` GPUs."""
    return CONTEXT + next(size for least, size in reversed(NCCL.items()) if gpus >= least)


def replay(requests: Iterable[Request], allocator: CachingAllocator) -> int:
    """Send the requests to the allocator. Return the index of the last request that raised the peak of reserved bytes."""
    addresses, last, most = dict[int, int](), 0, allocator.peak_reserved
    for number, (block, nbytes) in enumerate(requests):
        if nbytes:
            addresses[block] = allocator.allocate(nbytes)
        else:
            allocator.free(addresses.pop(block))
        if allocator.peak_reserved > most:
            last, most = number, allocator.peak_reserved
    return last


def requests_of(history: History, workspaces: dict[int, dict[int, int]]) -> Iterator[Request]:
    """Yield the requests for the storages that exist when a run starts, and for :data:`STEPS` steps.

    ``workspaces`` has an entry for each call. The entry maps the number of each workspace that the call needs to the workspace's bytes.
    Optimizer state is allocated when the optimizer first steps. Everything else that a step allocates is freed before the next step,
    including outputs and gradients.
    """
    changes = list(triples(history.changes))
    before = [(storage, nbytes) for storage, nbytes, call in changes if call < 0]
    state = [(storage, nbytes) for storage, nbytes in before if history.category(storage) == "optimizer"]
    held = _Held()
    for storage, nbytes in before:
        if (storage, nbytes) not in state:
            yield from held.change(storage, nbytes)
    # Leave out state without dimensions, such as the optimizer's count of steps: torch keeps it on the CPU.
    state = [(storage, nbytes) for storage, nbytes in state if history.storages.specs[storage]]
    permanent, known = {storage for storage, _ in before}, set[int]()
    replaced = _replaced_state(history, changes)
    for _ in range(STEPS):
        for storage, nbytes, number in changes:
            if number < 0:
                continue
            if state and number < len(history.calls) and history.calls[number].phase == OPTIMIZER:
                for made, size in state:
                    yield from held.change(made, size)
                state = []
            for workspace, size in workspaces.get(number, {}).items():
                if workspace not in known:
                    known.add(workspace)
                    yield Request(workspace, size)
            yield from held.change(storage, nbytes)
        for old, new in replaced:
            if new in held.blocks:
                held.blocks[old] = held.blocks.pop(new)
        for storage in [storage for storage in held.blocks if storage not in permanent]:
            yield from held.change(storage, -held.blocks[storage].bytes)


class _Held:
    """The blocks of all live storages, keyed by storage number."""

    def __init__(self) -> None:
        self.blocks: dict[int, Request] = {}
        self._made = 0

    def change(self, storage: int, nbytes: int) -> Iterator[Request]:
        """Yield the requests for a storage that grows or shrinks by ``nbytes``. To resize a storage, free its block and allocate a new one."""
        before = self.blocks.pop(storage, Request(0, 0))
        if before.bytes:
            yield Request(before.block, 0)
        if before.bytes + nbytes > 0:
            self.blocks[storage] = Request(self._made, before.bytes + nbytes)
            self._made += 1
            yield self.blocks[storage]


def _replaced_state(history: History, changes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """For the storages of optimizer state that a step frees, return a dict from each freed storage to the storage that replaces it."""
    freed, made = dict[str, list[int]](), dict[str, list[int]]()
    for storage, nbytes, number in changes:
        if number >= 0 and history.category(storage) == "optimizer":
            group = (made if nbytes > 0 else freed).setdefault(history.storages.names.get(storage, ""), [])
            group.append(storage)
    return [pair for name, old in freed.items() for pair in zip(old, made.get(name, ()), strict=False)]


def workspaces_of(counted: Sequence[Counted], device: Device) -> dict[int, dict[int, int]]:
    """Return a dict from each call's number to the workspaces that the call's matrix products need. Workspaces have negative numbers; each
    number is mapped to the workspace's bytes."""
    if not device.workspace:
        return {}
    found = dict[int, dict[int, int]]()
    for number, each in enumerate(counted):
        call = each.call
        if not each.macs or call.op in ATTENTIONS or call.op.startswith("conv"):
            continue
        thread = 0 if call.phase in (*PARTS["forward"], "optimizer") else 2
        found[number] = {-1 - thread: device.workspace}
        if _adds_bias(each):
            found[number][-2 - thread] = BIAS_WORKSPACE
    return found


def _adds_bias(counted: Counted) -> bool:
    """Return whether a matrix product also adds a bias, so that cuBLASLt computes it."""
    call = counted.call
    if call.op == "addmm":
        return len(next(iter(call.inputs()), ())) == 1
    return call.op == "linear" and (call.settings.get("bias") is not None or len(list(call.inputs())) > 2)


def _fits(requests: Sequence[Request], allocator: CachingAllocator, device: Device, taken: int) -> bool | None:
    """Return whether the run fits, if necessary after returning free segments to the driver; None if the device's memory is unknown."""
    if device.memory is None:
        return None
    if allocator.peak_reserved + taken <= device.memory:
        return True
    capped = _like(allocator)
    capped.memory = device.memory - taken
    try:
        replay(requests, capped)
    except MemoryError:
        return False
    return True


def _like(allocator: CachingAllocator) -> CachingAllocator:
    """Return an empty allocator with the same settings."""
    return CachingAllocator(
        allocator.expandable_segments,
        allocator.max_split_size,
        allocator.roundup_power2_divisions,
        allocator.garbage_collection_threshold,
        memory=allocator.memory,
    )
