"""A run's memory as a snapshot of torch's CUDA allocator, for torch.cuda._memory_viz and pytorch.org/memory_viz.

The format: :func:`torch.cuda.memory._snapshot`. Each storage is a segment of its own, as no allocator ran that would
keep segments, and gets an address that no other storage has; sizes are the storages' own, without rounding. A key of our
own, "provenance", tells where the figures come from: readers leave out keys that they do not know.
"""

from __future__ import annotations

from typing import Any

from ..counting.counted_run import CountedRun
from ..errors import InputError
from ..meters.history import History, LiveTensor
from ..records import PHASES, prefixes

Event = dict[str, Any]
ALIGNMENT = 512
"""Addresses are multiples of this many bytes, as those of the CUDA allocator are."""
UNKNOWN: Event = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": "unknown"}
"""The end of the trace. Its category makes the viewer known to "unknown": a viewer of torch 2.14 fails to add it itself."""


def memory_snapshot(counted_run: CountedRun) -> dict[str, Any]:
    """Return every allocation of the run, in order, and the storages alive at its end.

    The frames of an allocation are the operation that made it, or the name of a tensor alive before, and its modules.
    Raises InputError if the report does not know single allocations.
    """
    history = counted_run.run.history
    if not isinstance(history, History):
        raise InputError(
            "this report does not hold single allocations, only the memory after each call and the tensors at the peak: "
            "write the snapshot from the report that count(), analyze() or profile() returned, not from one read from a file"
        )
    trace: list[Event] = []
    alive: dict[int, Event] = {}
    address = ALIGNMENT
    for storage, tensor in history.each_change():
        before = alive.pop(storage, None)
        size = tensor.bytes
        if before is not None:  # freed, or resized: then it is allocated anew
            size += before["size"]
            trace += [{**before, "action": action} for action in ("free_requested", "free_completed", "segment_free")]
        if size > 0:
            frames = _frames(counted_run, tensor)
            block = {"addr": address, "size": size, "stream": 0, "frames": frames, "category": tensor.category}
            alive[storage] = {"action": "alloc", **block}
            trace += [{"action": "segment_alloc", **block}, alive[storage]]
            address += -(-size // ALIGNMENT) * ALIGNMENT
    snapshot = {"segments": [_segment(event) for event in alive.values()], "device_traces": [[*trace, UNKNOWN]]}
    return {**snapshot, "provenance": counted_run.provenance}


def _frames(counted_run: CountedRun, tensor: LiveTensor) -> list[Event]:
    """Return the frames of an allocation, the innermost first: the viewer shows them as files and functions."""
    modules = counted_run.modules(PHASES[0])
    frames = [(tensor.category, f"{tensor.op or tensor.name} {tensor.spec!r}".strip())]
    for path in [*prefixes(tensor.path)][::-1]:
        if path in modules:
            frames.append((path or counted_run.run.model, modules[path].cls))
    return [{"filename": file, "line": 0, "name": name} for file, name in frames]


def _segment(event: Event) -> dict[str, Any]:
    """Return a segment with one block, that of a storage."""
    size, address, frames = event["size"], event["addr"], event["frames"]
    block = {"size": size, "requested_size": size, "address": address, "state": "active_allocated", "frames": frames}
    return {
        "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "allocated_size": size, "active_size": size, "requested_size": size, "frames": frames, "blocks": [block],
    }  # fmt: skip
