"""A chart of the calls under a device's roofline, and a sentence about the minimum times of the calls."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import units
from .axes import Axis
from .charts import LETTER, Chart, label, line, percent, without_zeros, x_ticks, y_ticks
from .page_data import Op, RooflineData
from .palette import BINDS
from .text import escaped

MOST_DOTS, MOST_NAMES = 300, 5
MOST_LETTERS = 36
NARROW = 640
"""Names are placed so that they do not overlap if the plot has this width in pixels, e.g. on paper."""
SLOPE = (0.5, 0.35, 0.65, 0.2)
"""Places for the name of the memory's slope, as parts of the slope; the first ones are the better ones."""
WIDTHS = (NARROW, 240)
"""Widths of the plot on paper and on a phone."""
MARKS = {"circle": "●", "square": "■", "diamond": "◆"}


class Dot(NamedTuple):
    """A call and its position in percent of the plot. ``x`` shows the call's arithmetic intensity (FLOP/byte), ``y`` its FLOP/s."""

    op: Op
    seconds: float
    x: float
    y: float


Box = tuple[float, float, float]
"""The area of a text in pixels: its left end, its right end, and its y position."""


class _Text(NamedTuple):
    """A ceiling's name, ``dx`` and ``dy`` pixels beside a point of the plot, in percent. With a negative ``dx``, the text ends at this position."""

    x: float
    y: float
    dx: float
    dy: float
    text: str

    def box(self, height: int, width: int = NARROW) -> Box:
        """Return the area of the text in a plot of this size."""
        x, long = width * self.x / 100 + self.dx, LETTER * len(self.text)
        return (x - long if self.dx < 0 else x), (x if self.dx < 0 else x + long), height * self.y / 100 + self.dy


class _Axes(NamedTuple):
    flat: Axis
    up: Axis
    least_x: float
    most_x: float
    least_y: float
    top: float


def roofline_chart(
    data: RooflineData, calls: Sequence[Op], about: str, phase: str | None = None
) -> tuple[Chart, Counter[str]]:
    """Return a chart of the calls below the device's ceilings. Some calls are omitted if there are too many; also return the number of
    omitted calls by phase.

    Each call is a dot at its FLOP/byte and its FLOP/s. The most expensive calls have their names beside the dots. With a ``phase``, only
    the calls of this phase are visible. A script can show the calls of the other phases.
    """
    timed = [(op, took) for op in calls if op.work and op.bytes and (took := _seconds(op, data))]
    timed.sort(key=lambda pair: -pair[1])
    left_out = Counter(op.phase for op, _ in timed[MOST_DOTS:])
    timed = timed[:MOST_DOTS]
    axes = _axes(data, timed)
    chart = Chart(
        f"{about} · FLOP/s{', at most' if data.is_prediction else ''} on {data.device['device']}", (), "", 360
    )
    dots = [
        Dot(op, took, axes.flat.place(op.work / op.bytes), 100 - axes.up.place(op.work / took))
        for op, took in timed
        if op.work and op.bytes
    ]
    said = _said(data, axes, dots, chart.height)
    taken = [text.box(chart.height) for text in said]
    longest = max((dot.seconds for dot in dots), default=1.0)
    body = [
        *x_ticks((axes.flat.place(value), f"{value:,g}") for value in axes.flat.ticks()),
        *y_ticks((axes.up.place(value), without_zeros(units.count(value))) for value in axes.up.ticks()),
        *_ceilings(data, axes),
    ]
    for name in dict.fromkeys([*data.bounds, *(dot.op.phase for dot in dots)]):
        mine = [dot for dot in dots if dot.op.phase == name]
        if not mine:
            continue
        is_hidden = phase is not None and name != phase
        hidden = ' display="none"' if is_hidden else ""
        names = _names(mine, chart.height, taken) if phase is not None else ()
        elements = "".join([*(_dot(dot, longest) for dot in mine), *names])
        body.append(f'<g data-phase="{escaped(name)}"{hidden}>{elements}</g>')
    body += _names(dots, chart.height, taken) if phase is None else ()
    body += [
        label(text.x, text.y, text.text, "end" if text.dx < 0 else "start", dx=text.dx, dy=text.dy, kind="soft on")
        for text in said
    ]
    body.append(label(50, 100, "arithmetic intensity (FLOP/byte)", dy=36))
    kinds = [kind for kind in BINDS if any(dot.op.binds == kind for dot in dots)]
    legend = [
        (MARKS[BINDS[kind][1]], "nothing" if kind == "nothing" else f"bound by {kind}", BINDS[kind][0])
        for kind in kinds
    ]
    return chart._replace(legend=legend, body="".join(body)), left_out


