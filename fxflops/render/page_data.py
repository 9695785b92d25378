"""What the page of a report shows, as plain data, and its form in the page: short columns, and no more than a page can hold.

Numbers stay what they are; what is too much is left out by size (calls), folded by depth (modules) or thinned out (memory
over the run), and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .data import Summary
from .text import plain

MOST_CALLS = 5_000
MOST_TILES = 4_000
MOST_MOMENTS = 1_500
MOST_OWNERS = 15
MOST_TEXT = 160


class Metric(NamedTuple):
    """What a module may be sized by. ``kind`` is "count", "s" or "B"; ``phase`` "" where it is of no phase."""

    key: str
    label: str
    kind: str
    phase: str = ""

    @property
    def name(self) -> str:
        return f"{self.key} {self.phase}".rstrip()


class Tile(NamedTuple):
    """A module, or what is done in one outside its children (``cls`` ""). ``own`` has its values by a metric's name,
    without those of the tiles in it; ``parent`` is the position of the tile it is in, before its own; ``op`` what costs
    most in it."""

    name: str
    cls: str
    path: str
    parent: int | None
    calls: int
    op: str
    own: Mapping[str, float]
    bytes_peak: int | None = None


class Op(NamedTuple):
    """One call, or all calls of an operator. ``work`` and ``bytes`` are what the roofline takes it for, None without one;
    ``missing`` is why it is not counted."""

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


class Held(NamedTuple):
    """What is alive at the peak for one purpose, made at one place; ``tensors`` in number."""

    category: str
    path: str
    op: str
    shape: str
    bytes: int
    tensors: int = 1


class State(NamedTuple):
    """The live bytes after a call, by category."""

    path: str
    op: str
    phase: str
    live: Sequence[int]


@dataclass(frozen=True, slots=True)
class Course:
    """Memory over the run: the states after its calls, the peak and who holds it, the largest first."""

    categories: Sequence[str]
    states: Sequence[State]
    peak: int
    peak_at: str
    owners: Sequence[Held]
    source: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """A device's, and by phase how near the run came: what binds ("compute" ...) with its least seconds and the calls'.
    ``device`` has its name, its source, its bandwidth and those of its caches; ``peaks`` are those of the dtypes that the run
    computed in."""

    device: Mapping[str, Any]
    peaks: Mapping[str, float]
    is_prediction: bool
    bounds: Mapping[str, Mapping[str, tuple[float, float | None, int]]]
    mfu: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page. ``why_no_roofline`` is said where there is none."""

    summary: Summary
    metrics: Sequence[Metric]
    tiles: Sequence[Tile]
    calls: Sequence[Op]
    operators: Sequence[Op]
    memory: Course | None = None
    roofline: Ceilings | None = None
    why_no_roofline: str = ""


class Words:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"": 0}

    def __getitem__(self, text: str) -> int:
        text = plain(text)
        if len(text) > MOST_TEXT:
            text = text[: MOST_TEXT - 1] + "…"
        return self.numbers.setdefault(text, len(self.numbers))


def payload(page: Page) -> dict[str, Any]:
    """The page's data as JSON takes it."""
    words = Words()
    kept = dearest(page.calls, MOST_CALLS)
    tiles = shallow(page.tiles, MOST_TILES)
    return {
        "model": page.summary.title,
        "complete": page.summary.complete,
        "metrics": [metric._asdict() | {"name": metric.name} for metric in page.metrics],
        "tiles": _tiles(tiles, page.metrics, words),
        "tiles_left_out": len(page.tiles) - len(tiles),
        "calls": _ops([page.calls[i] for i in kept], words, kept),
        "calls_in_all": len(page.calls),
        "calls_share": _share(page.calls, kept),
        "operators": _ops(page.operators, words),
        "memory": None if page.memory is None else _course(page.memory, words),
        "roofline": None if page.roofline is None else _ceilings(page.roofline),
        "words": list(words.numbers),
    }


def dearest(ops: Sequence[Op], most: int) -> list[int]:
    """The positions, in run order, of the ops that cost most; those that are not counted come before all others."""
    ranked = sorted(range(len(ops)), key=lambda i: (not ops[i].missing, -(ops[i].seconds or 0.0), -ops[i].flops))
    return sorted(ranked[:most])


