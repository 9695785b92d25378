"""A model's graph as nested boxes. A box is a module, or several identical modules. Edges between boxes are the tensors that pass from one
box to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from ..records import prefixes
from .data import GraphNode, TreeRow
from .fold import common_name, fingerprint

MOST_BOXES = 160
"""If the user sets no depth, the graph shows as many levels as possible with at most this many boxes."""
Edges = dict[tuple["Box | None", "Box | None"], dict[str, None]]


@dataclass(eq=False)
class Box:
    """A module, a function call, or an input or output. A box of ``count`` identical modules represents all of them.

    ``edges`` connect the box's ``children``. Each edge has the tensors that pass along it. If the source or the target of an edge is None,
    this end of the edge is outside the box. ``cost`` is the sum of the costs of all nodes in the box.
    """

    name: str
    kind: str
    row: TreeRow | None = None
    count: int = 1
    children: list[Box] = field(default_factory=list)
    edges: Edges = field(default_factory=dict)
    cost: float = 0

    def walk(self) -> Iterator[Box]:
        """Yield this box and all boxes in it."""
        yield self
        for child in self.children:
            yield from child.walk()


def boxes(root: TreeRow, nodes: Sequence[GraphNode], by: str, depth: int | None = None) -> Box:
    """Return the box of the whole model, with ``depth`` levels of modules inside. ``by`` is the name of the cost of each box.

    A node that computes nothing, has no parameters and joins no tensors is omitted. The input edges of an omitted node are connected to its
    output edges.
    """
    if depth is not None:
        return _Builder(root, nodes, depth).build(by)
    depth = max(row.path.count(".") for row in root.walk()) + 1
    while len([*(found := _Builder(root, nodes, depth).build(by)).walk()]) > MOST_BOXES and depth > 1:
        depth -= 1
    return found


class _Builder:
    """Builds the boxes. The builder puts each node of the graph into a box, and each tensor onto an edge between boxes."""

    def __init__(self, root: TreeRow, nodes: Sequence[GraphNode], depth: int) -> None:
        self._nodes = nodes
        self._root = Box(root.cls, "module", root)
        self._depth = depth
        self._modules: dict[str, Box] = {"": self._root}
        self._made: dict[tuple[Box, int], Box] = {}
        self._numbers: dict[str, int] = {}
        self._flops = [*accumulate((node.costs["flops"] for node in nodes), initial=0)]
        self._span: dict[
            str, tuple[int, int]
        ] = {}  # for each module: the index of its first node, and 1 + the index of its last node
        for i, node in enumerate(nodes):
            for path in prefixes(node.path):
                self._span[path] = self._span.get(path, (i, i))[0], i + 1
        self._fold(self._root, [root])

    def _fold(self, box: Box, rows: Sequence[TreeRow]) -> None:
        """Create the boxes inside ``box``, which represents the identical modules ``rows``. Identical consecutive children share a box."""
        children = [sorted(self._called(row), key=lambda child: self._span[child.path]) for row in rows]
        for same in _alike(children, self._follows):
            first = same[0]
            paths = [row.path for row in same[: len(same) // len(rows)]]
            name = first.path.removeprefix(f"{rows[0].path}.").removesuffix(first.name)
            inside = Box(name + common_name([path.rpartition(".")[2] for path in paths]), "module", first, len(paths))
            self._modules |= {row.path: inside for row in same}
            self._fold(inside, same)

    def _called(self, row: TreeRow) -> Iterator[TreeRow]:
        """Yield the child modules that a module calls. A ModuleList, which is never called, is replaced by its items."""
        for child in row.children:
            if child.calls and child.path in self._span:
                yield child
            else:
                yield from self._called(child)

    def _follows(self, a: TreeRow, b: TreeRow) -> bool:
        """Return whether ``b`` is called directly after ``a``, with no computation between them. ``a`` and ``b`` are items of one list of modules."""
        end, begin = self._span[a.path][1], self._span[b.path][0]
        return a.name.isdigit() and b.name.isdigit() and end <= begin and self._flops[end] == self._flops[begin]

    def build(self, by: str) -> Box:
        """Put every node into its box, add the edges between boxes, and return the root box."""
        flows: dict[
            str, dict[str, str]
        ] = {}  # for each node: the nodes whose values it passes on, by name, and these values' tensors
        kept: dict[str, tuple[list[str], list[Box]]] = {}
        for node in self._nodes:
            sources = {name: out for each in node.inputs for name, out in flows.get(each, {}).items()}
            place = self._modules.get(node.path, self._root)
            has_params = node.kind == "module" and place.row is not None and bool(place.row.params)
            joins = len(sources) > 1 and node.op
            if node.kind in ("input", "output") or node.costs["flops"] or has_params or joins:
                names, chain = kept[node.name] = self._chain(node)
                for above, box in pairwise(chain):
                    if box not in above.children:
                        above.children.append(box)
                for source, out in sources.items():
                    _connect(kept[source], (names, chain), out)
                flows[node.name] = {node.name: node.out}
            else:
                chain = [self._modules[path] for path in prefixes(node.path) if path in self._modules]
                flows[node.name] = {source: node.out or out for source, out in sources.items()}
            for box in chain:
                box.cost += node.costs.get(by, 0)
        return _shortened(self._root)

    def _chain(self, node: GraphNode) -> tuple[list[str], list[Box]]:
        """Return the boxes that contain a node, from the root to the node's own box. Also return a name for each of these boxes."""
        names = [path for path in prefixes(node.path) if path in self._modules][: self._depth + 1]
        chain = [self._modules[path] for path in names]
        innermost = chain[-1].row
        if node.kind == "module" or innermost is None or (names[-1] and not innermost.children):
            return names, chain
        if len(names) > self._depth and names[-1]:
            return names, chain
        # Identical modules make the same function calls in the same order. So the number of a call in its module identifies its box.
        number = self._numbers[node.path] = self._numbers.get(node.path, -1) + 1
        name = f"{node.kind} {node.name}" if node.kind == "input" else node.op if node.kind == "function" else node.kind
        own = self._made.setdefault((chain[-1], number), Box(name, node.kind))
        return [*names, f" {node.name}"], [*chain, own]


