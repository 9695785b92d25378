"""A prediction of memory: what CUDA's allocator reserves on a device, what the process takes beside it, and whether that fits."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InputError
from ..render.columns import Column
from ..render.exports import Table, Tabular
from ..render.text import printable, terminal_width, wrapped
from ..roofline.devices import Device, listed
from ..units import percent, read_size, size
from .allocator import Segment
from .chips import CHIPS

GIB = 2**30
TOP = 6
"""Rows of the printed table."""
COLUMNS = (
    Column("pool", "pool"),
    Column("segment_bytes", "segment", "B"),
    Column("segments", "segments", "number"),
    Column("reserved", "reserved", "B"),
    Column("allocated", "allocated", "B"),
    Column("free", "free", "B"),
    Column("largest_free", "largest free", "B"),
)


class Pool(NamedTuple):
    """The segments of one pool and size: their number, and the bytes in all of them.

    ``pool`` is "small" for segments of requests up to 1 MiB, and "large". ``free`` bytes are reserved but hold no tensor; the largest free
    block has ``largest_free``.
    """

    pool: str
    segment_bytes: int
    segments: int
    reserved: int
    allocated: int
    free: int
    largest_free: int


@dataclass(frozen=True, slots=True, repr=False)
class Reserved(Tabular):
    """The memory that a run takes on a device, in bytes.

    - ``allocated``: the peak of bytes in used blocks, as ``torch.cuda.max_memory_allocated()``: tensors, rounded up, and
      ``workspaces`` of cuBLAS.
    - ``reserved``: the most that the allocator holds, as ``torch.cuda.max_memory_reserved()``.
    - ``context`` and ``nccl``: memory of the process outside the allocator (:mod:`fxflops.prediction.reserved` has the sources).
    - ``total``: ``reserved`` with these, as ``nvidia-smi`` shows it.
    - ``fits``: whether that is within the device's ``memory``, if necessary after free segments went back to the driver; None if
      the device's memory is unknown.
    - ``segments``: the allocator's segments when it reserved the most, with their blocks.
    - ``counted_for``: the type of device that the run was counted for: "cuda", or another, whose tensors differ from a GPU's.
    - ``missing``: calls without a formula. Their results are included, temporary buffers of their kernels are not.
    - ``convolutions``: calls for which cuDNN may take a buffer that is not included.
    - ``state``: the peak bytes of weights, buffers, gradients and optimizer state together, which a smaller batch does not lower.
    - ``trains``: whether the run has a backward pass.

    Iterating it, or :meth:`to_csv`, gives the segments by pool and size (:class:`Pool`).
    """

    device: Device
    allocated: int
    reserved: int
    workspaces: int
    context: int
    nccl: int
    segments: tuple[Segment, ...]
    fits: bool | None
    counted_for: str = "cuda"
    missing: int = 0
    convolutions: int = 0
    state: int = 0
    trains: bool = False
    provenance: str = field(default="", compare=False)

    @property
    def memory(self) -> int | None:
        """The device memory that a process can have, in bytes; None if unknown."""
        return self.device.memory

    @property
    def total(self) -> int:
        """Bytes of the device that the process takes: ``reserved``, ``context`` and ``nccl``."""
        return self.reserved + self.context + self.nccl

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that no tensor ever needed: free blocks of unsuitable sizes, and rounding."""
        return 1 - self.allocated / self.reserved if self.reserved else 0.0

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The segments by pool and size, most bytes first."""
        groups: dict[tuple[str, int], list[Segment]] = {}
        for segment in self.segments:
            groups.setdefault((segment.pool, segment.bytes), []).append(segment)
        pools = [_pool(name, nbytes, segments) for (name, nbytes), segments in groups.items()]
        return tuple(sorted(pools, key=lambda pool: -pool.reserved))

    def _as_table(self) -> Table:
        return Table("pools", COLUMNS, self.pools, provenance=self.provenance)

    def _text(self) -> str:
        return text(self, advice(self))

    def _blocks(self) -> Iterable[str]:
        from ..render.html import note

        return [*map(note, summary(self)), f"<pre>{self._as_table()}</pre>", *map(note, [*notes(self), *advice(self)])]


def limit_of(memory: str | int | None) -> int | None:
    """Return a limit in bytes, given as a number or as "80GiB"; None for None. Raises InputError for anything else."""
    if memory is None:
        return None
    try:
        limit = read_size(memory) if isinstance(memory, str) else operator.index(memory)
    except (ValueError, TypeError) as error:
        said = f": {error}" if isinstance(memory, str) else ", not bytes or a size such as '80GiB'"
        raise InputError(f"memory {memory!r}{said}") from None
    if isinstance(memory, bool) or limit < 0:
        raise InputError(f"memory {memory!r}: give bytes, or a size such as '80GiB'")
    if isinstance(memory, str) and limit < 2**10:
        raise InputError(f"memory {memory!r} is in bytes: give it a unit, such as '{limit}GiB'")
    return limit


def verdict(memory: Reserved) -> str:
    """Return the verdict in a line: "fits: 61.9 of 79.2 GiB (61.2 reserved, 0.7 CUDA context)"."""
    digits = 1
    # "1.2 of 1.2 GiB" would not show why it does not fit.
    while digits < 4 and memory.memory is not None and memory.memory != memory.total:
        if f"{memory.total / GIB:.{digits}f}" != f"{memory.memory / GIB:.{digits}f}":
            break
        digits += 1
    parts = f"{memory.reserved / GIB:.1f} reserved, {memory.context / GIB:.1f} CUDA context"
    parts += f", {memory.nccl / GIB:.1f} NCCL" if memory.nccl else ""
    total = f"{memory.total / GIB:.{digits}f}"
    if memory.memory is None:
        return f"{total} GiB ({parts}); the memory of {memory.device.name} is not known"
    has = f"{memory.memory / GIB:.{digits}f} GiB"
    if memory.fits and memory.total > memory.memory:
        return f"barely fits: needs {total}, has {has}; the allocator waits to free segments ({parts})"
    return f"{'fits' if memory.fits else 'does not fit'}: {total} of {has} ({parts})"


def text(memory: Reserved, advised: Iterable[str]) -> str:
    """Return all lines as text, the advice last."""
    lines = [wrapped(line, terminal_width(), 4) for line in [*summary(memory), *notes(memory), *advised]]
    rows, shown = memory.pools, memory.select(top=TOP)
    title = "the allocator's segments when it reserves the most"
    if len(rows) > TOP:
        share = percent(sum(pool.reserved for pool in rows[:TOP]), memory.reserved) or 0
        title += f", {TOP} of {len(rows)} sizes: {share:.0f}% of reserved"
    return "\n".join([*lines[:2], f"{title}:", printable(str(shown)), *lines[2:]])


BATCH, CHECKPOINTS = (
    "fxflops.largest_batch finds the batch that fits",
    "fxflops.plan_checkpoints the modules to checkpoint",
)


def advice(memory: Reserved, batch: str = BATCH, checkpoints: str = CHECKPOINTS) -> list[str]:
    """Return the lines that say what to do about a run that does not fit; none if it fits. ``batch`` and ``checkpoints`` name the calls."""
    if memory.fits is not False or memory.memory is None:
        return []
    return no_batch_fits(memory) or [f"what fits: {', '.join([batch, *[checkpoints] * memory.trains])}"]


def no_batch_fits(memory: Reserved) -> list[str]:
    """Return the line for a run whose weights alone, in training with gradients and optimizer state, do not fit; none if they do."""
    if memory.memory is None or memory.state + memory.context + memory.nccl <= memory.memory:
        return []
    what = "weights, gradients and the optimizer's state" if memory.trains else "weights"
    others = "another optimizer, fewer trainable weights" if memory.trains else "a larger card"
    return [
        f"{what} alone take {size(memory.state)}, whatever the batch: a smaller dtype, {others} or several cards are needed"
    ]


def summary(memory: Reserved) -> list[str]:
    """Return the lines above the table: the verdict, and its parts."""
    workspaces = f", including {size(memory.workspaces)} of cuBLAS workspaces" if memory.workspaces else ""
    return [
        f"{memory.device.name}: {verdict(memory)}",
        f"{size(memory.allocated)} allocated{workspaces}; fragmentation {memory.fragmentation:.1%}",
    ]


NO_BUFFERS = "not included: cuDNN's buffers (unknown size); leave some room"


def notes(memory: Reserved) -> list[str]:
    """Return the lines below the table: what the figures lack."""
    lines = []
    if memory.fits and memory.memory is not None and memory.total > memory.memory:
        lines.append(
            f"it fits only by giving free segments back to the driver, which stalls the device: else it takes {size(memory.total)}"
        )
    if memory.counted_for != "cuda":
        lines.append(counted_for_another(memory.counted_for))
    if memory.convolutions:
        lines.append(f"{NO_BUFFERS} ({memory.convolutions:,} convolution{'s' * (memory.convolutions != 1)})")
    if memory.device.name not in CHIPS and listed(memory.device.name) is not None:
        lines.append(
            f"allocator, context and workspaces are those measured with CUDA; nothing was measured on {memory.device.name}"
        )
    if memory.missing:
        lines.append(f"{memory.missing} calls have no formula: buffers of their kernels are not included")
    return lines


def counted_for_another(counted_for: str) -> str:
    """Return the sentence for a report that was not counted for a GPU."""
    return f'counted for {counted_for}, which runs other kernels than a GPU: count(..., device="cuda") counts for this device'


def _pool(name: str, nbytes: int, segments: list[Segment]) -> Pool:
    blocks = [block for segment in segments for block in segment.blocks]
    reserved = nbytes * len(segments)
    allocated = sum(block.bytes for block in blocks if block.allocated)
    largest = max((block.bytes for block in blocks if not block.allocated), default=0)
    return Pool(name, nbytes, len(segments), reserved, allocated, reserved - allocated, largest)
