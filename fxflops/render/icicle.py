"""The modules of a model as an icicle chart. The height of a tile shows its FLOPs or time. Submodules are to the right of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from .. import units
from .charts import SQUARE, Chart, percent
from .fold import common_name
from .page_data import Metric, Tile
from .palette import FAMILIES, OTHER, family
from .text import escaped

HEIGHT, MARGINS = 420, (12, 12, 12)
MOST_LEVELS = 6
READABLE, LEVEL, VISIBLE = 15, 6, 1.3
"""Minimum heights of a tile in pixels. READABLE: the tile shows its name. LEVEL: the chart is deep enough to show the tile. VISIBLE: the
tile is drawn."""
NEARLY_ALL = 0.999
"""A module with at least this share of its parent's value is drawn in place of the parent, with both names."""
SHOW: Mapping[str, Callable[[float], str]] = {"count": units.count, "s": units.seconds, "B": units.size}


@dataclass(frozen=True)
class Block:
    """One tile, or several tiles of identical consecutive modules. ``own`` has the sum of the tiles' values for each metric."""

    tile: Tile
    name: str
    times: int
    calls: int
    own: Mapping[str, float]
    inside: tuple[Block, ...]


@dataclass(frozen=True)
class _Drawn:
    """A block as it is drawn. ``op`` determines its colour. A block with nearly all of its parent's value also stands for the parent."""

    block: Block
    name: str
    op: str
    value: float
    inside: tuple[_Drawn, ...]


def blocks(tiles: Sequence[Tile], metrics: Sequence[Metric]) -> Block:
    """Return the block of the root. Inside it, identical consecutive modules share a block.

    Modules are identical if they have the same class, the same counts and identical children. Their times and memory may differ.
    """
    inside: list[list[int]] = [[] for _ in tiles]
    for i, tile in enumerate(tiles):
        if tile.parent is not None:
            inside[tile.parent].append(i)
    counts = [metric.name for metric in metrics if metric.kind == "count"]
    kinds: dict[object, int] = {}
    kind_of = [0] * len(tiles)
    for i, tile in reversed([*enumerate(tiles)]):
        # Ignore the name of an "(own)" tile: it contains the slowest operator, which may differ between identical modules.
        children = tuple((tiles[child].cls and tiles[child].name, kind_of[child]) for child in inside[i])
        key = tile.cls, tile.calls, tuple(tile.own.get(name, 0) for name in counts), children
        kind_of[i] = kinds.setdefault(key, len(kinds))

    def merged(same: Sequence[int]) -> Block:
        """Return the block for several tiles, which are at the same position in identical modules."""
        first = tiles[same[0]]
        names = [*dict.fromkeys(tiles[i].name for i in same)]
        own: dict[str, float] = {}
        for i in same:
            for name, value in tiles[i].own.items():
                own[name] = own.get(name, 0) + value
        children = []
        for _, group in groupby(range(len(inside[same[0]])), lambda at: _group(tiles, inside[same[0]][at], kind_of)):
            positions = [*group]
            children.append(merged([inside[i][at] for i in same for at in positions]))
        name = common_name(names) if first.cls else first.name
        return Block(first, name, len(same), sum(tiles[i].calls for i in same), own, tuple(children))

    return merged([0])


def _group(tiles: Sequence[Tile], i: int, kind_of: Sequence[int]) -> tuple[int, int]:
    """Return a key for grouping tiles. Identical modules have the same key. Work outside modules has a key of its own."""
    return kind_of[i], -1 if tiles[i].cls else i


def icicle_chart(root: Block, metric: Metric, names: Sequence[str], about: str, most_tiles: int | None = None) -> Chart:
    """Return the chart of a metric. ``names`` are the names of the values to add up, one for each phase.

    With ``most_tiles``, the chart has about this number of tiles. Some tiles are too small to see, or belong to modules that are too deep
    to show. A script shows such tiles when the user opens a module.
    """
    drawn = _drawn(root, names)
    if drawn is None:
        return Chart(about, (), "", HEIGHT, MARGINS)
    places = [*_places(drawn, 0, 0.0, 100.0 / drawn.value)]
    levels = min(1 + max(depth for _, depth, _, height in places if height * HEIGHT / 100 >= LEVEL), MOST_LEVELS)
    if most_tiles is None:
        places = [place for place in places if _is_visible(place, levels)]
    else:
        least = sorted((height for *_, height in places), reverse=True)[:most_tiles][-1]
        places = [place for place in places if place[3] >= least][: 2 * most_tiles]
    used = {family(each.op) for each, depth, *_ in places if not each.inside}
    legend = [(SQUARE, name, colour) for name, colour, _ in FAMILIES if (name, colour) in used]
    legend += [(SQUARE, *OTHER)] if OTHER in used else []
    show = SHOW[metric.kind]
    body = "".join(_tile(place, levels, drawn.value, show, most_tiles is not None) for place in places)
    return Chart(about, legend, body, HEIGHT, MARGINS)


