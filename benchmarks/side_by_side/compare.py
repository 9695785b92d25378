"""Find the differences between the facts of two sides, down to the first call that differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, NamedTuple

FOLLOWS = {
    "charges": ["calls"],
    "totals": ["calls", "memory"],
    "by_module": ["calls", "charges", "scopes", "modules"],
    "by_operator": ["calls", "charges"],
    "by_step": ["calls", "steps"],
    "missing": ["calls"],
    "remarks": ["calls"],
    "traffic": ["calls"],
    "memory": ["timeline"],
    "live_at_peak": ["timeline"],
    "classes": ["calls", "scopes"],
}
"""Parts whose contents follow from other parts. If one of the other parts differs, this part is not reported."""
WORDS = (".rule.counts", ".rule.formula", "remarks[]", "run.trace_reason")
"""Places that hold sentences and names of functions. They are not compared, because their wording changes often. The costs and facts
that they describe are compared elsewhere."""
LONGEST, MOST = 300, 8


class Difference(NamedTuple):
    """A difference: the way of counting, the place in its facts, and both values."""

    way: str
    place: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.way}: {self.place}: {self.old} -> {self.new}"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Return the differences between the facts of two sides. Each part gives the first place of each kind of difference."""
    found = []
    for way in {**old, **new}:
        if way not in old or way not in new:
            found.append(
                Difference(way, "", "reported" if way in old else "none", "reported" if way in new else "none")
            )
            continue
        ours, theirs = old[way], new[way]
        parts = [part for part in {**ours, **theirs} if ours.get(part) != theirs.get(part)]
        if "raises" in parts:
            parts = ["raises"]
        places = {part: _places(part, ours.get(part), theirs.get(part)) for part in parts}
        differing = {part for part, found_places in places.items() if found_places}
        for part in parts:
            if not differing.intersection(FOLLOWS.get(part, ())):
                found += [Difference(way, *each) for each in places[part]]
    return found


def _places(part: str, old: Any, new: Any) -> list[tuple[str, str, str]]:
    """Return the first place of each kind of difference in a part, with both values as text."""
    more: list[tuple[str, str, str]] = []
    if isinstance(old, list) and isinstance(new, list):
        if part == "timeline":
            shorter = _without_repeats(old, new)
            repeats = [len(old) - len(shorter[0]), len(new) - len(shorter[1])]
            old, new = shorter
            if any(repeats):
                more.append(("timeline.repeated", *map(str, repeats)))
        if part == "live_at_peak":  # sorted by text: a single different shape would move all later rows
            old, new = _without(old, new), _without(new, old)
    return more + _first_of_each_kind(_leaves(part, part, old, new))


def _without_repeats(old: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return both timelines without the moments that only one side has and that repeat the live bytes of the moment before."""
    if len(old) == len(new) and all(_key(ours) == _key(theirs) for ours, theirs in zip(old, new, strict=True)):
        return old, new
    found: tuple[list[Any], list[Any]] = [], []
    for what, *bounds in _opcodes(old, new):
        for kept, moments, start, stop in ((found[0], old, *bounds[:2]), (found[1], new, *bounds[2:])):
            kept += [
                moments[i]
                for i in range(start, stop)
                if what == "equal" or not i or moments[i]["live"] != moments[i - 1]["live"]
            ]
    return found


def _opcodes(old: list[Any], new: list[Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the ranges in which both lists have the same items by name, and the ranges in which the items differ."""
    keys = [[_key(item) for item in items] for items in (old, new)]
    yield from SequenceMatcher(None, *keys, autojunk=False).get_opcodes()


def _without(rows: list[Any], others: list[Any]) -> list[Any]:
    """Return the rows left after removing one row for each equal row in ``others``."""
    left = Counter(json.dumps(each) for each in others)
    found = []
    for row in rows:
        text = json.dumps(row)
        if left[text]:
            left[text] -= 1
        else:
            found.append(row)
    return found


def _first_of_each_kind(leaves: Iterator[tuple[str, str, Any, Any]]) -> list[tuple[str, str, str]]:
    kinds: dict[str, tuple[str, str, str]] = {}
    for place, kind, old, new in leaves:
        kinds.setdefault(kind, (place, _text(old), _text(new)))
        if len(kinds) == MOST:
            break
    return [*kinds.values()]


def _leaves(place: str, kind: str, old: Any, new: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield each difference: the place, its kind (the place without numbers, but with the op), and both values."""
    if old == new or kind.endswith(WORDS):
        return
    if (ours := _mapping(old)) != (theirs := _mapping(new)):
        old, new = ours, theirs
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _leaves(f"{place}.{key}", f"{kind}.{key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) != len(new):
        yield from _leaves_of_moved(place, kind, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        for number, (ours, theirs) in enumerate(zip(old, new, strict=True)):
            if kind == "raises" and number == 1:  # the error's message; item 0 is its type
                continue
            yield from _leaves_of_item(place, kind, number, ours, theirs)
    else:
        yield place, kind, old, new


def _leaves_of_item(place: str, kind: str, number: int, old: Any, new: Any) -> Iterator[tuple[str, str, Any, Any]]:
    name = _name(old)
    label = f" {name}" if name else ""
    op = old.get("op", "") if isinstance(old, dict) else ""
    yield from _leaves(f"{place}[{number}]{label}", f"{kind}[]{op}", old, new)


def _leaves_of_moved(place: str, kind: str, old: list[Any], new: list[Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the differences between lists of different lengths: items that only one side has, and changes in matched items."""
    for what, old_from, old_to, new_from, new_to in _opcodes(old, new):
        if what == "equal":
            for number, theirs in zip(range(old_from, old_to), new[new_from:new_to], strict=True):
                yield from _leaves_of_item(place, kind, number, old[number], theirs)
            continue
        ours, theirs = old[old_from:old_to], new[new_from:new_to]
        texts = [
            f"{len(items)} items, here {len(others)}: {_names(others)}"
            for items, others in ((old, ours), (new, theirs))
        ]
        yield f"{place}[{old_from}]", f"{kind}[]+{_name((ours or theirs)[0])}", *texts


def _key(item: Any) -> str:
    """Return the text by which items of both sides are matched."""
    return f"{_name(item)} {item.get('phase', '')}" if _name(item) else json.dumps(item)


def _mapping(value: Any) -> Any:
    """Return a dict for a mapping that a file stores as ``{"dict": [[key, value], ...]}``. Return any other value unchanged."""
    if isinstance(value, dict) and [*value] == ["dict"] and all(isinstance(key, str) for key, _ in value["dict"]):
        return dict(value["dict"])
    return value


def _name(item: Any) -> str:
    """Return the op and the module of a call or of any other item that has them."""
    if not isinstance(item, dict):
        return ""
    what = str(item.get("op") or item.get("cls") or item.get("name") or "")
    where = item.get("path", item.get("module", ""))
    if "complex" in json.dumps([item.get("args"), item.get("out")]):  # complex arithmetic has its own rules
        what = f"complex {what}"
    return f"{what} in {where or '(root)'}" if what else str(where)


def _names(items: list[Any]) -> str:
    return ", ".join(_name(item) or _text(item) for item in items[:3]) + (", ..." if len(items) > 3 else "")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
