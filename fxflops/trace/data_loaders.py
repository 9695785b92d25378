"""Measure how long a loop waits for its batches, by patching torch's DataLoader."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from ..meters.stopwatch import LOADING, PhaseTimes
from ..torch_internals import DataLoaderIterator, workers_of
from .per_thread import PerThread


class _Loading(NamedTuple):
    """Where a block notes the time of its loaders, and their numbers of workers."""

    times: PhaseTimes
    workers: set[int]


_BLOCKS = PerThread[_Loading]()
"""The blocks that each thread is observing; blocks may be nested."""
_PATCHED = (DataLoader, "__iter__"), (DataLoaderIterator, "__next__")
_ORIGINALS: list[Any] = []
"""The methods of :data:`_PATCHED` while they are patched."""


def data_loaders_watched(times: PhaseTimes, workers: set[int]) -> AbstractContextManager[None]:
    """Time the work of DataLoaders in a block, in this thread: starting workers, and making a batch or waiting for a batch.

    The number of workers of each loader is added to the set ``workers``. The patched methods are restored after the last block of all
    threads.
    """
    return _BLOCKS.on(_Loading(times, workers), _patch, _restore)


def _patch() -> None:
    for cls, name in _PATCHED:
        method = vars(cls)[name]
        _ORIGINALS.append(method)
        setattr(cls, name, _timed(method))


def _restore() -> None:
    for (cls, name), method in zip(_PATCHED, _ORIGINALS, strict=True):
        setattr(cls, name, method)
    _ORIGINALS.clear()


def _timed(method: Any) -> Any:
    @wraps(method)
    def run(owner: Any) -> Any:
        blocks = _BLOCKS.all_now()
        for block in blocks:
            block.workers.add(workers_of(owner))
            block.times.begin(LOADING)
        try:
            return method(owner)
        finally:
            for block in reversed(blocks):
                block.times.end(LOADING)

    return run