def shallow(tiles: Sequence[Tile], most: int) -> list[Tile]:
    """The tiles down to the depth at which there are not too many, with the values of those below added to them."""
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
            parent = None if tile.parent is None else place[tile.parent]
            kept.append(tile._replace(parent=parent, own=dict(tile.own)))
            continue
        into = place[tile.parent or 0]
        place.append(into)
        own = {name: kept[into].own.get(name, 0) + value for name, value in tile.own.items()}
        kept[into] = kept[into]._replace(own={**kept[into].own, **own}, op=kept[into].op or tile.op)
    return kept


def thinned(states: Sequence[State], most: int, always: int) -> list[int]:
    """The positions of at most about ``most`` states: the highest of every stretch, and ``always``."""
    stretch = -(-len(states) // most)
    starts = range(0, len(states), max(stretch, 1))
    highest = (max(range(i, min(i + stretch, len(states))), key=lambda j: sum(states[j].live)) for i in starts)
    return sorted({*highest, *([always] if states else [])})


def place_of_peak(course: Course) -> int:
    """The position of the state nearest to the peak: the highest in the module that it was in, or of all."""
    inside = [i for i, state in enumerate(course.states) if state.path == course.peak_at]
    return max(inside or range(len(course.states)), key=lambda i: sum(course.states[i].live), default=0)


def _tiles(tiles: Sequence[Tile], metrics: Iterable[Metric], words: Words) -> dict[str, Any]:
    return {
        "name": [words[tile.name] for tile in tiles],
        "cls": [words[tile.cls] for tile in tiles],
        "path": [words[tile.path] for tile in tiles],
        "op": [words[tile.op] for tile in tiles],
        "parent": [-1 if tile.parent is None else tile.parent for tile in tiles],
        "calls": [tile.calls for tile in tiles],
        "peak": [tile.bytes_peak for tile in tiles],
        "own": {metric.name: [_short(tile.own.get(metric.name, 0)) for tile in tiles] for metric in metrics},
    }


def _ops(ops: Sequence[Op], words: Words, numbers: Sequence[int] | None = None) -> dict[str, Any]:
    """The fields of :class:`Op` as columns, texts as numbers of words; ``n`` is the position among all."""
    columns: dict[str, Any] = {"n": list(range(len(ops)) if numbers is None else numbers)}
    for i, name in enumerate(Op._fields):
        values = (op[i] for op in ops)
        columns[name] = [words[v] if isinstance(v, str) else _short(v) for v in values]
    return columns


def _course(course: Course, words: Words) -> dict[str, Any]:
    peak = place_of_peak(course)
    shown = thinned(course.states, MOST_MOMENTS, peak)
    states = [course.states[i] for i in shown]
    used = [i for i in range(len(course.categories)) if any(state.live[i] for state in states)]
    rest = course.owners[MOST_OWNERS:]
    return {
        "at": shown,
        "in_all": len(course.states),
        "path": [words[state.path] for state in states],
        "op": [words[state.op] for state in states],
        "phase": [words[state.phase] for state in states],
        "live": {course.categories[i]: [state.live[i] for state in states] for i in used},
        "peak": course.peak,
        "peak_at": words[course.peak_at],
        "peak_place": shown.index(peak) if shown else 0,
        "source": course.source,
        "owners": [held._asdict() for held in course.owners[:MOST_OWNERS]],
        "others": {"tensors": sum(held.tensors for held in rest), "bytes": sum(held.bytes for held in rest)},
    }


def _ceilings(found: Ceilings) -> dict[str, Any]:
    return {
        **found.device,
        "peaks": dict(found.peaks),
        "is_prediction": found.is_prediction,
        "bounds": {
            phase: {kind: [_short(bound), _short(took), calls] for kind, (bound, took, calls) in kinds.items()}
            for phase, kinds in found.bounds.items()
        },
    }


def _share(ops: Sequence[Op], kept: Sequence[int]) -> dict[str, float | None]:
    """How much of all FLOPs and of the time the ops kept have, from 0 to 1."""
    flops, seconds = sum(op.flops for op in ops), sum(op.seconds or 0.0 for op in ops)
    return {
        "flops": sum(ops[i].flops for i in kept) / flops if flops else None,
        "time": sum(ops[i].seconds or 0.0 for i in kept) / seconds if seconds else None,
    }


def _short(value: float | None) -> float | None:
    """A measured number to as many digits as anyone measures; an int as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
