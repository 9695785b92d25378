"""Two charts of the page as SVG pictures: memory over the run, and the calls under a device's roofline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from .. import units
from ..meters.history import Moment
from .graph import STYLE
from .page_data import MOST_MOMENTS, MemoryTimeline, Op, RooflineData, place_of_peak, thinned
from .palette import BINDS, CATEGORIES, GREY
from .text import elide, escaped

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 880, 64, 376
"""The edges of the plot."""
MOST_DOTS, MOST_LABELS = 2_000, 5
MOST_LETTERS = 36


def memory_svg(memory: MemoryTimeline, about: str, origin: str) -> str:
    """Return the live bytes after each call as stacked areas by category, from zero, with the peak marked."""
    states = [memory.states[i] for i in thinned(memory.states, MOST_MOMENTS, place_of_peak(memory))]
    names = [name for name in (states[0].live if states else ()) if any(state.live[name] for state in states)]
    high = 1.1 * max(memory.peak, 1)
    ys = [BOTTOM - (BOTTOM - TOP) * value / high for value in _steps(high)]
    body = [_label(LEFT - 8, y + 4, units.size(v), "end") for y, v in zip(ys, _steps(high), strict=True)]
    body += [_line(LEFT, y, RIGHT, y, 0.4) for y in ys]
    body += _areas(states, names, high)
    at = max(range(len(states)), key=lambda i: (states[i].path == memory.peak_at, states[i].total), default=0)
    x, y = _across(at, len(states)), BOTTOM - (BOTTOM - TOP) * memory.peak / high
    said = f"peak {units.size(memory.peak)}" + (f" in {memory.peak_at}" if memory.peak_at else "")
    body += [_line(LEFT, y, RIGHT, y, 1, "3 3"), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="dot"/>']
    body.append(_label(x, y - 8, said, "start" if x < 200 else "end" if x > RIGHT - 200 else "middle", soft=False))
    body.append(_label((LEFT + RIGHT) / 2, HEIGHT - 14, "calls that allocate or free, in run order", "middle"))
    return drawing(
        f"{about} · memory over the run", origin, [(name, CATEGORIES.get(name, GREY)) for name in names], body
    )


def roofline_svg(found: RooflineData, calls: Sequence[Op], about: str, origin: str) -> str:
    """Return the calls as dots of FLOP/s by FLOP for each byte, below the device's ceilings, the dearest by name."""
    dots = [(op, took) for op in calls if op.work and op.bytes and (took := op.seconds or op.bound_seconds)]
    dots = sorted(dots, key=lambda dot: -dot[1])[:MOST_DOTS]
    bandwidth, top = float(found.device["bandwidth"]), max(found.peaks.values(), default=1.0)
    xs = [(op.work or 0) / (op.bytes or 1) for op, _ in dots]
    speeds = [(op.work or 0) / took for op, took in dots]
    low, right = min([top / bandwidth / 100, *xs]) / 2, max([10 * top / bandwidth, *xs]) * 2
    bottom, high = min([top / 1000, *speeds]) / 2, max([top, *speeds]) * 2.5

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = math.log(x / low) / math.log(right / low), math.log(y / bottom) / math.log(high / bottom)
        return LEFT + (RIGHT - LEFT) * across, BOTTOM - (BOTTOM - TOP) * up

    body = []
    for power in _powers(low, right):
        x, _ = place(power, high)
        body += [_line(x, TOP, x, BOTTOM, 0.4), _label(x, BOTTOM + 16, f"{power:g}", "middle")]
    for power in _powers(bottom, high):
        _, y = place(right, power)
        body += [_line(LEFT, y, RIGHT, y, 0.4), _label(LEFT - 8, y + 4, re.sub(r"\.0+", "", units.count(power)), "end")]
    for dtype, peak in found.peaks.items():
        x, y = place(max(peak / bandwidth, low), peak)
        body += [_line(x, y, RIGHT, y, 1.8), _label(RIGHT, y - 5, f"{dtype} {units.amount(peak, 'FLOP/s')}", "end")]
    begin, ridge = max(low, bottom / bandwidth), top / bandwidth
    middle = math.sqrt(begin * ridge)
    x, y = place(middle, middle * bandwidth)
    body.append(_line(*place(begin, begin * bandwidth), *place(ridge, top), 1.8))
    body.append(_label(x - 6, y - 8, units.amount(bandwidth, "B/s"), "end"))
    places = [place(*dot) for dot in zip(xs, speeds, strict=True)]
    for (op, took), (x, y) in zip(dots, places, strict=True):
        size = 2.5 + 8 * math.sqrt(took / dots[0][1])
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{BINDS[op.binds][0]}" fill-opacity=".7">'
                    f"<title>{escaped(f'{op.op} {op.path} {units.seconds(took)}')}</title></circle>")  # fmt: skip
    body += _named([op for op, _ in dots], places)
    body.append(_label((LEFT + RIGHT) / 2, HEIGHT - 8, "FLOP for each byte moved", "middle"))
    kinds = [(f"bound by {kind}", BINDS[kind][0]) for kind in BINDS if any(op.binds == kind for op, _ in dots)]
    predicted = ", at most" if found.is_prediction else ""
    return drawing(f"{about} · FLOP/s{predicted} on {found.device['device']}", origin, kinds, body)


