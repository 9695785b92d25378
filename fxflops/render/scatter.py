"""A scatter plot of models: one quantity against another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from .axes import Axis
from .charts import LETTER, Chart, label, percent, without_zeros, x_ticks, y_ticks
from .columns import Column
from .palette import CATEGORIES

DOT = next(iter(CATEGORIES.values()))
LINE = 13
"""The approximate height of a line of text in pixels."""
UP = 0, -LINE, LINE, -2 * LINE, 2 * LINE
"""How far a name may be from the height of its dot, in pixels. The first distance at which the name is free is used."""


def scatter_chart(
    points: Mapping[str, Sequence[float]], x: Column, y: Column, about: str = "", doubtful: Collection[str] = ()
) -> Chart:
    """Return a chart with a named point for each entry of ``points``. An entry has the values for the columns ``x`` and ``y``.

    ``about`` is appended to the title. A point is drawn hollow if its name is in ``doubtful``. The legend then says that the times of
    hollow points are unsteady.
    """
    flat = Axis.around([point[0] for point in points.values()], x.kind == "B")
    up = Axis.around([point[1] for point in points.values()], y.kind == "B")
    title = " · ".join(filter(None, [f"{y.header} against {x.header}", about]))
    chart = Chart(title, [("○", "unsteady times: measure again on an idle machine", DOT)] if doubtful else (), "")
    dots = {name: (flat.place(point[0]), 100 - up.place(point[1])) for name, point in points.items()}
    body = [
        *x_ticks((flat.place(value), _shown(x, value)) for value in flat.ticks()),
        *y_ticks((up.place(value), _shown(y, value)) for value in up.ticks()),
        *(_dot(*place, name in doubtful) for name, place in dots.items()),
        *_names(dots, chart),
        label(50, 100, x.header, dy=36),
        *(
            [] if chart.legend else [label(0, 0, y.header, "end", dx=-8, dy=-12)]
        ),  # with a legend, this label would cover the legend
    ]
    return chart._replace(body="".join(body))


def _dot(x: float, y: float, is_hollow: bool) -> str:
    look = f'fill="none" stroke="{DOT}" stroke-width="2"' if is_hollow else f'fill="{DOT}"'
    return f'<circle cx="{percent(x)}" cy="{percent(y)}" r="5" {look}/>'


def _names(dots: Mapping[str, tuple[float, float]], chart: Chart) -> Iterator[str]:
    """Yield a label with the name of each dot. If possible, the label is placed beside the dot so that it overlaps no other dot or name.
    The label may be up to two lines above or below the dot."""
    places = {name: (x * chart.width / 100, y * chart.height / 100) for name, (x, y) in dots.items()}
    boxes = [(x - 6, x + 6, y) for x, y in places.values()]
    for name, (x, y) in places.items():
        width = LETTER * len(name)
        right, left = (x + 9, x + 9 + width, "start"), (x - 9 - width, x - 9, "end")
        sides = (right, left) if x < chart.width / 2 else (left, right)
        spots = [((begin, end, y + up), anchor, up) for up in UP for begin, end, anchor in sides]
        free = [
            spot for spot in spots if spot[0][1] < chart.width + 20 and not any(_meet(spot[0], box) for box in boxes)
        ]
        box, anchor, up = (free or spots)[0]
        boxes.append(box)
        yield label(*dots[name], name, anchor, dx=9 if anchor == "start" else -9, dy=4 + up, kind="name on")


def _meet(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < LINE


def _shown(column: Column, value: float) -> str:
    """Return the value of a tick as text with its unit."""
    return without_zeros(column.show(value, "auto")) if value else "0"
