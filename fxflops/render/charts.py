"""Charts: the elements that all charts share, and functions that turn a chart into an SVG picture or a part of a page.

Elements are placed by percentages of the plot, but text and dots have a fixed size. The same drawing therefore fits wide pages, narrow
pages, paper and a standalone picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .palette import BINDS, FAMILIES, OTHER
from .text import escaped

WIDTH, TOP = 900, 64
"""The width of a picture, and the height of its title and legend, in pixels."""
LETTER = 6.6
"""The approximate width of a letter in pixels."""


class Chart(NamedTuple):
    """A chart. ``body`` is the SVG of the plot. ``height`` is the height of the plot in pixels. ``margins`` are the pixels to the left of
    the plot, to the right of the plot, and below the plot. ``legend`` has the mark, the text and the colour of each key."""

    title: str
    legend: Sequence[tuple[str, str, str]]
    body: str
    height: int = 320
    margins: tuple[int, int, int] = (78, 20, 44)

    @property
    def width(self) -> int:
        """The width of the plot in a picture, in pixels."""
        return WIDTH - self.margins[0] - self.margins[1]


SQUARE = "■"


def style() -> str:
    """Return the CSS that charts need, in a picture or in a page."""
    colours = [OTHER[1], *(colour for _, colour, _ in FAMILIES)]
    tiles = "".join(
        f".f{i} rect{{fill:{colour}}}.f{i} text{{fill:{ink_on(colour)}}}.f{i} .share{{stroke:{colour}}}"
        for i, colour in enumerate(colours)
    )
    dots = "".join(f".by-{kind}{{fill:{colour}}}" for kind, (colour, _) in BINDS.items())
    return STYLE + tiles + dots


STYLE = """
.chart text{font-size:12px;font-family:system-ui,Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1b1f27;paint-order:stroke}
.chart .soft{fill:#5c6573;font-size:11px}.chart .on{stroke:#fff;stroke-width:4px;stroke-opacity:.85}.chart .dark{fill:#1b1f27}
.chart .rule{fill:none;stroke:#8d95a1}.chart .grid{stroke:#8d95a1;stroke-opacity:.35;stroke-width:.6}.chart .area{stroke:none}
.chart .back{fill:#fff}.chart .dot{fill-opacity:.75;stroke:#fff;stroke-width:.8}.chart .cut{stroke:#fff;stroke-width:3px}
.chart .module rect{fill:#e9ecf1}.chart .share{stroke-width:9px;stroke-linejoin:round;text-anchor:end}.chart .low text{display:none}.chart .tile rect{stroke:#fff}.chart .module .share{stroke:#e9ecf1}
@media screen and (prefers-color-scheme:dark){.chart text{fill:#e7eaf0}.chart .soft{fill:#9aa4b3}.chart .on{stroke:#1a1f27}.chart .dark{fill:#1b1f27}
.chart .back{fill:#1a1f27}.chart .dot,.chart .cut,.chart .tile rect{stroke:#1a1f27}.chart .module rect{fill:#2a313c}.chart .module .share{stroke:#2a313c}}
"""
"""Colours are written out, because programs that rasterize SVG do not support CSS variables."""


def picture(chart: Chart, origin: str) -> str:
    """Return the chart as an SVG picture, with its title and a legend above the plot."""
    left, _, below = chart.margins
    height = TOP + chart.height + below
    keys, x = [], 12.0
    for mark, name, colour in chart.legend:
        keys.append(f'<text x="{x:.0f}" y="46"><tspan style="fill:{colour}">{mark}</tspan> {escaped(name)}</text>')
        x += LETTER * len(name) + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escaped(chart.title)}</title><desc>{escaped(origin)}</desc><style>{style()}</style>",
            f'<rect class="back" width="100%" height="100%"/><text x="12" y="22">{escaped(chart.title)}</text>',
            *keys,
            f'<svg x="{left}" y="{TOP}" width="{chart.width}" height="{chart.height}" overflow="visible">',
            chart.body,
            "</svg>",
            "</svg>",
            "",
        ]
    )


def placed(chart: Chart) -> str:
    """Return the chart as HTML for a page that includes :func:`style`. The chart fills the width; its legend is above it."""
    left, right, below = chart.margins
    return (
        f'{legend(chart.legend)}<div class="frame" style="padding:0 {right}px {below}px {left}px">'
        f'<svg class="chart" width="100%" height="{chart.height}" overflow="visible" role="img" aria-label="{escaped(chart.title)}">'
        f"{chart.body}</svg></div>"
    )


def legend(keys: Iterable[tuple[str, str, str]]) -> str:
    """Return the legend of a chart as a list."""
    items = "".join(
        f'<li><span aria-hidden="true" style="color:{colour}">{mark}</span> {escaped(name)}</li>'
        for mark, name, colour in keys
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def percent(value: float) -> str:
    """Return a position in percent without trailing zeros, e.g. ``12.5%``."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"


def label(
    x: float, y: float, text: str, anchor: str = "middle", *, dx: float = 0, dy: float = 0, kind: str = "soft"
) -> str:
    """Return an SVG text. The text is placed at ``x`` and ``y`` percent of the plot, and moved from there by ``dx`` and ``dy`` pixels."""
    moved = (f' dx="{dx:g}"' if dx else "") + (f' dy="{dy:g}"' if dy else "")
    return (
        f'<text class="{kind}" x="{percent(x)}" y="{percent(y)}"{moved} text-anchor="{anchor}">{escaped(text)}</text>'
    )


def line(x: float, y: float, to_x: float, to_y: float, width: float = 0, dashes: str = "") -> str:
    """Return an SVG line between two points, in percent of the plot. If ``width`` is 0, the line has the style of grid lines."""
    kind = f'class="rule" stroke-width="{width:g}"' if width else 'class="grid"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {kind}{dashed} x1="{percent(x)}" y1="{percent(y)}" x2="{percent(to_x)}" y2="{percent(to_y)}"/>'


def y_ticks(ticks: Iterable[tuple[float, str]]) -> list[str]:
    """Return the grid lines and labels of the vertical axis. Each tick has a position, in percent from the bottom, and a text."""
    return [
        element
        for at, text in ticks
        for element in (line(0, 100 - at, 100, 100 - at), label(0, 100 - at, text, "end", dx=-8, dy=4))
    ]


def x_ticks(ticks: Iterable[tuple[float, str]]) -> list[str]:
    """Return the grid lines and labels of the horizontal axis. Each tick has a position, in percent from the left, and a text."""
    return [element for at, text in ticks for element in (line(at, 0, at, 100), label(at, 100, text, dy=16))]


def areas(edges: Sequence[float], layers: Sequence[tuple[str, str, Sequence[float]]], stepped: bool) -> str:
    """Return stacked areas. Each layer has a name, a colour and heights; the lowest layer comes first.

    ``edges`` are the x positions of the heights. With ``stepped``, each height reaches from one edge to the next edge. So there is one more
    edge than there are heights. All numbers are percentages of the plot. SVG paths cannot use percentages. So the paths get their own
    viewport of 1000 x 1000 units, which is stretched to the size of the plot.
    """
    tops: list[tuple[str, str, list[float]]] = []
    below = [0.0] * len(layers[0][2]) if layers else []
    for name, colour, heights in layers:
        below = [sum(pair) for pair in zip(below, heights, strict=True)]
        tops.append((name, colour, below))
    # Every area extends down to the axis. Draw the highest area first. The lower areas then cover it, except for its own band.
    paths = "".join(
        f'<path class="area" fill="{colour}" d="{_outline(edges, heights, stepped)}"><title>{escaped(name)}</title></path>'
        for name, colour, heights in reversed(tops)
    )
    return f'<svg width="100%" height="100%" viewBox="0 0 1000 1000" preserveAspectRatio="none">{paths}</svg>'


def _outline(edges: Sequence[float], heights: Sequence[float], stepped: bool) -> str:
    """Return the outline of an area that extends down to the axis, as an SVG path."""
    points, last = [f"M{_pixel(edges[0])} 1000"], None
    for i, height in enumerate(heights):
        x, y = _pixel(edges[i]), _pixel(100 - height)
        if not stepped:
            points.append(f"L{x} {y}")
        elif y != last:
            points.append(f"H{x}V{y}" if i else f"V{y}")
        last = y
    return "".join([*points, f"H{_pixel(edges[-1])}" if stepped else "", "V1000Z"])


def _pixel(value: float) -> str:
    return f"{10 * value:.1f}".removesuffix(".0")


def without_zeros(text: str) -> str:
    """Remove trailing zeros from a number with a unit: ``2.00 MiB -> 2 MiB``."""
    return re.sub(r"\.0+(?= |$)|(\.\d*?[1-9])0+(?= |$)", r"\1", text)


def ink_on(colour: str) -> str:
    """Return dark or white, whichever is legible as text on this colour. It depends on the colour's luminance (WCAG 2.2)."""
    weights = zip((1, 3, 5), (0.2126, 0.7152, 0.0722), strict=True)
    light = sum(weight * (int(colour[i : i + 2], 16) / 255) ** 2.2 for i, weight in weights)
    return "#1b1f27" if light > 0.2 else "#ffffff"
