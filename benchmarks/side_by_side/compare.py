"""The differences between the facts of two sides, down to the first call that differs."""

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
"""The parts whose contents follow from others: where one of those differs, this one is not told as well."""
WORDS = (".rule.counts", ".rule.formula", "remarks[]", "run.trace_reason")
"""The kinds of places that hold sentences and names of functions. These are reworded often, and the costs and facts behind them are
compared elsewhere."""
LONGEST, MOST = 300, 8


class Difference(NamedTuple):
    """What differs: the way of counting, the place in its facts, and both values."""

    way: str
    place: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.way}: {self.place}: {self.old} -> {self.new}"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Return what differs in the facts of two sides: of each part the first place of each kind of difference."""
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
        if part == "live_at_peak":  # sorted by text: one other shape would move the rows behind it
            old, new = _without(old, new), _without(new, old)
    return more + _first_of_each_kind(_leaves(part, part, old, new))


def _without_repeats(old: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return both timelines without the moments of one side alone after which the live bytes are those of the moment before."""
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
    """Yield where the lists have the same items by name, and where only one of them has some."""
    keys = [[_key(item) for item in items] for items in (old, new)]
    yield from SequenceMatcher(None, *keys, autojunk=False).get_opcodes()


def _without(rows: list[Any], others: list[Any]) -> list[Any]:
    """Return the rows that the others do not have as often."""
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
    """Yield what differs: the place, its kind (the place without numbers, with the op), and both values."""
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
            if kind == "raises" and number == 1:  # the message; the first is the type of the error
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
    """Yield what differs in lists of two lengths: what one side has more, and in the rest, which is but moved, what is in other places."""
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
    """Return by what an item is found again on the other side."""
    return f"{_name(item)} {item.get('phase', '')}" if _name(item) else json.dumps(item)


def _mapping(value: Any) -> Any:
    """Return a mapping that a file has as ``{"dict": [[key, value], ...]}`` by its keys, and any other value as it is."""
    if isinstance(value, dict) and [*value] == ["dict"] and all(isinstance(key, str) for key, _ in value["dict"]):
        return dict(value["dict"])
    return value


def _name(item: Any) -> str:
    """Return the op and the module of a call, or of anything else that has them."""
    if not isinstance(item, dict):
        return ""
    what = str(item.get("op") or item.get("cls") or item.get("name") or "")
    where = item.get("path", item.get("module", ""))
    if "complex" in json.dumps([item.get("args"), item.get("out")]):  # whose arithmetic is counted by other rules
        what = f"complex {what}"
    return f"{what} in {where or '(root)'}" if what else str(where)


def _names(items: list[Any]) -> str:
    return ", ".join(_name(item) or _text(item) for item in items[:3]) + (", ..." if len(items) > 3 else "")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
