"""The log of a run's memory: every change of the live bytes, with its storage and its call.

The log has no references to tensors. :class:`~.live_storages.LiveStorages` writes to the log when a storage is made, resized or freed. At
the end of the run, the log becomes a :class:`~.history.History`.

- A storage's *number* is its index in the :class:`~.history.StorageTable`. A *call number* is the index of a call in the run's list of
  calls; ``NO_CALL`` stands for the time before the first call.
- ``live`` is the number of bytes alive now. ``peak`` is the maximum of the live bytes since the last ``reset_peak``. During a call, between
  ``begin`` and ``end``, it is the maximum since the call began. ``most`` is the maximum of the live bytes over the whole run.
- *Transients* are the storages at the peak of a call, each with its change in bytes since the call began (see ``Transients`` in
  ``trace/memo.py``).
- A storage is *met* if it existed before the run, but was first seen during it, e.g. as the argument of a call. In the log it
  appears where it was met; ``move_met_to_beginning`` corrects that at the end of the run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from ..records import Call, Spec
from .history import NO_CALL, History, StorageTable, triples


class MemoryMark(NamedTuple):
    """The state of a log when a call began: the number of storages, the number of changes, the live bytes, the peak, the number of changes
    up to the peak, and the bytes of all storages met so far."""

    storage_count: int
    changes: int
    live: int
    peak: int
    changes_to_peak: int
    bytes_met: int


class MemoryLog:
    """The changes of the live bytes, in order, and the peaks that result from them.

    ``current_call`` is the number of the call to which changes are assigned. ``current_call`` is the running call or, between calls, the
    last call. :meth:`.LiveStorages.begin_next_call` sets it.

    ``storages`` is the table of all storages. ``changes`` is a flat list for :func:`~.history.triples`.
    """

    def __init__(self) -> None:
        self.storages = StorageTable()
        self.changes: list[int] = []
        self.current_call = NO_CALL
        self.live = self.peak = self.most = 0
        self._changes_to_peak = self._changes_to_most = 0
        self._call_at_most = NO_CALL
        self._met: set[int] = set()
        self._bytes_met = 0  # only grows, since end() compares it with the mark
        self._default_categories: dict[int, str] = {}  # for storages without a label

    def add(self, spec: Spec, nbytes: int) -> int:
        """Add a storage that the current call makes; return its number."""
        # This method runs for each tensor of each count, so it does the work of StorageTable.add and of change() itself.
        storages, call_number = self.storages, self.current_call
        number = len(storages.specs)
        storages.specs.append(spec)
        storages.makers.append(call_number)
        self.live = live = self.live + nbytes
        self.changes += (number, nbytes, call_number)
        if live > self.peak:
            self._set_peak()
        return number

    def add_at_beginning(self, category: str, named: Sequence[tuple[str, Spec, int]]) -> None:
        """Add storages that exist before the first call. Each storage has a name, a spec and a number of bytes.

        One call of this method adds all storages, because a Python call for each parameter of a model would slow down each count.
        """
        storages, changes = self.storages, self.changes
        first = len(storages)
        for number, (name, spec, nbytes) in enumerate(named, first):
            storages.specs.append(spec)
            storages.names[number] = name
            self.live += nbytes
            changes += (number, nbytes, NO_CALL)
        storages.makers += [NO_CALL] * len(named)
        storages.categories.update(dict.fromkeys(range(first, first + len(named)), category))
        self.peak = self.most = self.live
        self._changes_to_peak = self._changes_to_most = len(changes) // 3

    def add_transients(self, transients: Iterable[tuple[Spec, int]]) -> None:
        """Add storages that live only within the current call, each with its bytes. Then remove them again."""
        added = [(self.storages.add(spec, self.current_call), nbytes) for spec, nbytes in transients]
        for number, nbytes in added:
            self.change(number, nbytes)
        for number, nbytes in added:
            self.change(number, -nbytes)

    def change(self, number: int, nbytes: int) -> None:
        """Change the size of a storage by this number of bytes. The number is negative if the storage shrinks or is freed."""
        self.live += nbytes
        self.changes += (number, nbytes, self.current_call)
        if self.live > self.peak:
            self._set_peak()

    def _set_peak(self) -> None:
        self.peak, self._changes_to_peak = self.live, len(self.changes) // 3
        if self.live > self.most:
            self.most, self._changes_to_most, self._call_at_most = self.live, self._changes_to_peak, self.current_call

    def reset_peak(self) -> None:
        """Set the peak to the bytes alive now."""
        self.peak = self.live

    def begin(self) -> MemoryMark:
        """Begin to measure a call; pass the result to :meth:`end`. Until then, ``peak`` is the peak of this call.

        If the call raises, :meth:`end` need not run: the peak of the run, ``most``, does not depend on it.
        """
        changes = len(self.changes) // 3
        mark = MemoryMark(
            len(self.storages.specs), changes, self.live, self.peak, self._changes_to_peak, self._bytes_met
        )
        self.peak = self.live
        return mark

    def end(self, mark: MemoryMark) -> tuple[int, dict[int, int]]:
        """Return the bytes that a call leaves behind. If more bytes were alive during the call, also return the storages at that peak.

        The storages are a dict from numbers to changes in bytes since the call began.
        """
        # Storages that the run first used during this call already existed when the call began, so add their bytes.
        live_before = mark.live + self._bytes_met - mark.bytes_met
        bytes_left, rise = self.live - live_before, self.peak - live_before
        net_bytes = dict[int, int]()
        if rise > max(bytes_left, 0):
            for number, nbytes, _ in triples(self.changes[3 * mark.changes : 3 * self._changes_to_peak]):
                net_bytes[number] = net_bytes.get(number, 0) + nbytes
        if mark.peak >= self.peak:
            self.peak, self._changes_to_peak = mark.peak, mark.changes_to_peak
        return bytes_left, net_bytes

    def set_not_made(self, number: int, default_category: str) -> None:
        """Note that no call made a storage. If the storage has no label at the end of the run, it gets the given category ("" for none)."""
        self.storages.makers[number] = NO_CALL
        if default_category:
            self._default_categories[number] = default_category

    def set_met(self, number: int, nbytes: int) -> None:
        """Note that a storage existed before the run."""
        self._met.add(number)
        self._bytes_met += nbytes

    def move_met_to_beginning(self) -> None:
        """Rewrite the log as if the met storages had been added before the first call. The later changes of these storages are not moved."""
        if self._met:
            self.move_to_beginning(self._met, only_first=True)
            self._met = set()

    def move_to_beginning(self, numbers: Container[int], only_first: bool = False) -> None:
        """Rewrite the log as if all changes of these storages came before the first call. With ``only_first``, move only the creation of
        each storage.

        No call then counts as their maker.
        """
        moved: set[int] = set()
        first: list[tuple[int, int, int]] = []
        rest: list[tuple[int, int, int]] = []
        for number, nbytes, call_number in triples(self.changes):
            if number in numbers and not (only_first and number in moved):
                first.append((number, nbytes, NO_CALL))
                moved.add(number)
            else:
                rest.append((number, nbytes, call_number))
        for number in moved:
            self.storages.makers[number] = NO_CALL
        self._rewrite(first + rest)

    def leave_out(self, numbers: Container[int]) -> None:
        """Rewrite the log without the changes of these storages."""
        self._rewrite([triple for triple in triples(self.changes) if triple[0] not in numbers])

    def _rewrite(self, changes: Iterable[tuple[int, int, int]]) -> None:
        """Replace all changes; compute the live bytes and the peaks again."""
        current_call = self.current_call
        self.changes = []
        self.live = self.peak = self.most = self._changes_to_most = 0
        self._call_at_most = NO_CALL
        for number, nbytes, self.current_call in changes:  # change() reads current_call
            self.change(number, nbytes)
        self.current_call = current_call

    def history(self, calls: Sequence[Call]) -> History:
        """Return the history so far; ``calls`` are the calls by number."""
        for number, category in self._default_categories.items():
            self.storages.categories.setdefault(number, category)
        # Copy the list: storages that outlive the run, such as a model's weights, may be freed later and would change the list.
        changes = self.changes.copy()
        return History(self.most, calls, self.storages, changes, self._changes_to_most, self._call_at_most)
