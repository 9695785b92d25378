"""Which tensor storages are alive, since when and for whom: memory by hand, for devices that keep no book of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch

from ..errors import InputError
from ..model.pytree import stored
from ..records import ORDINARY, PARTS, PHASES, Call, Spec, spec_of
from ..torch_internals import DisableTorchFunction
from ..units import size

CATEGORIES = ("params", "buffers", "inputs", "activations", "gradients", "optimizer", "temporaries")
"""What memory is held for. "gradients" are the parameters', "optimizer" its states; "activations" is what the forward
made, "temporaries" anything else that the backward pass and the optimizer made."""


class LiveTensor(NamedTuple):
    """A storage: its bytes, the first tensor seen on it, what it is held for, the module and op that made it; of a
    parameter, a buffer and a parameter's gradient the name."""

    bytes: int
    spec: Spec
    category: str
    path: str
    op: str
    name: str


class Moment(NamedTuple):
    """The state after a call: where it was made, and the live bytes by category."""

    path: str
    op: str
    phase: str
    live: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.live.values())


class Place(NamedTuple):
    """A module, and the phase of a call in it."""

    path: str = ""
    phase: str = PHASES[0]


class Remembered(NamedTuple):
    """A History as it was told, without what it follows from."""

    peak: int
    peak_in: Place
    at_peak: tuple[LiveTensor, ...]
    timeline: tuple[Moment, ...]


Named = Iterable[tuple[str, torch.Tensor]]
"""Tensors by name, as ``named_parameters()`` gives them."""


class Span(NamedTuple):
    """What was alive when a call began: how many changes there were, the live bytes, the peak so far and the change after
    which it was."""

    changes: int
    live: int
    peak: int
    peak_after: int


class Entries:
    """The storages seen in a run, by number, in parallel lists: a spec of what was seen first on each, the call that
    made it (-1 for none); and where that was said, what it is held for, and its name."""

    def __init__(self) -> None:
        self.specs: list[Spec] = []
        self.calls: list[int] = []
        self.categories: dict[int, str] = {}
        self.names: dict[int, str] = {}

    def add(self, spec: Spec, call: int) -> int:
        """Its number."""
        self.specs.append(spec)
        self.calls.append(call)
        return len(self.specs) - 1


@dataclass(frozen=True)
class History:
    """The history of a run's storages: the peak, and all that came and went, to be told apart when it is asked for."""

    peak: int
    calls: Sequence[Call]
    entries: Entries
    changes: Sequence[int]
    """In threes: of which entry, by how many bytes, in which call."""
    changes_to_peak: int
    call_at_peak: int

    @property
    def peak_in(self) -> Place:
        """Where most was alive."""
        call = self._call(self.call_at_peak)
        return Place() if call is None else Place(call.path, call.phase)

    @cached_property
    def at_peak(self) -> tuple[LiveTensor, ...]:
        """What was alive when most was, the largest first."""
        held: dict[int, int] = {}
        for entry, change, _ in islice(in_threes(self.changes), self.changes_to_peak):
            held[entry] = held.get(entry, 0) + change
        found = [self._tensor(entry, nbytes) for entry, nbytes in held.items() if nbytes]
        return tuple(sorted(found, key=lambda tensor: -tensor.bytes))

    @cached_property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes by category after each call that made or freed something."""
        live = dict.fromkeys(CATEGORIES, 0)
        moments: dict[int, Mapping[str, int]] = {}
        categories = [self._category(entry) for entry in range(len(self.entries.specs))]
        for entry, change, number in in_threes(self.changes):
            live[categories[entry]] += change
            moments[number] = live.copy()
        made = ((self._call(number), held) for number, held in moments.items())
        return tuple(Moment(call.path, call.op, call.phase, held) for call, held in made if call is not None)

    def _tensor(self, entry: int, nbytes: int) -> LiveTensor:
        call, name = self._call(self.entries.calls[entry]), self.entries.names.get(entry, "")
        path = call.path if call else name.rpartition(".")[0]
        return LiveTensor(nbytes, self.entries.specs[entry], self._category(entry), path, call.op if call else "", name)

    def _category(self, entry: int) -> str:
        if entry in self.entries.categories:
            return self.entries.categories[entry]
        call = self._call(self.entries.calls[entry])
        return "activations" if call is None or call.phase in (*PARTS["forward"], "recompute") else "temporaries"

    def _call(self, number: int) -> Call | None:
        return self.calls[number] if 0 <= number < len(self.calls) else None


def in_threes(changes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The changes one by one."""
    each = iter(changes)
    return zip(each, each, each, strict=True)