def bounds_in_words(data: RooflineData, phase: str | None = None) -> str:
    """Return sentences about a phase's calls: their minimum time, by the ceiling that limits them, and the time that they really took.

    If ``phase`` is None, the sentences are about all phases.
    """
    by_kind: dict[str, float] = {}
    took = 0.0
    for name, kinds in data.bounds.items():
        if phase in (None, name):
            for kind, (bound, seconds, _) in kinds.items():
                by_kind[kind] = by_kind.get(kind, 0.0) + bound
                took += seconds or 0.0
    least = sum(by_kind.values())
    parts = [
        f"{kind} {units.seconds(bound)} ({100 * bound / least:.1f}%)" for kind, bound in by_kind.items() if bound > 0
    ]
    where = f"On {data.device['device']} ({data.device['source']})" if "source" in data.device else "On the device"
    said = f"{where} the calls take at least {units.seconds(least)}{': ' if parts else ''}{', '.join(parts)}."
    if not took:
        return f"{said} This is a prediction, not a measurement."
    return f"{said} They took {units.seconds(took)}: {100 * least / took:.1f}% efficient."


def _seconds(op: Op, data: RooflineData) -> float | None:
    return op.bound_seconds if data.is_prediction else op.seconds


def _axes(data: RooflineData, timed: Sequence[tuple[Op, float]]) -> _Axes:
    """Return axes that cover all calls and the ridge point."""
    bandwidth, top = float(data.device["bandwidth"]), max(data.peaks.values(), default=1.0)
    ridge = top / bandwidth
    xs = [(op.work or 0) / (op.bytes or 1) for op, _ in timed]
    ys = [(op.work or 0) / took for op, took in timed]
    least_x, most_x = min([ridge / 100, *xs]) / 2, max([10 * ridge, *xs]) * 2
    least_y, most_y = min([top / 1000, *ys]) / 2, max([top, *ys]) * 2.5
    flat, up = Axis(least_x, most_x, is_log=True), Axis(least_y, most_y, is_log=True)
    return _Axes(flat, up, least_x, most_x, least_y, top)


def _ceilings(data: RooflineData, axes: _Axes) -> Iterator[str]:
    """Yield the ceilings: horizontal lines for the peak FLOP/s, and slopes for the bandwidths. The slopes of caches are dotted."""
    bandwidth = float(data.device["bandwidth"])
    for peak in data.peaks.values():
        y = 100 - axes.up.place(peak)
        yield line(axes.flat.place(max(peak / bandwidth, axes.least_x)), y, 100, y, 1.8)
    for speed in [bandwidth, *_caches(data)]:
        begin, end = max(axes.least_x, axes.least_y / speed), axes.top / speed
        low, high = 100 - axes.up.place(begin * speed), 100 - axes.up.place(axes.top)
        width, dashes = (1.8, "") if speed == bandwidth else (1, "2 3")
        yield line(axes.flat.place(begin), low, axes.flat.place(end), high, width, dashes)


def _caches(data: RooflineData) -> list[float]:
    """Return the bandwidths of the caches that are faster than the memory."""
    return [speed for _, speed in data.device.get("caches", ()) if speed > 1.05 * float(data.device["bandwidth"])]


def _said(data: RooflineData, axes: _Axes, dots: Sequence[Dot], height: int) -> list[_Text]:
    """Return the names of the ceilings."""
    peaks = [
        _Text(100, 100 - axes.up.place(peak), -1, -5, f"{dtype} {units.amount(peak, 'FLOP/s')}")
        for dtype, peak in data.peaks.items()
    ]
    # The lines of the caches are above the line of the memory, so the name is then below the line, where it covers the fewest dots.
    side, down = (1, 14) if _caches(data) else (-1, -6)
    flow = f"memory {units.amount(float(data.device['bandwidth']), 'B/s')}"
    places = [_Text(*_slope(data, axes, part), 8 * side, down, flow) for part in SLOPE]
    return [
        *peaks,
        min(places, key=lambda text: sum(_covered(text.box(height, at), dots, height, at) for at in WIDTHS)),
    ]


