"""The simulated allocator, against traces of the real one and under random use."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu.memory import entries_of
from fxflops.errors import InputError
from fxflops.prediction.allocator import CachingAllocator

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu" / "snapshots.jsonl.gz"
MIB = 2**20


def recorded() -> Iterator[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Yield the traces of 48 runs on an H100, each from an empty device, with the figures of torch.cuda.memory_stats."""
    with gzip.open(RECORDED, "rt") as file:
        for text in file:
            line = json.loads(text)
            yield line["case"], entries_of(line), line


def replayed(allocator: CachingAllocator, entries: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Replay a trace; return the address of each allocation, as recorded and as simulated."""
    addresses, simulated = list[tuple[int, int]](), dict[int, int]()
    for entry in entries:
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            simulated[address] = allocator.allocate(entry["size"], entry["stream"])
            addresses.append((address, simulated[address]))
        elif entry["action"] == "free_completed":
            allocator.free(simulated.pop(address, address))
    return addresses


class Placed(CachingAllocator):
    """An allocator whose driver places segments at the recorded addresses."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        super().__init__()
        self._recorded = iter([entry for entry in entries if entry["action"] == "segment_alloc"])

    def place_segment(self, nbytes: int) -> int:
        segment = next(self._recorded)
        assert segment["size"] == nbytes
        return int(segment["addr"])


def test_every_recorded_address_is_reproduced() -> None:
    count = 0
    for case, entries, _ in recorded():
        addresses = replayed(Placed(entries), entries)
        assert all(given == simulated for given, simulated in addresses), case
        count += len(addresses)
    assert count > 30_000


def test_reserved_and_allocated_bytes_are_the_recorded_ones() -> None:
    for case, entries, line in recorded():
        allocator = Placed(entries)
        first_step = line["marks"]["first step"]
        replayed(allocator, entries[:first_step])
        allocator.peak_allocated = allocator.allocated
        replayed(allocator, entries[first_step:])
        assert allocator.peak_reserved == line["figures"]["reserved"], case
        assert allocator.peak_allocated == line["figures"]["allocated"], case


def test_where_the_driver_puts_segments_hardly_matters() -> None:
    for case, entries, line in recorded():
        allocator = CachingAllocator()
        replayed(allocator, entries)
        assert allocator.peak_reserved == pytest.approx(line["figures"]["reserved"], rel=0.01), case


def snapshot_of(allocator: CachingAllocator, trace: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """The allocator in the form of ``torch.cuda.memory._snapshot()``, with the events of a trace."""
    states = {True: "active_allocated", False: "inactive"}
    return {
        "segments": [
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.bytes,
                "stream": segment.stream,
                "segment_type": segment.pool,
                "blocks": [{"size": block.bytes, "state": states[block.allocated]} for block in segment.blocks],
            }
            for segment in allocator.segments
        ],
        "device_traces": [trace],
        "allocator_settings": settings,
    }


def second_half(entries: list[dict[str, Any]]) -> tuple[CachingAllocator, list[dict[str, Any]], CachingAllocator]:
    """Return the allocator in the middle of a trace and at its end, and the events between, at the simulation's addresses."""
    before, after = CachingAllocator(), CachingAllocator()
    events, simulated = list[dict[str, Any]](), dict[int, int]()
    requests = [entry for entry in entries if entry["action"] in ("alloc", "free_completed")]
    for number, entry in enumerate(requests):
        in_first_half = number < len(requests) // 2
        reserved = after.reserved
        if entry["action"] == "free_completed":
            address = simulated.pop(entry["addr"])
            after.free(address)
            if in_first_half:
                before.free(address)
        else:
            address = simulated[entry["addr"]] = after.allocate(entry["size"])
            if in_first_half:
                before.allocate(entry["size"])
        if not in_first_half:
            if after.reserved > reserved:
                new = max((s for s in after.segments if s.address <= address), key=lambda segment: segment.address)
                events.append({"action": "segment_alloc", "addr": new.address, "size": new.bytes, "stream": 0})
            events.append({**entry, "addr": address})
    return before, events, after


def test_a_recording_that_begins_warm_is_reproduced() -> None:
    """Only the second half of each trace is kept, with the segments at its end."""
    same = 0
    for case, entries, _ in recorded():
        before, events, after = second_half(entries)
        restored = CachingAllocator.from_snapshot(snapshot_of(after, events))
        assert restored.reserved == before.reserved, case
        # A block may have kept a remainder too small to split, which the recording does not show.
        same += restored.segments == before.segments
        assert all(given == simulated for given, simulated in replayed(restored, events)), case
        assert restored.segments == after.segments, case
    assert same >= 45


# Random use


requests = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 40 * MIB), st.integers(0, 1)),
        st.tuples(st.just("allocate"), st.integers(1, 2 * MIB), st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)
