"""The data of a report's page. The module also makes the compact form in which the page contains the data.

The compact form has limits for calls, modules and states of memory. Above a limit, the page omits the cheapest calls, adds the deepest
modules to their parents, or keeps only some states of memory. The page says so. Measured numbers are rounded to six digits. Ints are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..meters.history import Moment
from .data import Summary
from .palette import FAMILIES, OTHER
from .text import plain

MOST_CALLS = 5_000
MOST_TILES = 4_000
MOST_MOMENTS = 600
MOST_OWNERS = 15
MOST_TEXT = 160


class Metric(NamedTuple):
    """A quantity that the size of tiles can show. ``kind`` is "count", "s" or "B". ``phase`` is "" for parameters and memory."""

    key: str
    label: str
    kind: str
    phase: str = ""

    @property
    def name(self) -> str:
        return f"{self.key} {self.phase}".rstrip()


class Tile(NamedTuple):
    """A tile of the icicle chart: a module, or the work of a module outside its children. For such work, ``cls`` is "".

    ``own`` has the tile's value for each metric, without the values of its child tiles. ``parent`` is the index of the parent tile, which
    comes earlier in the list. ``op`` is the tile's most expensive operator.
    """

    name: str
    cls: str
    path: str
    parent: int | None
    calls: int
    op: str
    own: Mapping[str, float]
    bytes_peak: int | None = None


class Op(NamedTuple):
    """One call, or all calls of an operator. ``work`` and ``bytes`` are the FLOPs and bytes that the roofline uses; None without a
    roofline. ``missing`` is the reason why the call is not counted."""

    phase: str
    op: str
    path: str
    calls: int
    macs: int
    flops: int
    seconds: float | None = None
    shapes: str = ""
    work: int | None = None
    bytes: int | None = None
    bound_seconds: float | None = None
    dtype: str = ""
    binds: str = ""
    missing: str = ""


class Owner(NamedTuple):
    """Tensors alive at the peak that have the same category and were allocated at the same place. ``tensors`` is their number."""

    category: str
    path: str
    op: str
    shape: str
    bytes: int
    tensors: int = 1


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """The memory over the run. ``states`` are the live bytes after each call. ``owners`` are the tensors alive at the peak, largest first."""

    states: Sequence[Moment]
    peak: int
    peak_at: str
    owners: Sequence[Owner]
    source: str


@dataclass(frozen=True, slots=True)
class RooflineData:
    """The ceilings of a device, and how near a run came to them.

    ``device`` has the name, the source, the memory bandwidth and the cache bandwidths of the device. ``peaks`` has the peak FLOP/s for each
    dtype of the run. ``bounds`` has an entry for each phase and each limiting ceiling, such as "compute". An entry has the minimum seconds
    of the calls, their measured seconds (None if they were not timed) and the number of calls.
    """

    device: Mapping[str, Any]
    peaks: Mapping[str, float]
    is_prediction: bool
    bounds: Mapping[str, Mapping[str, tuple[float, float | None, int]]]
    mfu: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The data of the whole page. If ``roofline`` is None, ``why_no_roofline`` is the reason. ``title`` is the user's own title. ``picture``
    is the graph as SVG; "" if the page has no graph."""

    summary: Summary
    metrics: Sequence[Metric]
    tiles: Sequence[Tile]
    calls: Sequence[Op]
    operators: Sequence[Op]
    memory: MemoryTimeline | None = None
    roofline: RooflineData | None = None
    why_no_roofline: str = ""
    title: str = ""
    picture: str = ""


class StringTable:
    """A table that assigns a number to each text. Equal texts are stored once. Texts are cut to :data:`MOST_TEXT` characters."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"": 0}

    def __getitem__(self, text: str) -> int:
        text = plain(text)
        if len(text) > MOST_TEXT:
            text = text[: MOST_TEXT - 1] + "…"
        return self.numbers.setdefault(text, len(self.numbers))


def payload(page: Page) -> dict[str, Any]:
    """Return the page's data in types that JSON supports."""
    words = StringTable()
    kept = most_expensive(page.calls, MOST_CALLS)
    tiles = shallow(page.tiles, MOST_TILES)
    return {
        "metrics": [metric._asdict() | {"name": metric.name} for metric in page.metrics],
        "tiles": _tiles(tiles, page.metrics, words),
        "calls": _ops([page.calls[i] for i in kept], words, kept),
        "calls_in_all": len(page.calls),
        "calls_share": _share(page.calls, kept),
        "operators": _ops(page.operators, words),
        "memory": None if page.memory is None else _memory(page.memory, words),
        "is_prediction": None if page.roofline is None else page.roofline.is_prediction,
        "words": list(words.numbers),
        "families": FAMILIES,
        "other": OTHER[1],
    }


