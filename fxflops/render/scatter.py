"""Models as points of a figure: one of their figures by another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, drawing
from .charts import _label as label
from .charts import _line as line
from .columns import Column
from .palette import CATEGORIES

LOGARITHMIC = 20
"""An axis whose largest value is so many times its smallest is logarithmic."""
DOT = next(iter(CATEGORIES.values()))
LETTER, LINE = 6.6, 13
"""The width of a letter and the height of a line of text, about."""
MOST_TICKS = 8
MARGIN = 0.08
"""The room beside the outermost points, as a share of the axis."""


def scatter_svg(points: Mapping[str, Sequence[float]], x: Column, y: Column, origin: str) -> str:
    """Return a picture with a named point for each entry of ``points``: its figures in the columns ``x`` and ``y``."""
    across = _Axis([point[0] for point in points.values()], LEFT, RIGHT)
    up = _Axis([point[1] for point in points.values()], BOTTOM, TOP)
    body: list[str] = []
    for value, at in across.ticks(x.kind == "B"):
        body += [line(at, TOP, at, BOTTOM, 0.4), label(at, BOTTOM + 16, _shown(x, value), "middle")]
    for value, at in up.ticks(y.kind == "B"):
        body += [line(LEFT, at, RIGHT, at, 0.4), label(LEFT - 8, at + 4, _shown(y, value), "end")]
    dots = {name: (across.place(point[0]), up.place(point[1])) for name, point in points.items()}
    body += [f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5" fill="{DOT}"/>' for at_x, at_y in dots.values()]
    body += _names(dots)
    body.append(label((LEFT + RIGHT) / 2, HEIGHT - 8, x.header, "middle"))
    body.append(label(LEFT - 8, TOP - 12, y.header, "end"))
    return drawing(f"{y.header} against {x.header}", origin, (), body)


def _names(dots: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield the name of each dot beside it, on the side where it meets no other dot or name if there is one."""
    boxes = [(x - 6, x + 6, y) for x, y in dots.values()]
    for name, (x, y) in dots.items():
        width = LETTER * len(name)
        right, left = (x + 9, x + 9 + width, y), (x - 9 - width, x - 9, y)
        sides = [(right, "start"), (left, "end")] if x < (LEFT + RIGHT) / 2 else [(left, "end"), (right, "start")]
        is_free = [box[1] < RIGHT + 20 and not any(_meet(box, other) for other in boxes) for box, _ in sides]
        box, anchor = sides[is_free.index(True) if any(is_free) else 0]
        boxes.append(box)
        yield label(x + (9 if anchor == "start" else -9), y + 4, name, anchor, soft=False)


def _meet(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < LINE


class _Axis:
    """An axis from ``start`` to ``end`` in the picture: where a value lies on it, and its ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self._is_log = low > 0 and high / low >= LOGARITHMIC
        self._scale: Callable[[float], float] = math.log10 if self._is_log else float
        first, last = self._scale(low), self._scale(high)
        room = MARGIN * ((last - first) or abs(last) or 1.0)
        # A linear axis does not go below zero for the sake of its margin.
        self._first = first - room if self._is_log or low < 0 else max(first - room, 0.0)
        self._last = last + room
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (self._scale(value) - self._first) / (self._last - self._first)
        return self._start + share * (self._end - self._start)

    def ticks(self, in_bytes: bool) -> list[tuple[float, float]]:
        """Return the values that are written beside the axis, each with its place: round numbers, or powers of two of bytes."""
        extent = self._last - self._first
        if self._is_log and in_bytes:
            doublings = range(math.floor(self._first / math.log10(2)), math.ceil(self._last / math.log10(2)) + 1)
            values: Iterable[float] = [2.0**n for n in doublings if not n % math.ceil(len(doublings) / MOST_TICKS)]
        elif self._is_log:
            powers = range(math.floor(self._first), math.ceil(self._last) + 1)
            values = [m * 10.0**power for power in powers for m in ((1, 2, 5) if extent < 3 else (1,))]
        else:
            power = math.floor(math.log2(extent)) if in_bytes else math.floor(math.log10(extent))
            steps = (
                [2.0 ** (power - n) for n in (4, 3, 2, 1, 0)]
                if in_bytes
                else [10.0**power * m for m in (0.1, 0.2, 0.5, 1, 2)]
            )
            step = next(step for step in steps if extent / step <= MOST_TICKS)
            values = [step * n for n in range(math.ceil(self._first / step), math.floor(self._last / step) + 1)]
        places = [(value, self.place(value)) for value in values if value > 0 or not self._is_log]
        low, high = sorted((self._start, self._end))
        return [(value, at) for value, at in places if low <= at <= high]


def _shown(column: Column, value: float) -> str:
    """Return a tick's value with its unit, without zeros behind the point."""
    return re.sub(r"\.?0+(?= |$)", "", column.show(value, "auto")) if value else "0"
