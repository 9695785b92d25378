"""A simulation of torch's caching allocator for CUDA. The simulation computes the addresses that the allocator returns, and the memory that
the allocator reserves.

The rules are public (``c10/cuda/CUDACachingAllocator.cpp`` in torch, and the notes on CUDA semantics in torch's documentation).
Memory comes from the driver in *segments*. A request takes a *block* of a segment. Freed blocks stay with the allocator, and are merged
with free neighbors in their segment.

- Sizes are rounded up to a multiple of 512 bytes. Requests up to 1 MiB use the small pool; larger requests use the large pool.
- A request takes the smallest free block of its pool and stream that is large enough. Among blocks of equal size, it takes the one
  with the lowest address. The block is split if the rest of the block is at least 512 bytes (small pool) or more than 1 MiB (large
  pool).
- If no block is large enough, a new segment comes from the driver. In the small pool, the segment has 2 MiB. In the large pool, a new
  segment has 20 MiB for requests below 10 MiB, else the size rounded up to a multiple of 2 MiB.
- With expandable segments, a pool has one range of addresses per stream. The range grows by pages of 2 MiB or 20 MiB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import InputError

MIB = 2**20
SMALLEST_BLOCK = 512
LARGEST_SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
SMALLEST_OWN_SEGMENT = 10 * MIB
"""A request of at least this size gets its own segment, with the size rounded up to a multiple of :data:`SMALL_SEGMENT`."""
FIRST_ADDRESS = 2**44
EXPANDABLE_RANGE = 2**40
"""The size of the address range into which one expandable segment can grow. Addresses take no memory until they are mapped."""


class Block(NamedTuple):
    """A part of a segment: its address, its bytes, and whether it is allocated."""

    address: int
    bytes: int
    allocated: bool


class Segment(NamedTuple):
    """Memory from the driver. ``blocks`` cover the whole segment, in the order of their addresses."""

    address: int
    bytes: int
    stream: int
    pool: str
    blocks: tuple[Block, ...]


class _Pool:
    """The free blocks of one pool ("small" or "large") and one stream, sorted by size and then by address."""

    def __init__(self, name: str, stream: int) -> None:
        self.name, self.stream = name, stream
        self.is_small = name == "small"
        self.free: list[tuple[int, int]] = []
        self.requests = 0  # garbage collection measures the age of a free block in requests
        self.expandable: _Segment | None = None

    @property
    def page(self) -> int:
        return SMALL_SEGMENT if self.is_small else LARGE_SEGMENT


class _Segment:
    __slots__ = ("address", "bytes", "expandable", "pool")

    def __init__(self, pool: _Pool, address: int, nbytes: int, expandable: bool = False) -> None:
        self.pool, self.address, self.bytes, self.expandable = pool, address, nbytes, expandable


class _Block:
    """A block with its neighbors in the segment. ``mapped`` is False for addresses to which no memory is mapped."""

    __slots__ = ("address", "allocated", "bytes", "freed_at", "mapped", "next", "previous", "segment")

    def __init__(self, segment: _Segment, address: int, nbytes: int, mapped: bool = True) -> None:
        self.segment, self.address, self.bytes, self.mapped = segment, address, nbytes, mapped
        self.allocated = False
        self.freed_at = 0
        self.previous: _Block | None = None
        self.next: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.bytes, self.address

    @property
    def is_whole_segment(self) -> bool:
        return self.previous is None and self.next is None


class CachingAllocator:
    """Simulate the caching allocator of one CUDA device.

    The settings correspond to the options of ``PYTORCH_CUDA_ALLOC_CONF``:

    - ``expandable_segments``: whether to grow one range of addresses instead of requesting new segments.
    - ``max_split_size``: the size in bytes from which blocks are never split, or None for no limit.
    - ``roundup_power2_divisions``: the number of steps between two powers of two; sizes are rounded up to the next step. One number
      for all sizes, or a mapping from sizes in MiB (a power of two, or ">" for all larger sizes) to numbers, like torch's
      ``[256:1,512:2,>:8]``.
    - ``garbage_collection_threshold``: the share of ``memory`` above which old free segments are returned to the driver before a
      new segment is requested.

    ``memory`` is the limit of reserved bytes, like the limit that ``torch.cuda.set_per_process_memory_fraction`` sets; None for no
    limit. If a request exceeds the limit, the allocator returns free segments to the driver. If that is not enough, it raises
    MemoryError.

    ``reserved`` and ``allocated`` are the current bytes. ``peak_reserved`` and ``peak_allocated`` are the largest values so far.
    """

    def __init__(
        self,
        expandable_segments: bool = False,
        max_split_size: int | None = None,
        roundup_power2_divisions: int | Mapping[int | str, int] | None = None,
        garbage_collection_threshold: float | None = None,
        *,
        memory: int | None = None,
    ) -> None:
        if max_split_size is not None and max_split_size < LARGE_SEGMENT:
            raise InputError(
                f"max_split_size must be at least {LARGE_SEGMENT} bytes (20 MiB), as in torch, not {max_split_size}"
            )
        if garbage_collection_threshold is not None and not 0 < garbage_collection_threshold < 1:
            raise InputError(
                f"garbage_collection_threshold must be a fraction between 0 and 1, not {garbage_collection_threshold}"
            )
        self.expandable_segments = expandable_segments
        self.max_split_size = max_split_size
        self.roundup_power2_divisions = roundup_power2_divisions
        self.garbage_collection_threshold = garbage_collection_threshold
        self.memory = memory
        self._divisions = _divisions_by_power(roundup_power2_divisions)
        self._pools: dict[tuple[str, int], _Pool] = {}
        self._segments: dict[int, _Segment] = {}
        self._blocks: dict[int, _Block] = {}
        """All blocks by address: allocated, free and unmapped ones."""
        self._unused_from = FIRST_ADDRESS
        self.reserved = self.peak_reserved = self.allocated = self.peak_allocated = 0

    # The public methods

    def allocate(self, bytes: int, stream: int = 0) -> int:
        """Allocate a block of at least ``bytes`` bytes and return its address. For 0 bytes, allocate nothing and return 0, like torch."""
        if bytes < 0:
            raise InputError(f"cannot allocate {bytes} bytes")
        if bytes == 0:
            return 0
        size = self._rounded(bytes)
        pool = self._pool("small" if size <= LARGEST_SMALL_REQUEST else "large", stream)
        block = self._best_fit(pool, size)
        if block is None:
            block = self._new_block(pool, size)
        if self._should_split(block, size):
            self._split(block, size)
        block.allocated = True
        self.allocated += block.bytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block.address

    def free(self, address: int) -> None:
        """Return a block to the allocator. Raises InputError if no block is allocated at ``address``."""
        if address == 0:
            return
        block = self._blocks.get(address)
        if block is None or not block.allocated:
            raise InputError(f"nothing is allocated at address {address}")
        block.allocated = False
        self.allocated -= block.bytes
        self._add_free(self._merged(block))

    def empty_cache(self) -> None:
        """Return all free memory to the driver. Free memory is all segments that are completely free, and all free pages of expandable segments."""
        for pool in list(self._pools.values()):
            for _, address in list(pool.free):
                block = self._blocks[address]
                if block.segment.expandable:
                    self._unmap(block)
                elif block.is_whole_segment:
                    self._release(block)

    @property
    def segments(self) -> list[Segment]:
        """All segments with their blocks, in the order of their addresses."""
        return [
            Segment(
                segment.address, sum(block.bytes for block in blocks), segment.pool.stream, segment.pool.name, blocks
            )
            for segment in sorted(self._segments.values(), key=lambda segment: segment.address)
            if (blocks := tuple(self._mapped_blocks(segment)))
        ]

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], device: int = 0) -> CachingAllocator:
        """Return an allocator in the state before the first event of a recording.

        ``snapshot`` is the dict that ``torch.cuda.memory._snapshot()`` returns, and that ``_dump_snapshot`` pickles. The segments in the
        snapshot show the end of the recording. So the events of ``device`` are undone one by one, starting with the last event. Blocks of
        private pools (CUDA graphs) are treated as blocks of the shared pools.
        """
        settings = snapshot.get("allocator_settings") or snapshot.get("settings") or {}
        max_split = settings.get("max_split_size", -1)
        allocator = cls(
            expandable_segments=bool(settings.get("expandable_segments", False)),
            max_split_size=max_split if 0 <= max_split < 2**62 else None,
            roundup_power2_divisions=settings.get("roundup_power2_divisions") or None,
            garbage_collection_threshold=settings.get("garbage_collection_threshold") or None,
        )
        past = _Past()
        for recorded in snapshot["segments"]:
            if recorded.get("device", device) == device:
                past.add_segment(recorded)
        traces = snapshot["device_traces"]
        for event in reversed(traces[device] if device < len(traces) else []):
            action, address, nbytes = event["action"], event.get("addr", 0), event.get("size", 0)
            if action == "alloc":
                past.undo_allocation(address)
            elif action == "free_completed":
                past.take(address, allocator._rounded(nbytes))
            elif action in ("segment_alloc", "segment_map"):
                past.give_back(address, nbytes)
            elif action == "segment_free":
                past.regions[address] = _Region(
                    nbytes, event["stream"], "small" if nbytes == SMALL_SEGMENT else "large"
                )
            elif action == "segment_unmap":
                past.regions[address] = _Region(nbytes, event["stream"], "small" if nbytes % LARGE_SEGMENT else "large")
        allocator._restore(past.regions, past.taken)
        return allocator

    # Finding a block

    def _rounded(self, nbytes: int) -> int:
        """Return the size of the block that a request of ``nbytes`` gets."""
        if nbytes < SMALLEST_BLOCK:
            return SMALLEST_BLOCK
        divisions = self._divisions[min(max(nbytes.bit_length() - 21, 0), len(self._divisions) - 1)]
        if divisions > 1 and nbytes > SMALLEST_BLOCK * divisions:
            step = 2 ** (nbytes.bit_length() - 1) // divisions
            if nbytes & (nbytes - 1) == 0 or step == 0:
                return nbytes
            return _up_to(nbytes, step)
        return _up_to(nbytes, SMALLEST_BLOCK)

    def _pool(self, name: str, stream: int) -> _Pool:
        if (name, stream) not in self._pools:
            self._pools[name, stream] = _Pool(name, stream)
        return self._pools[name, stream]

    def _best_fit(self, pool: _Pool, size: int) -> _Block | None:
        """Remove the smallest free block of at least ``size`` bytes from the pool and return it; None if there is no such block."""
        pool.requests += 1
        place = bisect_left(pool.free, (size, 0))
        if place == len(pool.free):
            return None
        block = self._blocks[pool.free[place][1]]
        if block.segment.expandable:
            # A block at the end of an expandable segment can grow. Compare blocks by the size that they can reach, so that such a block is used last.
            while place + 1 < len(pool.free):
                following = self._blocks[pool.free[place + 1][1]]
                if _growable(following) >= _growable(block):
                    break
                place, block = place + 1, following
        most = self.max_split_size
        if most is not None and not pool.is_small:
            if size < most <= block.bytes:
                return None
            if size >= most and block.bytes >= size + LARGE_SEGMENT:
                return None
        del pool.free[place]
        return block

    def _should_split(self, block: _Block, size: int) -> bool:
        rest = block.bytes - size
        if block.segment.pool.is_small or self.expandable_segments:
            return rest >= SMALLEST_BLOCK
        return rest > LARGEST_SMALL_REQUEST and (self.max_split_size is None or size < self.max_split_size)

    # Memory from the driver

    def _new_block(self, pool: _Pool, size: int) -> _Block:
        """Return a free block of new memory from the driver. The block is not added to its pool."""
        if self.garbage_collection_threshold is not None and self.memory is not None:
            self._collect_garbage()
        if self.expandable_segments:
            return self._expand(pool, size)
        nbytes = _segment_bytes(size)
        if not self._fits(nbytes):
            self._make_room(pool, size, nbytes)
        address = self.place_segment(nbytes)
        segment = _Segment(pool, address, nbytes)
        block = _Block(segment, address, nbytes)
        self._segments[address] = segment
        self._blocks[address] = block
        self._reserve(nbytes)
        return block

    def place_segment(self, nbytes: int) -> int:
        """Choose the address of a new segment. The driver makes this choice on a GPU; here, addresses simply increase."""
        address = self._unused_from
        self._unused_from = _up_to(address + nbytes, SMALL_SEGMENT)
        return address

    def _fits(self, nbytes: int) -> bool:
        return self.memory is None or self.reserved + nbytes <= self.memory

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _make_room(self, pool: _Pool, size: int, nbytes: int) -> None:
        """Return free memory to the driver until ``nbytes`` more bytes fit. First return blocks that are too large to be split, then all
        other free memory."""
        if self.max_split_size is not None:
            self._release_unsplit(pool, max(size, self.max_split_size))
        if not self._fits(nbytes):
            self.empty_cache()
        if not self._fits(nbytes):
            raise MemoryError(
                f"{size:,} bytes do not fit: {self.reserved:,} of {self.memory:,} bytes are reserved, "
                f"{self.allocated:,} of them allocated"
            )

    def _release_unsplit(self, pool: _Pool, size: int) -> None:
        """Return a free block of at least ``size`` bytes to the driver. If there is no such block, return several blocks with ``size``
        bytes in total."""
        place = bisect_left(pool.free, (size, 0))
        if place < len(pool.free):
            self._release(self._blocks[pool.free[place][1]])
            return
        released = 0
        for nbytes, address in reversed(list(pool.free)):
            if released >= size or nbytes < (self.max_split_size or 0):
                return
            self._release(self._blocks[address])
            released += nbytes

    def _collect_garbage(self) -> None:
        """Return old free segments to the driver while the reserved bytes exceed the threshold."""
        assert self.garbage_collection_threshold is not None
        assert self.memory is not None
        excess = self.reserved - self.garbage_collection_threshold * self.memory
        candidates = [
            (pool, block)
            for pool in self._pools.values()
            if not pool.is_small
            for block in (self._blocks[address] for _, address in pool.free)
            if block.is_whole_segment and not block.segment.expandable
        ]
        ages = {id(block): pool.requests - block.freed_at for pool, block in candidates}
        while excess > 0 and candidates:
            mean = sum(ages[id(block)] for _, block in candidates) / len(candidates)
            old = [block for _, block in candidates if ages[id(block)] >= mean]
            candidates = [(pool, block) for pool, block in candidates if ages[id(block)] < mean]
            for block in old:
                excess -= block.bytes
                self._release(block)

    def _release(self, block: _Block) -> None:
        """Return a free block, which must be a whole segment, to the driver."""
        block.segment.pool.free.remove(block.key)
        del self._blocks[block.address]
        del self._segments[block.address]
        self.reserved -= block.bytes

    # Expandable segments

    def _expand(self, pool: _Pool, size: int) -> _Block:
        """Return a free block of at least ``size`` bytes in the pool's expandable segment. If necessary, map more pages."""
        if pool.expandable is None:
            address = self.place_segment(EXPANDABLE_RANGE)
            pool.expandable = _Segment(pool, address, EXPANDABLE_RANGE, expandable=True)
            self._segments[address] = pool.expandable
            self._blocks[address] = _Block(pool.expandable, address, EXPANDABLE_RANGE, mapped=False)
        block = self._room_to_grow(pool.expandable, size)
        if block.mapped:
            pool.free.remove(block.key)
        else:
            self._map(block, min(block.bytes, size))
        while block.bytes < size:
            following = block.next
            assert following is not None
            if following.mapped:
                pool.free.remove(following.key)
            else:
                self._map(following, min(size - block.bytes, following.bytes))
            self._joined(block, following)
        # If the next block is mapped and free, merge it into this block.
        if block.next is not None and block.next.mapped and not block.next.allocated:
            pool.free.remove(block.next.key)
            self._joined(block, block.next)
        return block

    def _room_to_grow(self, segment: _Segment, size: int) -> _Block:
        """Find adjacent blocks, free or unmapped, with ``size`` bytes in total. Return the first of these blocks."""
        for start in self._chain(segment):
            if start.mapped:
                continue
            if start.previous is not None and not start.previous.allocated:
                start = start.previous
            room = 0
            block: _Block | None = start
            while block is not None and not block.allocated and room < size:
                room += block.bytes
                block = block.next
            if room >= size:
                return start
        raise MemoryError(f"{size:,} bytes do not fit into an expandable segment of {EXPANDABLE_RANGE:,} bytes")

    def _map(self, block: _Block, nbytes: int) -> None:
        """Map memory to the first ``nbytes`` bytes of an unmapped block, in whole pages. The rest of the block stays unmapped."""
        segment = block.segment
        page = segment.pool.page
        begin = segment.address + (block.address - segment.address) // page * page
        mapped = min(begin + _up_to(block.address + nbytes - begin, page) - block.address, block.bytes)
        if not self._fits(mapped):
            self.empty_cache()
        if not self._fits(mapped):
            raise MemoryError(f"{mapped:,} bytes do not fit: {self.reserved:,} of {self.memory:,} bytes are reserved")
        if mapped < block.bytes:
            self._cut(block, mapped)
        block.mapped = True
        self._reserve(mapped)

    def _unmap(self, block: _Block) -> None:
        """Return the whole pages of a free block to the driver."""
        segment = block.segment
        page = segment.pool.page
        begin = segment.address + _up_to(block.address - segment.address, page)
        end = segment.address + (block.address + block.bytes - segment.address) // page * page
        if end <= begin:
            return
        segment.pool.free.remove(block.key)
        if begin > block.address:
            rest = self._cut(block, begin - block.address)
            self._add_free(block)
            block = rest
        if end < block.address + block.bytes:
            self._add_free(self._cut(block, end - block.address))
        block.mapped = False
        self.reserved -= block.bytes
        for neighbor in (block.previous, block.next):
            if neighbor is not None and not neighbor.mapped:
                block = self._joined(*sorted((block, neighbor), key=lambda each: each.address))

    # Splitting and joining

    def _split(self, block: _Block, size: int) -> None:
        """Shrink a block to ``size`` bytes, and add the rest to the pool as a free block."""
        self._add_free(self._cut(block, size))

    def _cut(self, block: _Block, size: int) -> _Block:
        """Shrink a block to ``size`` bytes. Return the rest as a new block, which is the next neighbor of the first."""
        rest = _Block(block.segment, block.address + size, block.bytes - size, block.mapped)
        block.bytes = size
        rest.previous, rest.next = block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next = rest
        self._blocks[rest.address] = rest
        return rest

    def _joined(self, block: _Block, following: _Block) -> _Block:
        """Merge two neighboring blocks; return the first, which now has the bytes of both."""
        block.bytes += following.bytes
        block.next = following.next
        if block.next is not None:
            block.next.previous = block
        del self._blocks[following.address]
        return block

    def _merged(self, block: _Block) -> _Block:
        """Merge a block with its free neighbors and return it. The neighbors are removed from the pool."""
        for neighbor in (block.previous, block.next):
            if neighbor is not None and neighbor.mapped and not neighbor.allocated:
                neighbor.segment.pool.free.remove(neighbor.key)
                block = self._joined(*sorted((block, neighbor), key=lambda each: each.address))
        return block

    def _add_free(self, block: _Block) -> None:
        block.freed_at = block.segment.pool.requests
        insort(block.segment.pool.free, block.key)

    # Reading and restoring

    def _restore(self, regions: Mapping[int, _Region], taken: Mapping[int, int]) -> None:
        """Fill an empty allocator with ``regions`` of memory. The blocks in ``taken`` are allocated; the memory between them is free."""
        addresses = sorted(taken)
        for start, region in sorted(regions.items()):
            pool, end = self._pool(region.pool, region.stream), start + region.bytes
            segment = pool.expandable
            if segment is None:
                segment = _Segment(pool, start, region.bytes, self.expandable_segments)
                self._segments[start] = segment
                if self.expandable_segments:
                    pool.expandable = segment
            last = self._last_block(segment)
            if last is not None and last.address + last.bytes < start:
                last = self._append(last, segment, start - last.address - last.bytes, mapped=False)
            within = addresses[bisect_left(addresses, start) : bisect_left(addresses, end)]
            position = start
            for address, following in zip(within, [*within[1:], end], strict=False):
                if address > position:
                    last = self._append(last, segment, address - position)
                block = last = self._append(last, segment, following - address)
                block.allocated = True
                if self._should_split(block, taken[address]):
                    last = self._cut(block, taken[address])
                self.allocated += block.bytes
                position = following
            if position < end:
                last = self._append(last, segment, end - position)
            self._reserve(region.bytes)
            self._unused_from = max(self._unused_from, _up_to(end, SMALL_SEGMENT))
        for pool in self._pools.values():
            if pool.expandable is not None:
                last = self._last_block(pool.expandable)
                assert last is not None
                self._append(last, pool.expandable, EXPANDABLE_RANGE, mapped=False)
                self._unused_from = max(self._unused_from, last.address + last.bytes + EXPANDABLE_RANGE)
        for block in list(self._blocks.values()):
            if block.mapped and not block.allocated and self._blocks.get(block.address) is block:
                self._add_free(block)
        self.peak_allocated = self.allocated

    def _append(self, last: _Block | None, segment: _Segment, nbytes: int, mapped: bool = True) -> _Block:
        """Add a block after the last block of a segment; return it."""
        block = _Block(segment, segment.address if last is None else last.address + last.bytes, nbytes, mapped)
        self._blocks[block.address] = block
        if last is not None:
            last.next, block.previous = block, last
        return block

    def _last_block(self, segment: _Segment) -> _Block | None:
        block = self._blocks.get(segment.address)
        while block is not None and block.next is not None:
            block = block.next
        return block

    def _chain(self, segment: _Segment) -> Iterator[_Block]:
        block: _Block | None = self._blocks[segment.address]
        while block is not None:
            yield block
            block = block.next

    def _mapped_blocks(self, segment: _Segment) -> Iterator[Block]:
        for block in self._chain(segment):
            if block.mapped:
                yield Block(block.address, block.bytes, block.allocated)


