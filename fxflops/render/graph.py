"""A model's graph as an SVG picture. Modules are nested boxes, coloured by cost; tensors are lines between the boxes.

The children of a module are arranged in layers. Each child is below all children whose tensors it uses. If a tensor skips a layer, its line
runs in a lane on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..units import percent
from .boxes import Box
from .text import escaped, plain

LETTER, LINE, PAD, GAP, LANE = 6.4, 15, 12, 34, 12
"""In pixels: the mean width of a letter, the height of a line of text, the space around boxes, the space between layers, and the space
between lanes."""
MOST_LETTERS = 44
HUE = "#e8590c"
STYLE = """
text{font-size:12px;font-family:system-ui,Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1b1f27}.soft{fill:#5c6573;font-size:10.5px;paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-opacity:.9}.back{fill:#fff}
.box{stroke:#8d95a1}.module{fill:#8d95a1;fill-opacity:.07;stroke:#8d95a1}.edge{fill:none;stroke:#8d95a1;stroke-width:1.3}
@media (prefers-color-scheme:dark){text{fill:#e7eaf0}.soft{fill:#9aa4b3;stroke:#12151b}.back{fill:#12151b}}
"""


@dataclass
class _Placed:
    """A box with its size, its position in the box around it, and the boxes and lines inside it."""

    box: Box
    width: float
    height: float
    x: float = 0
    y: float = 0
    inside: list[_Placed] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """SVG elements of the edges inside the box, in coordinates that start at the box's corner."""

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


def graph_svg(root: Box, about: str, origin: str, cost: str, show: Callable[[float], str]) -> str:
    """Return the picture of the boxes as SVG.

    ``about`` describes the run, and ``origin`` is the provenance of the run. ``cost`` is the name of the cost that colours the boxes, and
    ``show`` formats a value of this cost.
    """
    placed = _placed(root, root.cost, show)
    most = max((each.cost for each in root.walk() if not each.children), default=0)
    head = f"{about} · {cost} {show(root.cost)}"
    width, height = max(placed.width, LETTER * len(head) + 2 * PAD), placed.height + 62
    scale = f"darkest: {percent(most, root.cost) or 0:.1f}% of {cost}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img">',
            f"<title>{escaped(head)}</title><desc>{escaped(origin)}</desc><style>{STYLE}</style>",
            f'<defs><linearGradient id="scale"><stop stop-color="{HUE}" stop-opacity="0"/><stop offset="1" stop-color="{HUE}" stop-opacity=".8"/></linearGradient>',
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#8d95a1"/></marker></defs>',
            f'<rect class="back" width="100%" height="100%"/><text x="{PAD}" y="20">{escaped(head)}</text>',
            f'<rect x="{PAD}" y="29" width="90" height="9" fill="url(#scale)" stroke="#8d95a1" stroke-width=".5"/>'
            f'<text class="soft" x="{PAD + 98}" y="37">{escaped(scale)}</text>',
            f'<g transform="translate(0 50)">{"".join(_drawn(placed, root.cost, most, show))}</g>',
            "</svg>",
            "",
        ]
    )


def _texts(box: Box, whole: float, show: Callable[[float], str]) -> tuple[str, str]:
    """Return the two texts of a box: its name with its class, and its cost."""
    cls = "" if box.row is None else box.row.cls
    title = "  ".join(filter(None, [box.name if box.row is None or box.row.path else "", cls]))
    title = plain(title) + (f"  ×{box.count}" if box.count > 1 else "")
    said = f"{show(box.cost)} · {percent(box.cost, whole) or 0:.1f}%" if box.kind in ("module", "function") else ""
    return title if len(title) <= MOST_LETTERS else title[: MOST_LETTERS - 1] + "…", said


def _placed(box: Box, whole: float, show: Callable[[float], str]) -> _Placed:
    """Compute the size of a box. Also compute the sizes and positions of all boxes inside it."""
    title, said = _texts(box, whole, show)
    if not box.children:
        letters = max(len(title), 0.9 * len(said))
        return _Placed(box, max(64, LETTER * letters + 2 * PAD), (2 if said else 1) * LINE + 10)
    inside = [_placed(child, whole, show) for child in box.children]
    layer_of = _layers(box)
    layers: list[list[_Placed]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for each in inside:
        layers[layer_of[each.box]].append(each)
    widest = max(sum(each.width for each in layer) + PAD * (len(layer) - 1) for layer in layers)
    widest = max(widest, LETTER * (len(title) + 3 + 0.9 * len(said)))
    y: float = LINE + PAD + GAP * 0.6
    for layer in layers:
        x = PAD + (widest - sum(each.width for each in layer) - PAD * (len(layer) - 1)) / 2
        for each in layer:
            each.x, each.y = x, y
            x += each.width + PAD
        y += max(each.height for each in layer) + GAP
    placed = _Placed(box, widest + 2 * PAD, y - GAP * 0.4, inside=inside)
    _route(placed, layer_of, [max(each.bottom for each in layer) for layer in layers])
    return placed


def _layers(box: Box) -> dict[Box, int]:
    """Return the layer of each child. Among the earlier children whose tensors a child uses, find the lowest; the child is one layer below it."""
    order = {child: i for i, child in enumerate(box.children)}
    layer = dict.fromkeys(box.children, 0)
    for child in box.children:
        before = (a for a, b in box.edges if b is child and a is not None and order[a] < order[child])
        layer[child] = max((layer[a] + 1 for a in before), default=0)
    return layer


def _route(placed: _Placed, layer_of: dict[Box, int], ends: list[float]) -> None:
    """Draw the edges inside a box. Widen the box by the lanes for edges that skip a layer."""
    where = {each.box: each for each in placed.inside}
    top, bottom, middle = LINE + PAD, placed.height, placed.width / 2
    right = max(each.x + each.width for each in placed.inside)
    lanes: list[float] = []  # for each lane, the y position from which it is free again
    said: dict[Box, str] = {}
    for a, b in sorted(placed.box.edges, key=lambda ab: layer_of.get(ab[0], -1) if ab[0] else -1):
        source, target = where.get(a) if a else None, where.get(b) if b else None
        first, last = layer_of[a] if a else -1, layer_of[b] if b else len(ends)
        sx, sy = (middle, top) if source is None else (source.middle, source.bottom)
        tx, ty = (middle, bottom) if target is None else (target.middle, target.y)
        if last - first == 1:
            bend = (ty - sy) / 2
            path = f"M{sx:.0f} {sy:.0f}C{sx:.0f} {sy + bend:.0f} {tx:.0f} {ty - bend:.0f} {tx:.0f} {ty:.0f}"
        else:
            begin, end = sorted((sy, ty))
            lane = next((i for i, free in enumerate(lanes) if free <= begin), len(lanes))
            lanes[lane:] = [end, *lanes[lane + 1 :]]
            x = right + LANE * (lane + 1.2)
            down = ends[first] + GAP * 0.3 if source is not None and last > first else sy + GAP * 0.3
            path = f"M{sx:.0f} {sy:.0f}C{sx:.0f} {down + 6:.0f} {x:.0f} {down - 6:.0f} {x:.0f} {down + 14:.0f}V{ty - 20:.0f}C{x:.0f} {ty - 6:.0f} {tx:.0f} {ty - 18:.0f} {tx:.0f} {ty:.0f}"
        placed.lines.append(f'<path class="edge" d="{path}" marker-end="url(#tip)"/>')
        if a is not None and b is not None:
            said.setdefault(a, ", ".join(filter(None, placed.box.edges[a, b])))
    for box, tensors in said.items():
        at = where[box]
        label = plain(tensors if len(tensors) <= MOST_LETTERS else tensors[: MOST_LETTERS - 1] + "…")
        placed.lines.append(
            f'<text class="soft" x="{at.middle - 5:.0f}" y="{at.bottom + 13:.0f}" text-anchor="end">{escaped(label)}</text>'
        )
    placed.width += LANE * (len(lanes) + 0.6 * bool(lanes))


def _drawn(placed: _Placed, whole: float, most: float, show: Callable[[float], str]) -> Iterable[str]:
    box, size = placed.box, f'width="{placed.width:.0f}" height="{placed.height:.0f}"'
    title, said = _texts(box, whole, show)
    yield f'<g transform="translate({placed.x:.0f} {placed.y:.0f})"><title>{escaped(f"{title} {said}")}</title>'
    if box.children:
        yield f'<rect class="module" rx="7" {size}/><text x="{PAD}" y="{LINE + 3}">{escaped(title)} <tspan class="soft">{escaped(said)}</tspan></text>'
        yield from placed.lines
        for each in placed.inside:
            yield from _drawn(each, whole, most, show)
    else:
        depth = 0.8 * (box.cost / most) ** 0.5 if most and said else 0
        yield f'<rect class="back" rx="5" {size}/><rect class="box" rx="5" {size} fill="{HUE}" fill-opacity="{depth:.3f}"/>'
        for i, line in enumerate(filter(None, (title, said))):
            yield f'<text x="{placed.width / 2:.0f}" y="{LINE * (i + 1) + 1}" text-anchor="middle">{escaped(line)}</text>'
    yield "</g>"
