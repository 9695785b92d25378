"""The modules of a model as an icicle, an SVG picture: the more FLOPs or time, the higher a tile; inside one another from the left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import units
from .charts import HEIGHT, WIDTH, drawing
from .data import TreeRow
from .fold import Fold, folded, own_row
from .palette import FAMILIES, OTHER
from .text import elide, escaped

EDGE, TOP = 12, 58
LETTER = 7.2
MOST_LEVELS = 6
READABLE = 13
"""The least height of a tile with a name, in pixels; a tile below a tenth of it is not drawn."""


class Tile(NamedTuple):
    """Identical modules, or what a module does itself, with the sum of their values."""

    name: str
    row: TreeRow
    value: float
    inside: tuple[Tile, ...]

    @property
    def levels(self) -> int:
        return 1 + max((tile.levels for tile in self.inside), default=0)

    @property
    def family(self) -> tuple[str, str]:
        """The family of its operators, and the colour of that."""
        op = next(iter(self.row.own_ops), "")
        return next(((name, colour) for name, colour, names in FAMILIES if re.search(names, op)), OTHER)


def icicle_svg(
    root: TreeRow, value: Callable[[TreeRow], float], show: Callable[[float], str], about: str, origin: str
) -> str:
    """Return the picture; ``value`` gives that of a module, ``show`` makes it readable."""
    tile = _tile(Fold("", root), value, 1)
    levels = min(tile.levels, MOST_LEVELS)
    shown = [
        *_drawn(
            tile, EDGE, TOP, (WIDTH - 2 * EDGE) / levels, levels, (HEIGHT - TOP - EDGE) / (tile.value or 1), tile.value
        )
    ]
    legend = dict.fromkeys(tile.family for tile, _ in shown if not tile.inside)
    return drawing(f"{about} {show(tile.value)}", origin, legend, (element for _, element in shown))


def _tile(fold: Fold, value: Callable[[TreeRow], float], times: int) -> Tile:
    """Return the tile of so many times these modules; one that holds all that is in it shares its tile."""
    times *= fold.count
    own = own_row(fold.row)
    rows = [*folded(fold.row.children), *([Fold(own.name, own)] if own else [])]
    inside = tuple(tile for each in rows if (tile := _tile(each, value, times)).value)
    name = (fold.name or fold.row.cls) + (f" x{fold.count}" if fold.count > 1 else "")
    if len(inside) == 1 and fold.name:
        return inside[0]._replace(name=f"{name}.{inside[0].name}")
    return Tile(name, fold.row, times * value(fold.row), inside)


def _drawn(
    tile: Tile, x: float, y: float, width: float, levels: int, scale: float, whole: float
) -> Iterator[tuple[Tile, str]]:
    """Yield the tiles, each with its element."""
    height = tile.value * scale
    if height < READABLE / 10:
        return
    share = f"{units.percent(tile.value, whole) or 0:.1f}%"
    kind = 'class="module"' if tile.inside else f'fill="{tile.family[1]}"'
    ink = "" if tile.inside else f' style="fill:{_ink(tile.family[1])}"'
    text = f"{elide(tile.name, int(width / LETTER) - len(share) - 4)} · {share}"
    label = (
        f'<text x="{x + 6:.1f}" y="{y + height / 2 + 4:.1f}"{ink}>{escaped(text)}</text>' if height >= READABLE else ""
    )
    yield (
        tile,
        f'<g><title>{escaped(tile.name)}  {share}</title><rect {kind} x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
        f'height="{max(height - 1, 0.5):.1f}"/>{label}</g>',
    )
    for each in tile.inside if levels > 1 else ():
        yield from _drawn(each, x + width, y, width, levels - 1, scale, whole)
        y += each.value * scale


def _ink(colour: str) -> str:
    """Return the colour of letters that are legible on this one, by its luminance (WCAG 2.2)."""
    weights = zip((1, 3, 5), (0.2126, 0.7152, 0.0722), strict=True)
    light = sum(weight * (int(colour[i : i + 2], 16) / 255) ** 2.2 for i, weight in weights)
    return "#1b1f27" if light > 0.2 else "#ffffff"
