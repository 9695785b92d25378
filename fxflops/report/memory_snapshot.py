"""Write a run's memory as a snapshot of torch's CUDA allocator, for torch.cuda._memory_viz and pytorch.org/memory_viz.

The format is that of :func:`torch.cuda.memory._snapshot`. Addresses and segments are simulated. The simulated allocator is CUDA's caching
allocator with default settings, on an empty device (:class:`~fxflops.prediction.CachingAllocator`). Events have the bytes that the run
requested, and blocks have the bytes that the allocator took for them, as in a recorded snapshot. The extra key "provenance" says where the
numbers are from; viewers ignore unknown keys.
"""

from __future__ import annotations

from typing import Any

from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..meters.history import History, LiveTensor
from ..prediction.allocator import CachingAllocator, Segment
from ..records import FORWARD, prefixes

Event = dict[str, Any]
UNKNOWN: Event = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}
"""The last event of the trace. The event declares the category "unknown", which torch 2.14's viewer needs but does not declare."""


def memory_snapshot(counted_run: CountedRun) -> dict[str, Any]:
    """Return a snapshot with every allocation of the run, in order. The snapshot also has the storages that are alive at the end of the run.

    The frames of an allocation name the operation that allocated the tensor, and the modules that contain this operation. For a tensor that
    was alive before the run, a frame has the tensor's name. Raises InputError if the report does not store single allocations.
    """
    history = counted_run.run.memory.history
    if not isinstance(history, History):
        raise InputError(
            "this report does not contain individual allocations, e.g. because it was read from a file: "
            "write the snapshot from the report that count(), analyze() or profile() returned"
        )
    trace: list[Event] = []
    alive: dict[int, Event] = {}
    allocator = _Allocator()
    for storage, tensor in history.each_change():
        before = alive.pop(storage, None)
        size = tensor.bytes
        if before is not None:  # freed or resized; a resize is a free followed by an allocation
            size += before["size"]
            allocator.free(before["addr"])
            trace += [{**before, "action": action} for action in ("free_requested", "free_completed")]
        if size > 0:
            address = allocator.allocate(size)
            frames = _frames(counted_run, tensor)
            common_fields: Event = {"stream": 0, "frames": frames, "category": tensor.category}
            trace += [
                {"action": "segment_alloc", "addr": start, "size": nbytes, **common_fields}
                for start, nbytes in allocator.taken_segments(frames)
            ]
            alive[storage] = {"action": "alloc", "addr": address, "size": size, **common_fields}
            trace.append(alive[storage])
    by_address = {event["addr"]: event for event in alive.values()}
    segments = [_segment(segment, allocator.frames[segment.address], by_address) for segment in allocator.segments]
    snapshot = {"segments": segments, "device_traces": [[*trace, UNKNOWN]]}
    return {**snapshot, "provenance": counted_run.provenance}


class _Allocator(CachingAllocator):
    """An allocator that records each segment that it takes from the driver, and the allocation for which it took the segment."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: dict[int, list[Event]] = {}
        self._taken: list[tuple[int, int]] = []

    def place_segment(self, nbytes: int) -> int:
        address = super().place_segment(nbytes)
        self._taken.append((address, nbytes))
        return address

    def taken_segments(self, frames: list[Event]) -> list[tuple[int, int]]:
        """Return the address and bytes of each segment taken since the last call. Assign ``frames`` to these segments."""
        taken, self._taken = self._taken, []
        self.frames.update((address, frames) for address, _ in taken)
        return taken


def _frames(counted_run: CountedRun, tensor: LiveTensor) -> list[Event]:
    """Return the frames of an allocation, innermost first. The viewer shows a frame as a file and a function."""
    modules = counted_run.modules(FORWARD)
    frames = [(tensor.category, f"{tensor.op or tensor.name} {tensor.spec!r}".strip())]
    for path in [*prefixes(tensor.path)][::-1]:
        if path in modules:
            frames.append((path or counted_run.run.model, modules[path].cls))
    return [{"filename": file, "line": 0, "name": name} for file, name in frames]


def _segment(segment: Segment, frames: list[Event], alive: dict[int, Event]) -> Event:
    """Return a segment with its blocks. ``alive`` has the allocations that are alive at the end of the run, by address."""
    blocks = [
        {
            "size": block.bytes,
            "requested_size": alive[block.address]["size"] if block.allocated else 0,
            "address": block.address,
            "state": "active_allocated" if block.allocated else "inactive",
            "frames": alive[block.address]["frames"] if block.allocated else [],
        }
        for block in segment.blocks
    ]
    allocated = sum(block.bytes for block in segment.blocks if block.allocated)
    return {
        "device": 0, "address": segment.address, "total_size": segment.bytes, "stream": 0, "segment_type": segment.pool,
        "segment_pool_id": (0, 0), "allocated_size": allocated, "active_size": allocated,
        "requested_size": sum(block["requested_size"] for block in blocks), "frames": frames, "blocks": blocks,
    }  # fmt: skip
