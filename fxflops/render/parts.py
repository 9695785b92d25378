"""Split a model into parts, to show where its cost is. A part is a group of modules of one kind.

The split starts with the whole model as one part. Opening a part replaces it by the parts inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..records import grouped
from ..units import percent
from .data import TreeRow
from .fold import common_name, own_row, pattern
from .text import SHORTEST, cells, elide, plain

LARGE, NEARLY_ALL, A_PART = 50.0, 85.0, 15.0
"""Minimum shares of cost in percent. LARGE: a single module with this share of the model's cost may be opened. NEARLY_ALL: if one kind of
module inside a part has this share of the part's cost, the part is only a wrapper of this kind. A_PART: if several kinds inside a part
have this share each, the part's cost splits between these kinds."""
ALIKE = 2
"""Numbered blocks of the same class are of one kind if no block is more than this many times as large as another block."""
CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


class Part(NamedTuple):
    """A group of modules of one kind, or the work of such modules outside their children.

    ``modules`` are the modules. ``row`` has the class of the modules, their path with ``*`` in place of numbers, and the sums of their
    costs. If the part is work outside the children of modules, ``modules`` is empty and ``row.cls`` is the name of the work.
    """

    row: TreeRow
    modules: Sequence[TreeRow] = ()

    @property
    def label(self) -> str:
        """The path, the class and the number of modules, e.g. ``blocks.*.mlp  Mlp (x12)``."""
        return self.within(None)

    def within(self, room: int | None) -> str:
        """Return the label with at most ``room`` cells. The path is shortened if needed, but to no fewer cells than :data:`SHORTEST`."""
        count, path = len(self.modules), plain(self.row.path)
        said = plain(self.row.cls) + (f" (x{count})" if count > 1 else "")
        if room is not None:
            path = elide(path, max(room - cells(said) - 2, SHORTEST))
        return "  ".join(filter(None, [path, said]))

    @property
    def kind(self) -> str:
        """A key that is equal for parts that do the same work. The key is the class of the modules or, if the class is only a container,
        the label."""
        return self.row.cls if self.modules and self.row.cls not in CONTAINERS else self.label


def parts_of(root: TreeRow) -> list[Part]:
    """Return the parts of a model, in any order; [] if the model has no submodules.

    A part is split into its children if it is only a wrapper of another part, or if it is a list of blocks. A large or repeated part is
    also split into its children if modules of several classes share its cost. For example, an MLP of linear layers stays one part. Cost
    means FLOPs, or time if nothing was counted.
    """
    by_time, parts = not root.flops, []
    whole = Part(root, (root,))
    opened = [whole] if root.children else []
    while opened:
        part = opened.pop()
        inside = [*_inside(part)]
        if part is whole or _is_opened(part, inside, root, by_time):
            opened += inside
        else:
            parts.append(part)
    return parts


def _inside(part: Part) -> Iterator[Part]:
    """Yield a part for each kind of child modules in a part, then a part for the work outside the children."""
    kinds: dict[tuple[str, str, int], list[TreeRow]] = {}
    names_like: dict[
        str, set[str]
    ] = {}  # for each pattern: the names of all children, including children that were not called
    for module in part.modules:
        latest: dict[tuple[str, str], tuple[int, TreeRow]] = {}
        for child in module.children:
            if not child.cls:  # work outside the model: a number in its name counts calls and is not an index
                kinds.setdefault((child.name, "", 0), []).append(child)
                continue
            name = pattern(child.name)
            names_like.setdefault(name, set()).add(child.name)
            if not child.was_called:
                continue
            key = name, child.cls
            number, other = latest.get(key, (0, child))
            latest[key] = number, other = (number, other) if _are_alike(other, child) else (number + 1, child)
            kinds.setdefault((*key, number), []).append(child)
    for (name, cls, _), modules in kinds.items():
        if not cls:
            yield Part(_together(modules, "", name))
            continue
        names = [*dict.fromkeys(module.name for module in modules)]
        last = names[0] if len(names) == 1 else name if names_like[name] == {*names} else common_name(names)
        path = f"{part.row.path}.{last}".lstrip(".") if len(modules) > 1 else modules[0].path
        yield Part(_together(modules, path, cls), modules)
    own = [row for row in map(own_row, part.modules) if row is not None]
    if own:
        yield Part(_together(own, part.row.path, own[0].name))


def _are_alike(a: TreeRow, b: TreeRow) -> bool:
    """Return whether two modules have the same size. Two numbered blocks are treated as equal in size if their sizes differ at most by the
    factor ALIKE, because the first block often has an extra layer."""
    factor = ALIKE if a.children and b.children and a.name[-1:].isdecimal() else 1
    sizes = [(a.params or 0, b.params or 0), (a.flops, b.flops)]
    return all(max(pair) <= factor * min(pair) for pair in sizes)


def _together(rows: Sequence[TreeRow], path: str, cls: str) -> TreeRow:
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return TreeRow(
        "",
        cls,
        path,
        calls=sum(row.calls for row in rows),
        params=sum(row.params or 0 for row in rows),
        macs=sum(row.macs for row in rows),
        flops=sum(row.flops for row in rows),
        missing=sum(row.missing for row in rows),
        seconds=sum(seconds) if seconds else None,
    )


def _is_opened(part: Part, inside: Sequence[Part], root: TreeRow, by_time: bool) -> bool:
    def percents(of: TreeRow, rows: Iterable[TreeRow]) -> list[float]:
        whole, *some = [(row.seconds or 0.0) if by_time else row.flops for row in (of, *rows)]
        return [percent(each, whole) or 0.0 for each in some]

    (large,) = percents(root, [part.row])
    kinds = grouped((each.kind, each) for each in inside if each.modules)
    shares = {kind: sum(percents(part.row, (each.row for each in same))) for kind, same in kinds.items()}
    of_modules = {kind for kind, same in kinds.items() if same[0].modules[0].children}
    is_container = part.row.cls in CONTAINERS and len(part.modules) == 1
    if any(shares[kind] >= (A_PART if is_container else NEARLY_ALL) for kind in of_modules):
        return True
    splits = sum(share >= A_PART for share in shares.values()) > 1
    return (is_container or splits) and (len(part.modules) > 1 or large >= LARGE)