class _Region(NamedTuple):
    """A range of memory that a snapshot shows as one segment."""

    bytes: int
    stream: int
    pool: str


class _Past:
    """The memory of an allocator at an earlier moment. A _Past starts with the end of a recording; events are then undone one by one."""

    def __init__(self) -> None:
        self.regions: dict[int, _Region] = {}
        self.taken: dict[int, int] = {}
        """The bytes of each allocated block, by address."""
        self._addresses: list[int] = []

    def add_segment(self, recorded: Mapping[str, Any]) -> None:
        """Add a segment of the snapshot, with its blocks."""
        address = recorded["address"]
        self.regions[address] = _Region(recorded["total_size"], recorded["stream"], recorded["segment_type"])
        for block in recorded["blocks"]:
            if block["state"] != "inactive":  # a block that awaits its free is still taken
                self.take(address, block["size"])
            address += block["size"]

    def take(self, address: int, nbytes: int) -> None:
        """Mark a block as allocated."""
        self.taken[address] = nbytes
        insort(self._addresses, address)

    def undo_allocation(self, address: int) -> None:
        """Free the block at ``address``, and extend the allocated block before it up to ``address``.

        A free block begins where the allocated block before it ends. So ``address`` shows the true size of the allocated block before it,
        which includes a rest that was too small to be split off.
        """
        place = bisect_left(self._addresses, address)
        if place == len(self._addresses) or self._addresses[place] != address:
            raise InputError(
                f"the recording allocates a block at address {address}, but the snapshot has no block at this address"
            )
        del self._addresses[place], self.taken[address]
        before = self._addresses[place - 1] if place else None
        if before is not None and before >= self._region_of(address):
            self.taken[before] = address - before

    def give_back(self, address: int, nbytes: int) -> None:
        """Unmap ``nbytes`` bytes from ``address`` on. All other addresses of the same region stay mapped."""
        start = self._region_of(address)
        region = self.regions.pop(start)
        if address > start:
            self.regions[start] = region._replace(bytes=address - start)
        rest = start + region.bytes - (address + nbytes)
        if rest > 0:
            self.regions[address + nbytes] = region._replace(bytes=rest)

    def _region_of(self, address: int) -> int:
        """Return the start of the region that contains an address."""
        start = max((start for start in self.regions if start <= address), default=None)
        if start is None or address >= start + self.regions[start].bytes:
            raise InputError(
                f"the recording has a segment at address {address}, but the snapshot has no segment at this address"
            )
        return start


