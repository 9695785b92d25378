"""A stacked chart of a quantity over a size, with one band per part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .. import units
from .axes import Axis
from .charts import SQUARE, Chart, areas, label, without_zeros, x_ticks, y_ticks
from .palette import FAMILIES, GREY, family

REST = "other"


def bands_chart(
    title: str, x_title: str, lengths: Sequence[float], bands: Mapping[str, Sequence[float]], in_bytes: bool
) -> Chart:
    """Return a stacked chart. ``bands`` maps the name of each band to the band's values at the ``lengths``. The lowest band comes first."""
    first, last = min(lengths), max(lengths)
    flat = Axis(first, last if last > first else first + 1)
    heights = [sum(values) for values in zip(*bands.values(), strict=True)]
    up = Axis(0, 1.05 * (max(heights, default=0) or 1), in_bytes=in_bytes)
    colours = _colours(bands)
    layers = [(name, colours[name], [up.place(value) for value in values]) for name, values in bands.items()]
    show = units.size if in_bytes else units.count
    body = [
        *y_ticks((up.place(value), without_zeros(show(value)) if value else "0") for value in up.ticks()),
        areas([flat.place(length) for length in lengths], layers, stepped=False),
        *x_ticks((flat.place(value), f"{value:,g}") for value in flat.ticks()),
        label(50, 100, x_title, dy=36),
    ]
    legend = [(SQUARE, name, colour) for name, colour, _ in layers]
    return Chart(title, legend, "".join(body))


def _colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each operator. An operator's colour is the colour of its family or, if another operator already has that colour,
    an unused colour."""
    colours: dict[str, str] = {}
    for name in names:
        free = [colour for _, colour, _ in FAMILIES if colour not in colours.values()]
        own = GREY if name == REST else family(name)[1]
        colours[name] = own if own == GREY or own in free or not free else free[0]
    return colours