def drawing(head: str, origin: str, legend: Iterable[tuple[str, str]], body: Iterable[str]) -> str:
    """Return a picture with its title, a legend of names and colours, and the elements of a plot."""
    keys, x = [], float(LEFT)
    for name, colour in legend:
        keys.append(
            f'<rect x="{x:.0f}" y="36" width="10" height="10" rx="2" fill="{colour}"/>{_label(x + 15, 45, name, "start")}'
        )
        x += 6.4 * len(name) + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
            f"<title>{escaped(head)}</title><desc>{escaped(origin)}</desc><style>{STYLE}.dot{{fill:#8d95a1;stroke:#fff}}</style>",
            f'<rect class="back" width="100%" height="100%"/><text x="12" y="22">{escaped(head)}</text>',
            *keys,
            *body,
            "</svg>",
            "",
        ]
    )


def _areas(states: Sequence[Moment], names: Iterable[str], high: float) -> Iterator[str]:
    """Yield an area for each category, on top of those before it; each call has a step."""
    below, edges = [0] * len(states), [_across(i, len(states)) for i in range(len(states) + 1)]
    for name in names:
        above = [sum(pair) for pair in zip(below, (state.live[name] for state in states), strict=True)]
        upper, lower = ([f"{BOTTOM - (BOTTOM - TOP) * value / high:.1f}" for value in side] for side in (above, below))
        there = "".join(f"V{y}H{x:.1f}" for y, x in zip(upper, edges[1:], strict=True))
        back = "".join(f"V{y}H{x:.1f}" for y, x in zip(lower[::-1], edges[-2::-1], strict=True))
        path = f"M{edges[0]:.1f} {lower[0]}{there}{back}Z"
        yield f'<path d="{path}" fill="{CATEGORIES.get(name, GREY)}"><title>{escaped(name)}</title></path>'
        below = above


def _named(ops: Sequence[Op], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the names of the dearest calls, one of each module's kind, where there is room."""
    taken: list[tuple[str, float, float]] = []
    for op, (x, y) in zip(ops, places, strict=True):
        kind = op.op + "".join("*" if letter.isdigit() else letter for letter in op.path)
        if any(kind == other or (abs(x - ox) < 190 and abs(y - oy) < 22) for other, ox, oy in taken):
            continue
        taken.append((kind, x, y))
        text, below = f"{op.op} {elide(op.path, MOST_LETTERS)}".strip(), 20 if y < BOTTOM - 30 else -12
        yield _label(x + (-12 if x > WIDTH / 2 else 12), y + below, text, "end" if x > WIDTH / 2 else "start")
        if len(taken) == MOST_LABELS:
            return


def _across(position: int, of: int) -> float:
    return LEFT + (RIGHT - LEFT) * position / max(of, 1)


def _steps(high: float) -> list[int]:
    """Return the ticks of an axis of bytes: multiples of a power of two."""
    step = 1
    while high / step > 6:
        step *= 2
    return [*range(0, int(high) + 1, step)]


def _powers(low: float, high: float) -> list[float]:
    return [10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _line(x: float, y: float, to_x: float, to_y: float, width: float, dashes: str = "none") -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" class="edge" stroke-dasharray="{dashes}" style="stroke-width:{width}"/>'


def _label(x: float, y: float, text: str, anchor: str, soft: bool = True) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'