def _slope(data: RooflineData, axes: _Axes, part: float) -> tuple[float, float]:
    """Return a point of the memory bandwidth's slope, in percent of the plot: ``part`` is 0 at the slope's lower end, and 1 at the ridge."""
    bandwidth = float(data.device["bandwidth"])
    begin = max(axes.least_x, axes.least_y / bandwidth)
    at = begin * (axes.top / bandwidth / begin) ** part
    return axes.flat.place(at), 100 - axes.up.place(at * bandwidth)


def _dot(dot: Dot, longest: float) -> str:
    """Return the dot of a call. The dot's area grows with the call's time. The shape of the dot shows which ceiling limits the call."""
    op, radius = dot.op, 2.5 + 8 * math.sqrt(dot.seconds / longest)
    title = f"<title>{escaped_lines(_about(dot))}</title>"
    x, y, kind = percent(dot.x), percent(dot.y), f'class="dot by-{op.binds}"'
    shape = BINDS[op.binds][1]
    if shape == "circle":
        return f'<circle {kind} cx="{x}" cy="{y}" r="{radius:.1f}">{title}</circle>'
    side = radius * (1.7 if shape == "square" else 1.25)
    path = f"M{-side / 2:.1f} {-side / 2:.1f}h{side:.1f}v{side:.1f}h{-side:.1f}z"
    if shape == "diamond":
        path = f"M0 {-side:.1f}L{side:.1f} 0L0 {side:.1f}L{-side:.1f} 0z"
    return f'<svg x="{x}" y="{y}" overflow="visible"><path {kind} d="{path}">{title}</path></svg>'


def _about(dot: Dot) -> list[str]:
    """Return the lines of a dot's tooltip."""
    op, work = dot.op, dot.op.work or 0
    least = op.bound_seconds or 0.0
    return [
        f"{op.op} {op.path}".strip(),
        *([op.shapes] if op.shapes else []),
        f"{units.amount(work / dot.seconds, 'FLOP/s')} at {work / (op.bytes or 1):.3g} FLOP/B",
        f"{units.seconds(dot.seconds)}, at least {units.seconds(least)} ({100 * least / dot.seconds:.1f}%)",
    ]


def escaped_lines(lines: Sequence[str]) -> str:
    """Escape each line, and join the lines with line breaks."""
    return "\n".join(map(escaped, lines))


def _names(dots: Sequence[Dot], height: int, free_of: Sequence[Box]) -> Iterator[str]:
    """Yield labels with the names of the most expensive calls, one for each kind of module.

    A label is placed where it overlaps no other text and covers few dots. ``free_of`` has the areas of the existing texts.
    """
    taken = [*free_of]
    kinds: set[str] = set()
    for dot in dots:
        x, y = dot.x * NARROW / 100, dot.y * height / 100
        kind = re.sub(r"\d+", "*", f"{dot.op.op} {dot.op.path}")
        text = f"{dot.op.op} {_end(dot.op.path)}".strip()
        inward = -1 if dot.x > 50 else 1
        best: tuple[int, int, int, Box] | None = None
        for side, up in ((inward, -18), (-inward, -18), (inward, 22), (inward, -40)):
            near, far = x + 14 * side, x + (14 + LETTER * len(text)) * side
            box = (min(near, far), max(near, far), y + up)
            if kind in kinds or box[0] < 0 or box[1] > NARROW or not 12 < box[2] < height - 4:
                continue
            if any(box[0] < end and start < box[1] and abs(box[2] - at) < 18 for start, end, at in taken):
                continue
            covered = _covered(box, dots, height)
            if best is None or covered < best[0]:
                best = covered, side, up, box
        if best is None:
            continue
        _, side, up, box = best
        kinds.add(kind)
        taken.append(box)
        anchor = "end" if side < 0 else "start"
        yield label(dot.x, dot.y, text, anchor, dx=14 * side, dy=up, kind="on wide")
        if len(kinds) == MOST_NAMES:
            return


def _covered(box: Box, dots: Sequence[Dot], height: int, width: int = NARROW) -> int:
    """Return the number of dots that a text in this area covers."""
    low, high, y = box
    return sum(low - 6 < dot.x * width / 100 < high + 6 and abs(dot.y * height / 100 - y + 4) < 13 for dot in dots)


def _end(path: str) -> str:
    """Return a path. If the path is long, return only its last part, after "…"."""
    parts = path.split(".")
    while len(parts) > 1 and len(".".join(parts)) > MOST_LETTERS:
        parts.pop(0)
    end = ".".join(parts)
    return end if end == path else f"…{end}"
