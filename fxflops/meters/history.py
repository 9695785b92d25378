"""The history of a run's storages: the peak, the storages alive at the peak, and the live bytes after each call.

A storage is known by its number, and so is a call. In names, ``number`` is always a storage's, ``call_number`` a call's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from ..records import FORWARD, PARTS, Call, Spec

CATEGORIES = (
    "params",
    "buffers",
    "inputs",
    "activations",
    "gradients",
    "optimizer",
    "temporaries",
    "gathered",
    "cache",
)
"""The categories of memory. "activations" are tensors made by the forward. "gradients" are gradients of parameters, and other tensors
to which the backward pass adds. "optimizer" is optimizer state. "gathered" are parameters that FSDP has temporarily gathered. "cache"
are KV caches. "temporaries" are all other tensors made by the backward pass and the optimizer."""


class LiveTensor(NamedTuple):
    """A live storage: its bytes, the spec of the first tensor seen in it, its category, and the module and op that made it.

    For a parameter or buffer, ``name`` is its name; for a gradient, the parameter's name; for an entry in optimizer state, the entry's name
    ("exp_avg"). For a tensor in a KV cache it is the place in the cache ("layers.0.keys"). For all other tensors it is "".
    """

    bytes: int
    spec: Spec
    category: str
    path: str
    op: str
    name: str


class Moment(NamedTuple):
    """The live bytes by category after a call, or at the peak within a call, and the module, op and phase of this call."""

    path: str
    op: str
    phase: str
    live: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.live.values())


class Place(NamedTuple):
    """The module and the phase of a call."""

    path: str = ""
    phase: str = FORWARD


class Remembered(NamedTuple):
    """The results of a History without the list of changes, as in a saved report."""

    peak: int
    peak_in: Place
    at_peak: tuple[LiveTensor, ...]
    timeline: tuple[Moment, ...]


NO_CALL = -1
"""The call number of changes before the first call, and of storages that no call made."""


@dataclass(eq=False)
class StorageTable:
    """The storages seen in a run, by number. ``specs`` has the spec of the first tensor seen in each storage.

    ``makers`` has the number of the call that made each storage, or ``NO_CALL``. ``categories`` and ``names`` are the labels of
    storages.
    """

    specs: list[Spec] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    categories: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.specs)

    def add(self, spec: Spec, call_number: int) -> int:
        """Add a storage; return its number."""
        self.specs.append(spec)
        self.makers.append(call_number)
        return len(self.specs) - 1


@dataclass(frozen=True)
class History:
    """The history of a run's storages: the peak in bytes, and all changes. All other properties are computed from the changes on access."""

    peak: int
    calls: Sequence[Call]
    storages: StorageTable
    changes: Sequence[int]
    """A flat list of triples: the number of the storage, the change in bytes, the number of the call."""
    changes_to_peak: int
    call_at_peak: int

    @property
    def peak_in(self) -> Place:
        """The module and phase of the call in which the peak occurred."""
        call = self._call(self.call_at_peak)
        return Place() if call is None else Place(call.path, call.phase)

    @cached_property
    def at_peak(self) -> tuple[LiveTensor, ...]:
        """The storages alive at the peak, largest first."""
        return self._alive_after(self.changes_to_peak)

    @property
    def at_end(self) -> tuple[LiveTensor, ...]:
        """The storages alive after the last change, largest first."""
        return self._alive_after(None)

    def _alive_after(self, changes: int | None) -> tuple[LiveTensor, ...]:
        """Return the storages alive after this number of changes (None for all changes), largest first."""
        live: dict[int, int] = {}
        for number, change, _ in islice(triples(self.changes), changes):
            live[number] = live.get(number, 0) + change
        tensors = [self._tensor(number, nbytes) for number, nbytes in live.items() if nbytes]
        return tuple(sorted(tensors, key=lambda tensor: -tensor.bytes))

    @cached_property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes by category after each call. Calls that did not change the live bytes are left out."""
        moments = dict(self._live_after_each_change())
        return tuple(
            moment for call_number, live in moments.items() if (moment := self._moment(call_number, live)) is not None
        )

    @cached_property
    def peaks(self) -> tuple[Moment, ...]:
        """The live bytes by category at the peak within each call. Calls that did not change the live bytes are left out."""
        highest = dict[int, Mapping[str, int]]()
        for call_number, live in self._live_after_each_change():
            if call_number not in highest or sum(live.values()) > sum(highest[call_number].values()):
                highest[call_number] = live
        return tuple(
            moment for call_number, live in highest.items() if (moment := self._moment(call_number, live)) is not None
        )

    def _live_after_each_change(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """For each change, yield the number of the call that made the change, and the live bytes by category after the change."""
        live = dict.fromkeys(CATEGORIES, 0)
        categories = [self.category(number) for number in range(len(self.storages))]
        for number, change, call_number in triples(self.changes):
            live[categories[number]] += change
            yield call_number, live.copy()

    def _moment(self, call_number: int, live: Mapping[str, int]) -> Moment | None:
        call = self._call(call_number)
        return None if call is None else Moment(call.path, call.op, call.phase, live)

    def each_change(self) -> Iterator[tuple[int, LiveTensor]]:
        """For each change in order, yield the number of the storage, and a LiveTensor whose ``bytes`` is the change in bytes.

        The change is negative if the storage was freed.
        """
        return ((number, self._tensor(number, change)) for number, change, _ in triples(self.changes))

    def _tensor(self, number: int, nbytes: int) -> LiveTensor:
        call, name = self._call(self.storages.makers[number]), self.storages.names.get(number, "")
        path = call.path if call else name.rpartition(".")[0]
        return LiveTensor(
            nbytes, self.storages.specs[number], self.category(number), path, call.op if call else "", name
        )

    def category(self, number: int) -> str:
        """Return the category of a storage, one of :data:`CATEGORIES`."""
        if number in self.storages.categories:
            return self.storages.categories[number]
        call = self._call(self.storages.makers[number])
        return "activations" if call is None or call.phase in (*PARTS["forward"], "recompute") else "temporaries"

    def _call(self, call_number: int) -> Call | None:
        return self.calls[call_number] if 0 <= call_number < len(self.calls) else None


def triples(changes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """For each change in a flat list, yield three numbers: the number of the storage, the change in bytes, and the number of the call."""
    iterator = iter(changes)
    return zip(iterator, iterator, iterator, strict=True)
