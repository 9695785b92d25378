"""The result of a roofline, with its table. For each call, it has the least time that a device needs, and the measured time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import InputError
from ..records import ALL_PHASES, PARTS, prefixes
from ..render.columns import Column
from ..render.exports import Rows, Table, Tabular
from ..render.fold import pattern, place_of
from ..render.text import printable, terminal_width, wrapped
from ..units import amount, seconds, size
from .devices import Device, counted_for_another, listed

COMPUTE, MEMORY, LAUNCH, NOTHING = "compute", "memory", "launch", "nothing"
KINDS = (COMPUTE, MEMORY, LAUNCH)
NOT_MEASURED = "lower bound, not measured"
TOP = 12
SHOWN = (
    Column("op", "op"),
    Column("where", "where"),
    Column("calls", "calls", "number"),
    Column("dtype", "dtype"),
    Column("flops", "flops", "flops"),
    Column("bytes", "bytes(B)", "B"),
    Column("FLOP/B", "FLOP/B", "number"),
    Column("bound", "bound(ms)", "ms"),
    Column("binds", "binds"),
)
SAME_IN_ALL = {"call": "calls", "kind": "", "operator": "where", "module": "op"}
"""By the way in which calls are summed, the column that is hidden because all rows have the same value."""
DETAILS = ("dtype", "FLOP/B", "GFLOP/s", "GB/s")
"""Columns that are hidden in notebooks and narrow terminals."""
MORE_DETAILS = ("peak%", "bytes", "flops")
"""Columns that are also hidden in the narrowest terminals."""
TIMED = (
    Column("time", "time(ms)", "ms"),
    Column("GFLOP/s", "GFLOP/s", "number"),
    Column("GB/s", "GB/s", "number"),
    Column("peak%", "peak%", "%"),
    Column("efficiency%", "efficiency%", "%"),
)

COLUMNS = (
    Column("op", "op"),
    Column("module", "module"),
    Column("calls", "calls", "number"),
    Column("dtype", "dtype"),
    Column("flops", "FLOPs", "flops"),
    Column("bytes_read", "read", "B"),
    Column("bytes_written", "written", "B"),
    Column("flops_per_byte", "FLOP/B", "number"),
    Column("compute_seconds", "compute", "s"),
    Column("memory_seconds", "memory", "s"),
    Column("launch_seconds", "launch", "s"),
    Column("bound_seconds", "bound", "s"),
    Column("binds", "binds"),
    Column("seconds", "time", "s"),
    Column("flops_per_second", "FLOP/s", "flops"),
    Column("bytes_per_second", "B/s", "flops"),
    Column("share_of_peak", "of peak", "number"),
    Column("efficiency", "efficiency", "number"),
)


class Row(NamedTuple):
    """One call, or the sum of several.

    - ``compute_seconds``, ``memory_seconds``, ``launch_seconds``: the least time that each ceiling of the device allows.
    - ``bound_seconds``: for one call, the largest of these three times; for several calls, the sum of their bounds.
    - ``binds``: the name of the ceiling that sets the bound: "compute", "memory", "launch", or "nothing" if all times are 0.
    - ``flops``: 2 x MACs plus all other operations, except integer operations.
    - ``seconds``: the measured time on this device, or None.
    """

    op: str
    path: str
    calls: int
    dtype: str
    flops: int
    bytes_read: int
    bytes_written: int
    compute_seconds: float
    memory_seconds: float
    launch_seconds: float
    bound_seconds: float
    binds: str
    seconds: float | None = None

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved; None if no bytes are moved."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """The measured FLOP/s; None if not timed."""
        return self.flops / self.seconds if self.seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """The measured bytes/s, if every byte came from memory; None if not timed."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    def share_of_peak(self) -> float | None:
        """The measured FLOP/s as a share of the device's peak in this dtype; None if not timed."""
        return self.compute_seconds / self.seconds if self.seconds else None

    @property
    def efficiency(self) -> float | None:
        """The lower bound of the time, divided by the measured time. A value of 1 means that the call is as fast as the device allows. None
        if not timed."""
        return self.bound_seconds / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True, repr=False)