class _Living(weakref.ref[Any]):
    """A storage that is alive: its entry, and its bytes. ``key`` is what it is known by."""

    __slots__ = ("entry", "key", "nbytes")
    entry: int
    key: int
    nbytes: int


class LiveStorages:
    """Bytes of the tensor storages that are alive: what an allocator would report, for devices that keep no such book.

    Each storage is entered once, however many views share it, and leaves when Python frees it. Temporaries inside one
    kernel are not seen. ``peak`` is the largest ``live`` since the last ``reset_peak``, ``most`` the largest of all. ``held`` are the tensors there
    from the beginning to the end, by category and name; ``spec`` gives a tensor's. Above ``cap`` bytes it raises InputError: better that than to run out of memory.
    """

    def __init__(
        self,
        held: Mapping[str, Named] | None = None,
        cap: int | None = None,
        spec: Callable[[torch.Tensor], Spec] = spec_of,
    ) -> None:
        self.live = 0
        self.peak = 0
        self.cap = cap
        self._known: dict[int, _Living] = {}
        self._moved: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._entries = Entries()
        self._changes: list[int] = []
        self.call = -1
        self.most = self._most_after = self._peak_after = 0
        self._most_in = -1
        self._held: dict[int, int] = {}
        self._kept: list[Any] = []  # twins of views of what is held, so that no other storage takes their place
        for category, named in (held or {}).items():
            self._hold(named, category, spec)

    def _hold(self, named: Named, category: str, spec: Callable[[torch.Tensor], Spec]) -> None:
        """Enter tensors that are there before and after."""
        held, entries, changes, strided = self._held, self._entries, self._changes, torch.strided
        for name, whole in named:
            whose = (whole,) if type(whole) in ORDINARY else stored(whole)
            for tensor in whose if whole.layout is strided else ():
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in held:
                    nbytes, entry = storage.nbytes(), entries.add(spec(tensor), -1)
                    held[key] = entry
                    entries.categories[entry], entries.names[entry] = category, name
                    changes += (entry, nbytes, -1)
                    self.live += nbytes
        self.peak = self.most = self.live
        self._most_after = len(changes) // 3

    def add(self, tensor: torch.Tensor) -> None:
        """Enter the tensor's storage, if it is not there yet (or has been resized since). Sparse tensors have none."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._held:
            return
        key, nbytes = id(storage), storage.nbytes()
        known = self._known.get(key)
        if known is not None and known() is storage:
            if nbytes != known.nbytes:
                self._change(known.entry, nbytes - known.nbytes)
                known.nbytes = nbytes
            if (
                self._entries.calls[known.entry] == self.call >= 0
            ):  # what a part of the call made is what the call puts out
                self._entries.specs[known.entry] = spec_of(tensor)
        elif key not in self._moved or self._moved[key][0]() is not storage:  # x.contiguous() of one that has a twin
            self.enter(storage, nbytes, spec_of(tensor))
        if self.cap is not None and self.live > self.cap:
            raise InputError(
                f"the run needs values, so it is made on the real tensors, and they have passed the cap of "
                f"{size(self.cap)}: give a smaller input, or analyze(model, args), which has no cap"
            )

    def enter(self, storage: Any, nbytes: int, spec: Spec) -> None:
        """Enter a storage that is not there yet, with the tensor that it was made for."""
        entry = self._entries.add(spec, self.call)
        self._watch(storage, nbytes, entry)
        self._change(entry, nbytes)

    def _watch(self, storage: Any, nbytes: int, entry: int) -> None:
        """Hear of it when Python frees the storage of an entry."""
        self._known[id(storage)] = known = _Living(storage, self._leave)
        known.key = id(storage)
        known.nbytes = nbytes
        known.entry = entry

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor stands on a storage that was entered since the beginning, or on an input's."""
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        known = self._known.get(id(storage))
        if known is not None and known() is storage:
            return True
        return self._entries.categories.get(self._held.get(storage._cdata, -1)) == "inputs"

    def move(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """From now on ``twin`` stands for this tensor, if that one's storage is held here."""
        if tensor.layout is not torch.strided or twin.layout is not torch.strided:
            return
        before, storage = tensor.untyped_storage(), twin.untyped_storage()
        if before._cdata in self._held:
            self._held[storage._cdata] = self._held[before._cdata]
            self._kept.append(storage)
            return
        known = self._known.pop(id(before), None)
        if known is not None:
            self._moved[id(before)] = weakref.ref(before), known.entry
            self._watch(storage, storage.nbytes(), known.entry)
            self._change(known.entry, storage.nbytes() - known.nbytes)

    def add_all(self, value: Any, call: int | None = None) -> None:
        """Enter every tensor in a value of tuples, lists and dicts, made by the call of this number."""
        if call is not None:
            self.call = call
        with DisableTorchFunction():
            self._add_all(value)

    def _add_all(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            for tensor in stored(value):
                self.add(tensor)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._add_all(item)
        elif isinstance(value, dict):
            self._add_all(list(value.values()))

    def label(self, named: Named, category: str) -> None:
        """Say what the storages of these tensors are held for; the first word counts."""
        for name, tensor in ((name, part) for name, whole in named for part in stored(whole)):
            key = id(tensor.untyped_storage()) if tensor.layout is torch.strided else 0
            entry = self._known[key].entry if key in self._known else self._moved.get(key, (None, None))[1]
            if entry is not None and entry not in self._entries.categories:
                self._entries.categories[entry], self._entries.names[entry] = category, name

    def throughout(self, category: str) -> None:
        """What is held for this has been there from the beginning, made by no call: as an optimizer's state in every step but
        the first."""
        held = {entry for entry, known in self._entries.categories.items() if known == category}
        for entry in held:
            self._entries.calls[entry] = -1
        changes = [*in_threes(self._changes)]
        first = [(entry, change, -1) for entry, change, _ in changes if entry in held]
        then = [each for each in changes if each[0] not in held]
        self._changes = []
        self.live = self.peak = self.most = self._most_after = 0
        self._most_in = -1
        for entry, change, self.call in (*first, *then):
            self._change(entry, change)

    def reset_peak(self) -> None:
        self.peak = self.live

    def begin(self) -> Span:
        """A call begins."""
        span = Span(len(self._changes), self.live, self.peak, self._peak_after)
        self.peak = self.live
        return span

    def end(self, span: Span) -> tuple[int, tuple[tuple[Spec, int], ...]]:
        """The call is over: the bytes that it leaves behind; and where more was live within it, what was at that peak."""
        left, rose = self.live - span.live, self.peak - span.live
        found = dict[int, int]()
        if rose > max(left, 0):
            for entry, change, _ in in_threes(self._changes[span.changes : 3 * self._peak_after]):
                found[entry] = found.get(entry, 0) + change
        if span.peak >= self.peak:
            self.peak, self._peak_after = span.peak, span.peak_after
        return left, tuple((self._entries.specs[entry], nbytes) for entry, nbytes in found.items() if nbytes)

    def pass_by(self, passing: Iterable[tuple[Spec, int]]) -> None:
        """Enter storages that are gone when the call is over."""
        entered = [(self._entries.add(spec, self.call), nbytes) for spec, nbytes in passing]
        for entry, nbytes in entered:
            self._change(entry, nbytes)
        for entry, nbytes in entered:
            self._change(entry, -nbytes)

    def history(self, calls: Sequence[Call]) -> History:
        """What has been seen so far; ``calls`` are those whose numbers were given."""
        return History(self.most, calls, self._entries, self._changes, self._most_after, self._most_in)

    def _change(self, entry: int, change: int) -> None:
        self.live += change
        self._changes += (entry, change, self.call)
        if self.live > self.peak:
            self._rise()

    def _rise(self) -> None:
        """There has not been so much since the last ``reset_peak``."""
        self.peak, self._peak_after = self.live, len(self._changes) // 3
        if self.live > self.most:
            self.most, self._most_after, self._most_in = self.live, self._peak_after, self.call

    def _leave(self, known: _Living) -> None:
        if self._known.get(known.key) is known:
            del self._known[known.key]
            self.live -= known.nbytes
            self._changes += (known.entry, -known.nbytes, self.call)