def _segment_bytes(size: int) -> int:
    """Return the bytes of the new segment that the allocator requests from the driver for a block of ``size`` bytes."""
    if size <= LARGEST_SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < SMALLEST_OWN_SEGMENT:
        return LARGE_SEGMENT
    return _up_to(size, SMALL_SEGMENT)


def _growable(block: _Block) -> int:
    """Return the bytes to which a free block of an expandable segment can grow."""
    following = block.next
    return block.bytes + (following.bytes if following is not None and not following.mapped else 0)


def _up_to(number: int, step: int) -> int:
    """Return ``number`` rounded up to a multiple of ``step``."""
    return -(-number // step) * step


def _divisions_by_power(divisions: int | Mapping[Any, int] | None) -> list[int]:
    """Return ``roundup_power2_divisions`` as a list. The items of the list are for sizes of 1 MiB and below, 2 MiB, 4 MiB and so on, up to
    32 GiB and above."""
    if not isinstance(divisions, Mapping):
        divisions = {">": divisions or 0}
    by_power = [0] * 16
    first = True
    rest_from = 0
    for limit, number in divisions.items():
        if number and number & (number - 1):
            raise InputError(f"roundup_power2_divisions must be powers of two, not {number}")
        if limit == ">":
            by_power[rest_from:] = [number] * (len(by_power) - rest_from)
            continue
        power = min(int(limit).bit_length() - 1, len(by_power) - 1)
        if first:
            by_power[:power] = [number] * power
        by_power[power] = number
        first, rest_from = False, power + 1
    return by_power
