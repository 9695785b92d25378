"""Predict the memory history of a run at any batch size. The prediction uses the histories at two counted batch sizes. Each storage's bytes
must grow linearly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from ..meters.history import History, triples


def histories_on_lines(one: tuple[int, History], other: tuple[int, History]) -> Callable[[int], History | None] | None:
    """Return a function that predicts the memory history for a batch size. The function uses the histories of two counted batch sizes.

    The two runs must make and free the same storages in the same calls and in the same order. If the two runs differ in this, return None.
    Each change in bytes is assumed to be linear in the batch size. For some batch sizes, a predicted change is not a whole number of bytes.
    The returned function then gives None. The prediction can be wrong, so count the batch to be sure.
    """
    (batch, history), (batch2, history2) = one, other
    if not _run_alike(history, history2):
        return None
    first, second = [*history.changes], [*history2.changes]

    def at(size: int) -> History | None:
        changes = first.copy()
        for i in range(1, len(first), 3):
            grown, left = divmod((second[i] - first[i]) * (size - batch), batch2 - batch)
            if left:
                return None
            changes[i] += grown
        peak = max(accumulate(changes[1::3]), default=0)
        return replace(history, peak=peak, changes=changes)

    return at


def _run_alike(one: History, other: History) -> bool:
    """Return whether two runs make and free the same storages, in the same calls and in the same order."""
    if len(one.changes) != len(other.changes) or len(one.calls) != len(other.calls):
        return False
    calls = zip(one.calls, other.calls, strict=True)
    if any((a.op, a.path, a.phase) != (b.op, b.path, b.phase) for a, b in calls):
        return False
    changes = zip(triples(one.changes), triples(other.changes), strict=True)
    return all(
        storage == storage2 and call == call2 and one.category(storage) == other.category(storage)
        for (storage, _, call), (storage2, _, call2) in changes
    )