class Roofline(Tabular):
    """The calls of a phase, or of all phases, compared with a device's ceilings, as a table that can be printed and exported.

    - ``latency``: the model's own seconds in this phase.
    - ``mfu``: the time that 2 x MACs need at the peak, divided by ``latency``.
    - ``missing``: the number of calls without a formula. The bounds include only the bytes of these calls.
    - ``counted_for``: the type of device that the report was counted for. Other types than "cuda" run other kernels than a GPU.
    - ``ran``: all phases of the run.
    - ``unread``: the number of attention calls whose mask has no values, as on meta. A mask without values might hide all pairs, so the
      bounds include only the bytes of these calls.

    ``latency`` and ``mfu`` are None if the run was not timed on this device. The result is then only a lower bound of the time.
    """

    device: Device
    phase: str
    rows: tuple[Row, ...]
    latency: float | None = None
    mfu: float | None = None
    missing: int = 0
    unread: int = 0
    provenance: str = field(default="", compare=False)
    counted_for: str = "cuda"
    ran: tuple[str, ...] = ()

    @property
    def is_prediction(self) -> bool:
        """True if no call was timed."""
        return all(row.seconds is None for row in self.rows)

    @property
    def total(self) -> Row:
        return _together("all", "", self.rows)

    @property
    def bound_seconds(self) -> float:
        """The least latency if calls run one after the other. The latency is then the sum of the lower bounds of the calls."""
        return self.total.bound_seconds

    def by_bound(self) -> Rows[Row]:
        """Group the calls by the ceiling that limits them, and return the totals of each group. The ceiling that sets a call's bound is "compute", "memory", "launch" or
        "nothing"."""
        rows = _grouped(self.rows, lambda row: [row.binds])
        return _as_rows({kind: rows[kind] for kind in (*KINDS, NOTHING) if kind in rows}, "kinds", self.provenance)

    def by_operator(self) -> Rows[Row]:
        """Return the sums of each operator's calls, the slowest operator first."""
        rows = _grouped(self.rows, lambda row: [row.op])
        return _as_rows(
            dict(sorted(rows.items(), key=lambda item: _longest_first(item[1]))), "operators", self.provenance
        )

    def by_module(self) -> Rows[Row]:
        """Return, for each module path, the sum of the calls within the module. The path "" is the whole model."""
        rows = _grouped(self.rows, lambda row: list(prefixes(row.path)), lambda path, _: ("all", path))
        return _as_rows(rows, "modules", self.provenance)

    def _by_kind(self) -> dict[str, Row]:
        def named(_: str, rows: Sequence[Row]) -> tuple[str, str]:
            return rows[0].op, place_of(row.path for row in rows)

        return _grouped(self.rows, lambda row: [f"{row.op}\n{pattern(row.path)}"], named)

    def _as_table(self) -> Table:
        return Table("calls", COLUMNS, tuple(map(_raw, self.rows)), provenance=self.provenance)

    def table(
        self,
        by: str = "call",
        *,
        sort_by: str | None = None,
        top: int | None = TOP,
        columns: Sequence[str] | str | None = None,
        units: str | None = "auto",
        tablefmt: str = "simple",
    ) -> str:
        """Return the rows as text. Rows that take no time are omitted.

        ``by`` is "call", "operator", "module" or "kind". "kind" sums an operator's calls in modules whose paths differ only in numbers. The
        slowest rows come first unless ``sort_by`` names a column. ``top``, ``columns``, ``units`` and ``tablefmt`` are as for
        :func:`~fxflops.render.table.grid`.
        """
        from ..render.table import grid

        chosen, cells = self._longest(by)
        shares = ("bound(ms)",) if self.is_prediction else ("time(ms)", "bound(ms)")
        return printable(grid(
            chosen, cells, sort_by=sort_by, top=top, columns=columns, units=units,
            tablefmt=tablefmt, noun=f"{by}s", shares=() if by == "module" else shares, elidable=("where", "op"), expendable=(*DETAILS, *MORE_DETAILS),
        ))  # fmt: skip

    def _longest(self, by: str) -> tuple[list[Column], list[list[object]]]:
        """Return the columns, and the cells of all rows that take time. The slowest row comes first."""
        if by not in SAME_IN_ALL:
            raise InputError(f"cannot sum by {by!r}; expected one of {', '.join(map(repr, SAME_IN_ALL))}")
        sums = {"kind": self._by_kind, "operator": self.by_operator, "module": self.by_module}
        rows = sums[by]().values() if by in sums else self.rows
        longest = sorted((row for row in rows if row.binds != NOTHING), key=_longest_first)
        columns = SHOWN if self.is_prediction else SHOWN + TIMED
        shown = [i for i, column in enumerate(columns) if column.key != SAME_IN_ALL[by]]
        return [columns[i] for i in shown], [[found[i] for i in shown] for found in map(_cells, longest)]

    def _text(self) -> str:
        head = (wrapped(line, terminal_width(), 4) for line in _summary(self))
        notes = (wrapped(note, terminal_width(), 4) for note in _notes(self))
        return "\n".join([*head, self.table("kind"), *notes])

    def _blocks(self) -> Iterable[str]:
        from ..render.html import cells_table, note

        columns, cells = self._longest("operator")
        kept = [i for i, column in enumerate(columns) if column.key not in DETAILS]
        rest = "no room for {}: table() shows these columns, by call, operator or module".format(", ".join(DETAILS))
        rows = [[row[i] for i in kept] for row in cells]
        return [
            *map(note, _summary(self)),
            cells_table([columns[i] for i in kept], rows, "auto"),
            *map(note, [*_notes(self), rest]),
        ]


def _as_rows(rows: Mapping[str, Row], name: str, origin: str) -> Rows[Row]:
    return Rows(rows, name, (Column("key", name.removesuffix("s")), *COLUMNS), _keyed, origin)


def _keyed(key: str, row: Row) -> list[tuple[object, ...]]:
    return [(key, *_raw(row))]


