"""How much memory CUDA's caching allocator reserves for a counted run, and whether it fits on a device.

The storages of the run are requested from :class:`~fxflops.prediction.allocator.CachingAllocator` in the order in which the run makes
and frees them. Added to them is memory outside of tensors, with its sources:

- cuBLAS's workspace, one for each thread that multiplies matrices: the one that runs the forward, and autograd's. It is 8,519,680 bytes,
  from Hopper on 32 MiB (``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch; ``Device.workspace``); cuBLASLt, which
  adds a bias, has another of 1 MiB. The 48 runs of ``benchmarks/results/gpu/snapshots.jsonl.gz`` have these sizes.
- The CUDA context with torch's kernels, and NCCL's buffers, which do not come from the allocator: :data:`CONTEXT` and :data:`NCCL`.

Temporary buffers of kernels, such as cuDNN's for a convolution, depend on the chosen algorithm and are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import InputError
from ..meters.history import History, triples
from ..records import PARTS, Counted
from ..records.pairs import ATTENTIONS
from ..roofline.devices import Device, find_device
from .allocator import MIB, CachingAllocator
from .memory import Reserved

STEPS = 2
"""Steps to simulate: the first has no optimizer state until its end, and leaves its segments to the later ones, which are all the same."""
BIAS_WORKSPACE = MIB
"""Bytes that cuBLASLt keeps for a thread that adds biases to products."""
CONTEXT = 676 * MIB
"""Bytes of the CUDA context with torch's kernels: on an H100 with torch 2.11 a process used 730.00 MiB, 54.00 MiB of them reserved by the
allocator (benchmarks/results/gpu/failures.md). ai-dynamo/aiconfigurator, systems/h100_sxm.yaml (095f58a51c4c), had 551 MB."""
NCCL = {1: 0, 2: 342 * MIB, 4: 392 * MIB}
"""Bytes of NCCL's buffers in a job of at least so many GPUs: ``nccl_mem`` of ai-dynamo/aiconfigurator, systems/*.yaml (095f58a51c4c)."""


STATE = ("params", "buffers", "gradients", "optimizer")
"""Categories of storages that do not depend on the batch."""


class Request(NamedTuple):
    """A request to the allocator: ``bytes`` for the block of this number, or 0 to free it. Workspaces have numbers below 0."""

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
    """Return what the allocator of ``device`` reserves for a run; ``counted`` are its calls with their MACs.

    ``allocator`` has the settings, and ends in the state after the run. Raises InputError if the run's single allocations are not known.
    """
    if device in ("cpu", "meta"):
        raise InputError(f"{device} has no caching allocator: report.max_memory is the peak of tensors there")
    device = find_device(device)
    allocator = allocator or CachingAllocator()
    if not isinstance(history, History):
        raise InputError(
            "this report does not hold single allocations, only the memory after each call: "
            "ask the report that count(), analyze() or profile() returned, not one read from a file"
        )
    if gpus < 1:
        raise InputError(f"gpus is the number of GPUs of the job, at least 1, not {gpus}")
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
        trains=any(each.call.phase == "backward" for each in counted),
    )


def total(history: History, counted: Sequence[Counted], device: Device) -> int:
    """Return only :attr:`Reserved.total` of a run on one GPU, which searches need many times."""
    allocator = CachingAllocator()
    replay(requests_of(history, workspaces_of(counted, device)), allocator)
    return allocator.peak_reserved + CONTEXT


def most_state(history: History) -> int:
    """Return the peak bytes of weights, buffers, gradients and optimizer state together, which neither a smaller batch nor checkpoints
    lower."""
    now = most = 0
    for storage, nbytes, _ in triples(history.changes):
        if history.category(storage) in STATE:
            now += nbytes
            most = max(most, now)
    return most


def beside(gpus: int) -> int:
    """Return the bytes that a process takes outside the allocator: the context, and NCCL's buffers in a job of ``gpus`` GPUs."""
    return CONTEXT + next(size for least, size in reversed(NCCL.items()) if gpus >= least)


def replay(requests: Iterable[Request], allocator: CachingAllocator) -> int:
    """Replay the requests; return the number of the last one that raised the peak of reserved bytes."""
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
    """Yield the requests for what a run holds at its start, and for :data:`STEPS` steps.

    ``workspaces`` has the workspaces that a call needs, their bytes by number. Optimizer state is made when the optimizer first
    steps; everything made in a step, outputs and gradients too, is freed before the next.
    """
    changes = list(triples(history.changes))
    before = [(storage, nbytes) for storage, nbytes, call in changes if call < 0]
    state = [(storage, nbytes) for storage, nbytes in before if history.category(storage) == "optimizer"]
    held = _Held()
    for storage, nbytes in before:
        if (storage, nbytes) not in state:
            yield from held.change(storage, nbytes)
    # torch keeps the optimizer's numbers, such as a count of steps, on the CPU.
    state = [(storage, nbytes) for storage, nbytes in state if history.entries.specs[storage]]
    permanent, known = {storage for storage, _ in before}, set[int]()
    replaced = _replaced_state(history, changes)
    for _ in range(STEPS):
        for storage, nbytes, number in changes:
            if number < 0:
                continue
            if state and number < len(history.calls) and history.calls[number].phase == "optimizer":
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
    """The blocks of the storages that are alive."""

    def __init__(self) -> None:
        self.blocks: dict[int, Request] = {}
        self._made = 0

    def change(self, storage: int, nbytes: int) -> Iterator[Request]:
        """Yield the requests for a storage that grows or shrinks by ``nbytes``: a resized one is allocated anew."""
        before = self.blocks.pop(storage, Request(0, 0))
        if before.bytes:
            yield Request(before.block, 0)
        if before.bytes + nbytes > 0:
            self.blocks[storage] = Request(self._made, before.bytes + nbytes)
            self._made += 1
            yield self.blocks[storage]


def _replaced_state(history: History, changes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return the storages of optimizer state that a step frees, each with the one that replaces it."""
    freed, made = dict[str, list[int]](), dict[str, list[int]]()
    for storage, nbytes, number in changes:
        if number >= 0 and history.category(storage) == "optimizer":
            group = (made if nbytes > 0 else freed).setdefault(history.entries.names.get(storage, ""), [])
            group.append(storage)
    return [pair for name, old in freed.items() for pair in zip(old, made.get(name, ()), strict=False)]


def workspaces_of(counted: Sequence[Counted], device: Device) -> dict[int, dict[int, int]]:
    """Return the workspaces that each call with matrix products needs, by its number: bytes by a workspace's number, below 0."""
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
    """Return whether a product adds a bias: cuBLASLt does both in one kernel."""
    call = counted.call
    if call.op == "addmm":
        return len(next(iter(call.inputs()), ())) == 1
    return call.op == "linear" and (call.settings.get("bias") is not None or len(list(call.inputs())) > 2)


def _fits(requests: Sequence[Request], allocator: CachingAllocator, device: Device, taken: int) -> bool | None:
    """Return whether the run fits, if necessary with free segments given back to the driver; None if unknown."""
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
