"""The parts that the cost of a model splits into: groups of modules of one kind, found by opening modules from the root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..records import grouped
from ..units import percent
from .data import TreeRow
from .fold import common_name, own_row, pattern
from .text import SHORTEST, cells, elide, plain

LARGE, NEARLY_ALL, A_PART = 50.0, 85.0, 15.0
"""In percent. LARGE: the share of the model's cost from which a single module may be opened. NEARLY_ALL: the share of a part's
cost from which it merely wraps a kind inside it. A_PART: the share from which its cost splits into that kind."""
ALIKE = 2
"""Numbered blocks are of one kind if they have the same class and none is more than this many times as large as another."""
CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


class Part(NamedTuple):
    """Modules of one kind, or their work outside their children.

    ``row`` has their class, their path with ``*`` for numbers, and their sums; ``modules`` are the modules themselves. For
    work outside children ``modules`` is empty and ``row.cls`` is the name of the work.
    """

    row: TreeRow
    modules: Sequence[TreeRow] = ()

    @property
    def label(self) -> str:
        """The path, the class and the number: ``blocks.*.mlp  Mlp (x12)``."""
        return self.within(None)

    def within(self, room: int | None) -> str:
        """Return the label with its path shortened to fit into ``room`` cells, but to no less than :data:`SHORTEST`."""
        count, path = len(self.modules), plain(self.row.path)
        said = plain(self.row.cls) + (f" (x{count})" if count > 1 else "")
        if room is not None:
            path = elide(path, max(room - cells(said) - 2, SHORTEST))
        return "  ".join(filter(None, [path, said]))

    @property
    def kind(self) -> str:
        """A key shared by modules that do the same: their class, unless it is just a container."""
        return self.row.cls if self.modules and self.row.cls not in CONTAINERS else self.label


def parts_of(root: TreeRow) -> list[Part]:
    """Return the parts of a model, in any order; [] if it has no submodules.

    A part is opened if it only wraps another or lists blocks. A large or repeated part is also opened if its cost splits
    between modules of several classes; so an MLP of linear layers stays one part. Cost is FLOPs, or time if nothing is counted.
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
    """Yield the kinds of modules in a part, then its own work."""
    kinds: dict[tuple[str, str, int], list[TreeRow]] = {}
    names_like: dict[
        str, set[str]
    ] = {}  # the names of all children by pattern, including children that were not called
    for module in part.modules:
        latest: dict[tuple[str, str], tuple[int, TreeRow]] = {}
        for child in module.children:
            if not child.cls:  # work outside the model: a number in its name is a number of calls, not an index
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
    """Return True for modules of equal size; numbered blocks may differ, as the first often has an extra layer."""
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