def total(root: Block, names: Sequence[str]) -> float:
    """Return the sum of the values with these names, over a block and all blocks inside it."""
    return sum(root.own.get(name, 0) for name in names) + sum(total(each, names) for each in root.inside)


def _drawn(block: Block, names: Sequence[str], is_root: bool = True) -> _Drawn | None:
    """Return the block as it is drawn; None if its value is 0."""
    inside = [each for child in block.inside if (each := _drawn(child, names, is_root=False)) is not None]
    value = sum(block.own.get(name, 0) for name in names) + sum(each.value for each in inside)
    if value <= 0:
        return None
    # If one module has nearly all of the value, omit its siblings, which would be too small to see.
    inside = [each for each in inside if each.block.tile.cls and each.value > NEARLY_ALL * value][:1] or inside
    if len(inside) == 1 and inside[0].value >= NEARLY_ALL * value:
        [only] = inside
        if not only.block.tile.cls:
            return _Drawn(block, block.name, only.op, value, only.inside)
        name = block.name if is_root else f"{block.name}.{only.name}"
        return _Drawn(only.block, name, only.op, value, only.inside)
    return _Drawn(block, block.name, block.tile.op, value, tuple(inside))


Place = tuple[_Drawn, int, float, float]
"""A tile, its depth, and the position of its upper edge and its height in percent of the chart."""


def _places(drawn: _Drawn, depth: int, y: float, scale: float) -> Iterator[Place]:
    """Yield the place of a block. Then yield the places of all blocks inside it, from top to bottom."""
    yield drawn, depth, y, drawn.value * scale
    for each in drawn.inside:
        yield from _places(each, depth + 1, y, scale)
        y += each.value * scale


def _is_visible(place: Place, levels: int) -> bool:
    return place[1] < levels and place[3] * HEIGHT / 100 >= VISIBLE


def _tile(place: Place, levels: int, whole: float, show: Callable[[float], str], is_script: bool) -> str:
    """Return a tile as a nested SVG element. If a name is wider than the tile, the element cuts it off."""
    drawn, depth, y, height = place
    kind = "module" if drawn.inside else f"f{_number(drawn.op)}"
    share = f"{100 * drawn.value / whole:.1f}%"
    texts = (
        f'<text x="6" y="50%" dy="4">{escaped(_label(drawn))}</text> '
        f'<text class="share" x="100%" y="50%" dx="-5" dy="4">{share}</text>'
    )
    is_low = height * HEIGHT / 100 < READABLE
    # The script needs the tile's position in the whole chart.
    # The script also needs the texts of small tiles, because these tiles grow when the user opens a module.
    data = f' data-at="{depth} {y:.6g} {height:.6g}"' if is_script else ""
    hidden = ' display="none"' if is_script and not _is_visible(place, levels) else ""
    width = 100 / levels
    return (
        f'<svg class="tile {kind}{" low" if is_low else ""}" x="{percent(width * depth)}" y="{percent(y)}" width="{percent(width)}" '
        f'height="{percent(height)}"{data}{hidden}><title>{_about(drawn, whole, show)}</title>'
        f'<rect width="100%" height="100%"/>{texts if is_script or not is_low else ""}</svg>'
    )


def _number(op: str) -> int:
    """Return the number of the operator's family. The CSS class of the family's tiles contains this number."""
    families = [OTHER, *((name, colour) for name, colour, _ in FAMILIES)]
    return families.index(family(op))


def _label(drawn: _Drawn) -> str:
    return drawn.name + (f" x{drawn.block.times:,}" if drawn.block.times > 1 else "")


def _about(drawn: _Drawn, whole: float, show: Callable[[float], str]) -> str:
    """Return the lines of a tile's tooltip."""
    block, value = drawn.block, drawn.value
    path = block.tile.path or block.name
    exact = f" ({value:,})" if isinstance(value, int) and value >= 1000 else ""
    lines = [
        path + (f" and {block.times - 1:,} like it" if block.times > 1 and block.tile.path else ""),
        (block.tile.cls or block.name) + (f" x{block.times:,}" if block.times > 1 else ""),
        f"{show(value)}{exact}, {100 * value / whole:.1f}% of all",
        *([f"{show(value / block.times)} each on average"] if block.times > 1 else []),
        *([f"called {block.calls:,} times"] if block.calls > 1 else []),
    ]
    return "\n".join(map(escaped, lines))
