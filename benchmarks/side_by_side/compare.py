"""The differences between the facts of two sides, down to the first call that differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
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
WORDS = (".rule.counts", ".rule.formula", "remarks[]")
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
    return _first_of_each_kind(_leaves(part, part, *_comparable(part, old, new)))


def _comparable(part: str, old: Any, new: Any) -> tuple[Any, Any]:
    """Return both values of a part in a form that is quicker to read where they differ."""
    if not isinstance(old, list) or not isinstance(new, list):
        return old, new
    if part == "timeline" and _changes(old) == _changes(new):
        return {"repeated": len(old) - len(_changes(old))}, {"repeated": len(new) - len(_changes(new))}
    if part == "live_at_peak":  # sorted by text: one other shape would move the rows behind it
        return _without(old, new), _without(new, old)
    return old, new


def _changes(timeline: list[Any]) -> list[Any]:
    """Return the moments without those that have the live bytes of the moment before them."""
    pairs = zip([None, *timeline], timeline, strict=False)
    return [moment for before, moment in pairs if before is None or moment["live"] != before["live"]]


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
        # Only what is between the equal beginnings and ends is another: the rest is but moved.
        start = next(
            (i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
        )
        end = 0
        while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
            end += 1
        ours, theirs = (items[start : len(items) - end] for items in (old, new))
        text = [
            f"{len(items)} items, here {len(others)}: {_names(others)}"
            for items, others in ((old, ours), (new, theirs))
        ]
        yield f"{place}[{start}]", f"{kind}[]", *text
    elif isinstance(old, list) and isinstance(new, list):
        for number, (ours, theirs) in enumerate(zip(old, new, strict=True)):
            name = _name(ours)
            label = f" {name}" if name else ""
            op = ours.get("op", "") if isinstance(ours, dict) else ""
            if kind == "raises" and number == 1:  # the message; the first is the type of the error
                continue
            yield from _leaves(f"{place}[{number}]{label}", f"{kind}[]{op}", ours, theirs)
    else:
        yield place, kind, old, new


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