options = st.fixed_dictionaries(
    {},
    optional={
        "expandable_segments": st.booleans(),
        "max_split_size": st.sampled_from([20 * MIB, 32 * MIB]),
        "roundup_power2_divisions": st.sampled_from([1, 4, 8, {1: 2, 16: 8, ">": 4}]),
    },
)


@settings(max_examples=60, deadline=None)
@given(options, requests)
def test_blocks_cover_segments_and_no_two_free_ones_touch(setting: dict[str, Any], todo: list[Any]) -> None:
    allocator = CachingAllocator(**setting)
    live = dict[int, tuple[int, int]]()
    for what, number, stream in todo:
        if what == "allocate":
            address = allocator.allocate(number, stream)
            assert address not in live
            live[address] = number, stream
        elif what == "free" and live:
            address = sorted(live)[number % len(live)]
            del live[address]
            allocator.free(address)
        elif what == "empty":
            allocator.empty_cache()
        segments = allocator.segments
        allocated = dict[int, int]()
        for segment in segments:
            position, was_free = segment.address, False
            for block in segment.blocks:
                touches = block.address == position
                assert touches or setting.get("expandable_segments")
                assert not (touches and was_free and not block.allocated)
                position, was_free = block.address + block.bytes, not block.allocated
                if block.allocated:
                    allocated[block.address] = block.bytes
                    assert live[block.address][1] == segment.stream
        assert allocated.keys() == live.keys()
        assert all(allocated[address] >= nbytes for address, (nbytes, _) in live.items())
        assert allocator.allocated == sum(allocated.values())
        assert allocator.reserved == sum(segment.bytes for segment in segments)
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.segments) == (0, 0, [])


# Settings, by hand from torch's documentation


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    first = allocator.allocate(25 * MIB)  # two pages of 20 MiB
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(14 * MIB) == first + 25 * MIB
    assert allocator.allocate(30 * MIB) == first + 39 * MIB  # one MiB was left: it takes that and two new pages
    assert allocator.reserved == 80 * MIB
    small = allocator.allocate(512)
    assert allocator.reserved == 82 * MIB
    allocator.free(small)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.reserved == 60 * MIB  # of the 25 MiB freed at its beginning, only one page is wholly free


def test_power_of_two_divisions_round_up() -> None:
    """torch's documentation: 1,200 with 4 divisions lies between 1,024 and 2,048, and is rounded up to 1,280."""
    allocator = CachingAllocator(roundup_power2_divisions=4)
    allocator.allocate(1200 * MIB)
    assert allocator.allocated == 1280 * MIB


def test_large_blocks_are_not_split() -> None:
    allocator = CachingAllocator(max_split_size=32 * MIB)
    address = allocator.allocate(64 * MIB)
    allocator.free(address)
    assert allocator.allocate(16 * MIB) != address
    assert allocator.allocate(50 * MIB) == address
    assert allocator.allocated == (16 + 64) * MIB


def test_what_does_not_fit_returns_free_segments_first() -> None:
    allocator = CachingAllocator(memory=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(MemoryError, match=r"31,457,280 bytes do not fit: 83,886,080 of 104,857,600 bytes are reserved"):
        allocator.allocate(30 * MIB)


def test_garbage_is_collected_before_the_driver_is_asked() -> None:
    allocator = CachingAllocator(garbage_collection_threshold=0.5, memory=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert allocator.reserved == 70 * MIB


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: CachingAllocator().free(4096), "nothing is allocated at address 4096"),
        (lambda: CachingAllocator().allocate(-1), "cannot allocate -1 bytes"),
        (lambda: CachingAllocator(max_split_size=MIB), r"20 MiB"),
        (lambda: CachingAllocator(garbage_collection_threshold=2), "between 0 and 1, not 2"),
        (lambda: CachingAllocator(roundup_power2_divisions=3), "powers of two, not 3"),
    ],
)
def test_bad_use_is_an_error(use: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        use()


def test_nothing_is_allocated_for_no_bytes() -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(0) == 0
    allocator.free(0)
    assert allocator.reserved == 0
