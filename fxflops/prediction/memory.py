"""A prediction of device memory. The prediction has the memory that CUDA's allocator reserves, the other memory of the process, and whether
everything fits."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InputError
from ..render.columns import Column
from ..render.exports import Table, Tabular
from ..render.text import printable, terminal_width, wrapped
from ..roofline.devices import Device, counted_for_another, listed
from ..units import percent, read_size, size
from .allocator import Segment
from .chips import CHIPS

GIB = 2**30
TOP = 6
"""The number of rows in the printed table."""
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
    """The segments of one pool and one size: their number, and the total of their bytes.

    - ``pool``: "small" for requests up to 1 MiB, "large" for larger requests.
    - ``free``: bytes that are reserved but not used by a tensor.
    - ``largest_free``: the bytes of the largest free block.
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

    - ``allocated``: the peak bytes of used blocks, like ``torch.cuda.max_memory_allocated()``. The blocks hold tensors, with rounded-up
      sizes, and cuBLAS's ``workspaces``.
    - ``reserved``: the peak bytes that the allocator reserves, like ``torch.cuda.max_memory_reserved()``.
    - ``context``, ``nccl``: memory of the process outside the allocator (:mod:`fxflops.prediction.reserved` has the sources).
    - ``total``: the sum of ``reserved``, ``context`` and ``nccl``, like the memory that ``nvidia-smi`` shows.
    - ``fits``: whether ``total`` fits into the device's ``memory``, if necessary after returning free segments to the driver; or None if
      the device's memory is unknown.
    - ``segments``: the allocator's segments at the peak of ``reserved``, with their blocks.
    - ``counted_for``: the type of device that the run was counted for. On a device of another type than "cuda", the run's tensors differ
      from the tensors on a GPU.
    - ``missing``: the number of calls without a formula. The results of these calls are included, but the temporary buffers of their kernels are not.
    - ``convolutions``: the number of calls for which cuDNN may need a buffer. These buffers are not included.
    - ``state``: the peak bytes of weights, buffers, gradients and optimizer state together. A smaller batch does not lower these bytes.
    - ``trains``: whether the run has a backward pass.

    Iterating over a Reserved, or :meth:`to_csv`, gives the segments by pool and size (:class:`Pool`).
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
        """The bytes of the device that a process can use; None if unknown."""
        return self.device.memory

    @property
    def total(self) -> int:
        """The bytes of device memory that the process takes in total: ``reserved`` + ``context`` + ``nccl``."""
        return self.reserved + self.context + self.nccl

    @property
    def fragmentation(self) -> float:
        """The fraction of peak reserved memory that exceeds peak allocated memory. Free blocks of unsuitable sizes are one cause."""
        return 1 - self.allocated / self.reserved if self.reserved else 0.0

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The segments grouped by pool and size, the group with the most bytes first."""
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
    """Return a memory limit as a number of bytes. ``memory`` is a number, a size such as "80GiB", or None for no limit.

    Raises InputError for any other value.
    """
    if memory is None:
        return None
    try:
        limit = read_size(memory) if isinstance(memory, str) else operator.index(memory)
    except (ValueError, TypeError) as error:
        said = (
            f": {error}" if isinstance(memory, str) else ": expected a whole number of bytes or a size such as '80GiB'"
        )
        raise InputError(f"memory {memory!r}{said}") from None
    if isinstance(memory, bool) or limit < 0:
        raise InputError(f"memory {memory!r}: expected a whole number of bytes or a size such as '80GiB'")
    if isinstance(memory, str) and limit < 2**10:
        raise InputError(f"memory {memory!r} is in bytes; add a unit, such as '{limit}GiB'")
    return limit


def verdict(memory: Reserved) -> str:
    """Return one line that says whether the run fits: "fits: 61.9 of 79.2 GiB (61.2 reserved, 0.7 CUDA context)"."""
    digits = 1
    # Add digits until the two sizes differ: "does not fit: 1.2 of 1.2 GiB" would be confusing.
    while digits < 4 and memory.memory is not None and memory.memory != memory.total:
        if f"{memory.total / GIB:.{digits}f}" != f"{memory.memory / GIB:.{digits}f}":
            break
        digits += 1
    parts = f"{memory.reserved / GIB:.1f} reserved, {memory.context / GIB:.1f} CUDA context"
    parts += f", {memory.nccl / GIB:.1f} NCCL" if memory.nccl else ""
    total = f"{memory.total / GIB:.{digits}f}"
    if memory.memory is None:
        return f"{total} GiB ({parts}); the memory size of {memory.device.name} is unknown"
    has = f"{memory.memory / GIB:.{digits}f} GiB"
    if memory.fits and memory.total > memory.memory:
        return f"barely fits: needs {total}, has {has}; the allocator waits to free segments ({parts})"
    return f"{'fits' if memory.fits else 'does not fit'}: {total} of {has} ({parts})"


def text(memory: Reserved, advised: Iterable[str]) -> str:
    """Return the whole text of a prediction; the advice is at the end."""
    lines = [wrapped(line, terminal_width(), 4) for line in [*summary(memory), *notes(memory), *advised]]
    rows, shown = memory.pools, memory.select(top=TOP)
    title = "the allocator's segments at the peak of reserved memory"
    if len(rows) > TOP:
        share = percent(sum(pool.reserved for pool in rows[:TOP]), memory.reserved) or 0
        title += f" ({TOP} of {len(rows)} sizes, with {share:.0f}% of the bytes)"
    return "\n".join([*lines[:2], f"{title}:", printable(str(shown)), *lines[2:]])


BATCH, CHECKPOINTS = (
    "fxflops.largest_batch finds the largest batch that fits",
    "fxflops.plan_checkpoints finds modules to checkpoint",
)


def advice(memory: Reserved, batch: str = BATCH, checkpoints: str = CHECKPOINTS) -> list[str]:
    """Return lines with advice for a run that does not fit. If the run fits, return an empty list.

    ``batch`` is the phrase that says which call finds a batch size that fits. ``checkpoints`` is the phrase that says which call finds
    modules to checkpoint.
    """
    if memory.fits is not False or memory.memory is None:
        return []
    return no_batch_fits(memory) or [f"to make it fit: {', '.join([batch, *[checkpoints] * memory.trains])}"]


def no_batch_fits(memory: Reserved) -> list[str]:
    """Return a list with a line if the weights alone do not fit (in training: weights, gradients and optimizer state). If the weights fit,
    the list is empty."""
    if memory.memory is None or memory.state + memory.context + memory.nccl <= memory.memory:
        return []
    what = "weights, gradients and the optimizer's state" if memory.trains else "weights"
    others = "another optimizer, fewer trainable weights" if memory.trains else "a larger card"
    return [f"{what} alone take {size(memory.state)} at any batch size; use a smaller dtype, {others} or several cards"]


def summary(memory: Reserved) -> list[str]:
    """Return the lines above the table: whether the run fits, and the parts of its memory."""
    workspaces = f", including {size(memory.workspaces)} of cuBLAS workspaces" if memory.workspaces else ""
    return [
        f"{memory.device.name}: {verdict(memory)}",
        f"{size(memory.allocated)} allocated{workspaces}; fragmentation {memory.fragmentation:.1%}",
    ]


NO_BUFFERS = "not included: cuDNN's buffers (unknown size); leave some room"


def notes(memory: Reserved) -> list[str]:
    """Return the lines below the table: the limits of the prediction, e.g. memory that is not included."""
    lines = []
    if memory.fits and memory.memory is not None and memory.total > memory.memory:
        lines.append(
            "the run fits only if the allocator returns free segments to the driver, which stalls the device; "
            f"otherwise the run takes {size(memory.total)}"
        )
    if memory.counted_for != "cuda":
        lines.append(counted_for_another(memory.counted_for))
    if memory.convolutions:
        lines.append(f"{NO_BUFFERS} ({memory.convolutions:,} convolution{'s' * (memory.convolutions != 1)})")
    if memory.device.name not in CHIPS and listed(memory.device.name) is not None:
        lines.append(
            f"allocator, context and workspaces are as measured with CUDA; nothing was measured on {memory.device.name}"
        )
    if memory.missing:
        lines.append(f"{memory.missing} calls have no formula: buffers of their kernels are not included")
    return lines


def _pool(name: str, nbytes: int, segments: list[Segment]) -> Pool:
    blocks = [block for segment in segments for block in segment.blocks]
    reserved = nbytes * len(segments)
    allocated = sum(block.bytes for block in blocks if block.allocated)
    largest = max((block.bytes for block in blocks if not block.allocated), default=0)
    return Pool(name, nbytes, len(segments), reserved, allocated, reserved - allocated, largest)