def most_expensive(ops: Sequence[Op], most: int) -> list[int]:
    """Return the positions of the ``most`` most expensive ops, in run order. Ops that were not counted are treated as most expensive."""
    ranked = sorted(range(len(ops)), key=lambda i: (not ops[i].missing, -(ops[i].seconds or 0.0), -ops[i].flops))
    return sorted(ranked[:most])


def shallow(tiles: Sequence[Tile], most: int) -> list[Tile]:
    """Return at most ``most`` tiles. Tiles below some depth are left out, and their values are added to their parents."""
    depths: list[int] = []
    for tile in tiles:
        depths.append(0 if tile.parent is None else depths[tile.parent] + 1)
    deepest = max(depths, default=0)
    while deepest > 1 and sum(depth <= deepest for depth in depths) > most:
        deepest -= 1
    kept: list[Tile] = []
    place: list[int] = []
    for tile, depth in zip(tiles, depths, strict=True):
        if depth <= deepest:
            place.append(len(kept))
            kept.append(tile._replace(parent=None if tile.parent is None else place[tile.parent]))
            continue
        into = place[tile.parent or 0]
        place.append(into)
        own = {name: kept[into].own.get(name, 0) + value for name, value in tile.own.items()}
        kept[into] = kept[into]._replace(own={**kept[into].own, **own}, op=kept[into].op or tile.op)
    return kept


def thinned(states: Sequence[Moment], most: int, always: int) -> list[int]:
    """Divide the states into about ``most`` stretches of equal length. Return the positions of the highest state in each stretch, and the
    position ``always``."""
    stretch = -(-len(states) // most)
    starts = range(0, len(states), max(stretch, 1))
    highest = (max(range(i, min(i + stretch, len(states))), key=lambda j: states[j].total) for i in starts)
    return sorted({*highest, *([always] if states else [])})


def place_of_peak(memory: MemoryTimeline) -> int:
    """Return the position of the state to mark as the peak. The peak is marked at the highest state in the module where memory peaked or,
    if there is none, the highest state of all."""
    inside = [i for i, state in enumerate(memory.states) if state.path == memory.peak_at]
    return max(inside or range(len(memory.states)), key=lambda i: memory.states[i].total, default=0)


def _tiles(tiles: Sequence[Tile], metrics: Iterable[Metric], words: StringTable) -> dict[str, Any]:
    return {
        **{name: [words[getattr(tile, name)] for tile in tiles] for name in ("name", "cls", "path", "op")},
        "parent": [-1 if tile.parent is None else tile.parent for tile in tiles],
        "calls": [tile.calls for tile in tiles],
        "peak": [tile.bytes_peak for tile in tiles],
        "own": {metric.name: [_short(tile.own.get(metric.name, 0)) for tile in tiles] for metric in metrics},
    }


def _ops(ops: Sequence[Op], words: StringTable, numbers: Sequence[int] | None = None) -> dict[str, Any]:
    """Return a list for each field of :class:`Op`, with numbers in place of texts. The list ``n`` has the positions among all calls."""
    columns: dict[str, Any] = {"n": list(range(len(ops)) if numbers is None else numbers)}
    for i, name in enumerate(Op._fields):
        values = (op[i] for op in ops)
        columns[name] = [words[v] if isinstance(v, str) else _short(v) for v in values]
    return columns


def _memory(memory: MemoryTimeline, words: StringTable) -> dict[str, Any]:
    """Return the states that the chart shows. The script of the page uses these states to show the live memory at a point of the chart."""
    peak = place_of_peak(memory)
    places = thinned(memory.states, MOST_MOMENTS, peak)
    states = [memory.states[i] for i in places]
    categories = states[0].live if states else ()
    return {
        "at": places,
        "peak_place": peak,
        **{name: [words[getattr(state, name)] for state in states] for name in ("path", "op")},
        "live": {
            name: [state.live[name] for state in states]
            for name in categories
            if any(state.live[name] for state in states)
        },
    }


def _share(ops: Sequence[Op], kept: Sequence[int]) -> dict[str, float | None]:
    """Return two shares from 0 to 1: the share of all FLOPs, and the share of all time, that the kept ops have."""
    flops, seconds = sum(op.flops for op in ops), sum(op.seconds or 0.0 for op in ops)
    return {
        "flops": sum(ops[i].flops for i in kept) / flops if flops else None,
        "time": sum(ops[i].seconds or 0.0 for i in kept) / seconds if seconds else None,
    }


def _short(value: float | None) -> float | None:
    """Round a float to six digits. Return an int or None unchanged."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