def _raw(row: Row) -> tuple[object, ...]:
    return (
        *row[:7],
        row.intensity,
        *row[7:],
        row.flops_per_second,
        row.bytes_per_second,
        row.share_of_peak,
        row.efficiency,
    )


def _grouped(
    rows: Iterable[Row],
    keys: Callable[[Row], list[str]],
    named: Callable[[str, Sequence[Row]], tuple[str, str]] = lambda key, _: (key, ""),
) -> dict[str, Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for key in keys(row):
            groups.setdefault(key, []).append(row)
    return {key: _together(*named(key, found), found) for key, found in groups.items()}


def _together(op: str, path: str, rows: Sequence[Row]) -> Row:
    """Return the sum of several calls. ``binds`` of the sum is the ceiling whose calls have the largest sum of bounds."""
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(Row._fields)
    _, _, calls, dtypes, flops, read, written, compute, memory, launch, bounds, binds, seconds = columns
    # Calls run one after the other, so add up the bounds of the calls. The largest of the three summed times would be too low a bound.
    times = {kind: sum(least for least, by in zip(bounds, binds, strict=True) if by == kind) for kind in KINDS}
    taken = [each for each in seconds if each is not None]
    return Row(
        op,
        path,
        sum(calls),
        "+".join(sorted({dtype for dtype, work in zip(dtypes, flops, strict=True) if work})),
        sum(flops),
        sum(read),
        sum(written),
        sum(compute),
        sum(memory),
        sum(launch),
        sum(times.values()),
        max(times, key=lambda kind: times[kind]) if any(times.values()) else NOTHING,
        sum(taken) if taken else None,
    )


def _longest_first(row: Row) -> tuple[float, float]:
    return -(row.seconds or 0.0), -row.bound_seconds


def _cells(row: Row) -> tuple[object, ...]:
    peak, efficiency = (None if share is None else 100 * share for share in (row.share_of_peak, row.efficiency))
    speed, flow = (None if each is None else each / 1e9 for each in (row.flops_per_second, row.bytes_per_second))
    took = None if row.seconds is None else 1e3 * row.seconds
    return (
        row.op, row.path or "(root)", row.calls, row.dtype, row.flops, row.bytes, row.intensity, 1e3 * row.bound_seconds,
        row.binds, took, speed, flow, peak, efficiency,
    )  # fmt: skip


def _summary(found: Roofline) -> list[str]:
    total, device = found.total, found.device
    peaks = ", ".join(
        f"{dtype} {amount(device.peak(dtype), 'FLOP/s')}"
        for dtype in dict.fromkeys(row.dtype for row in found.rows if row.flops)
    )
    kinds = [
        f"{kind} {seconds(row.bound_seconds)} ({100 * row.bound_seconds / total.bound_seconds:.0f}%)"
        for kind, row in found.by_bound().items()
        if row.bound_seconds
    ]
    whole = f"{amount(total.flops, 'FLOPs')} executed, {size(total.bytes)}, {total.intensity or 0:.1f} FLOP/B"
    phase = f"all phases ({', '.join(found.ran)})" if found.phase == ALL_PHASES else found.phase
    lines = [
        f"{phase} on {device.name}   {peaks}, {amount(device.bandwidth, 'B/s')}   ({device.source})",
        f"lower bound {seconds(total.bound_seconds)} = {' + '.join(kinds) or 0}   {whole}",
    ]
    if found.is_prediction:
        return [f"{lines[0]}   {NOT_MEASURED}", lines[1]]
    took = f"time {seconds(total.seconds)}, {100 * (total.efficiency or 0):.1f}% efficient"
    own = "" if found.mfu is None else f"   latency {seconds(found.latency)}, MFU {100 * found.mfu:.1f}%"
    return [*lines, took + own]


def too_low(device: Device) -> str:
    """Return the reason why a run was faster than the device's peak, for messages."""
    return f"the ceiling of {device.name} ({device.source}) is too low"


def _notes(found: Roofline) -> list[str]:
    fast = [row.binds == COMPUTE for row in found.rows if (row.efficiency or 0) > 1]
    computing, reading = sum(fast), len(fast) - sum(fast)
    others = [phase for phase in found.ran if found.phase != ALL_PHASES and phase not in PARTS[found.phase]]
    notes = {
        f"MFU is above 100%: {too_low(found.device)}": (found.mfu or 0) > 1,
        f"calls that took less time than their operations need: {computing}; {too_low(found.device)}": computing,
        f"calls that took less time than their bound: {reading}; the data that they read was in a cache, or was never computed": reading,
        f"{found.missing} calls have no formula: only their bytes are in the bounds": found.missing,
        f"{found.unread} attention calls have a mask without values, which might hide all pairs: only the bytes of these calls are in the "
        "bounds": found.unread,
        f"the bound for a GPU may be lower: {counted_for_another(found.counted_for)}": (
            found.counted_for != "cuda" and listed(found.device.name) is not None
        ),
        f'not shown: {", ".join(others)}; the phase "all" shows all phases': len(others),
    }
    return [note for note, calls in notes.items() if calls]