def _alike(
    children: Sequence[Sequence[TreeRow]], follows: Callable[[TreeRow, TreeRow], bool]
) -> Iterator[list[TreeRow]]:
    """Yield groups of identical modules. ``children`` has the lists of children of several identical modules.

    A group contains the children at one position in all of these lists. The group also contains the children at the following positions, as
    long as they are identical to these children.
    """
    group: list[tuple[TreeRow, ...]] = []
    for same in zip(*children, strict=False):
        if group and not (fingerprint(same[0]) == fingerprint(group[-1][0]) and follows(group[-1][0], same[0])):
            yield [row for rows in zip(*group, strict=True) for row in rows]
            group = []
        group.append(same)
    if group:
        yield [row for rows in zip(*group, strict=True) for row in rows]


def _connect(source: tuple[list[str], list[Box]], target: tuple[list[str], list[Box]], tensor: str) -> None:
    """Add the edges of a tensor. An edge leaves each box that contains only the tensor's source, and enters each box that contains only its
    target."""
    common = 0
    while common < min(len(source[0]), len(target[0])) and source[0][common] == target[0][common]:
        common += 1
    out_of, into = source[1][common - 1 :], target[1][common - 1 :]
    if len(out_of) < 2 or len(into) < 2:
        return  # source and target are in the same box
    if out_of[1] is not into[1]:  # they are the same box if the tensor passes between two identical modules
        out_of[0].edges.setdefault((out_of[1], into[1]), {})[tensor] = None
    for above, box in pairwise(out_of[1:]):
        above.edges.setdefault((box, None), {})[tensor] = None
    for above, box in pairwise(into[1:]):
        above.edges.setdefault((None, box), {})[tensor] = None


def _shortened(box: Box) -> Box:
    """If a module contains only one other module, show the inner module in place of the outer module, with both names."""
    box.children = [_shortened(child) for child in box.children]
    if len(box.children) == 1 and box.children[0].kind == "module" and box.row is not None and box.row.path:
        [inside] = box.children
        box.name, box.row, box.count = f"{box.name}.{inside.name}", inside.row, box.count * inside.count
        box.children, box.edges = inside.children, inside.edges
    return box
