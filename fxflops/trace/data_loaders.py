"""Measure how long a loop waits for its batches, by patching torch's DataLoader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils.data import DataLoader

from ..meters.stopwatch import LOADING, PhaseTimes
from ..torch_internals import DataLoaderIterator, workers_of


@contextmanager
def data_loaders_watched(times: PhaseTimes, workers: set[int]) -> Iterator[None]:
    """Time the work of DataLoaders in the block, in this thread: starting workers, and making a batch or waiting for a batch.

    The number of workers of each loader is added to the set ``workers``. The patched methods are restored after the block.
    """
    thread = threading.get_ident()

    def timed(method: Any) -> Any:
        @wraps(method)
        def run(owner: Any) -> Any:
            if threading.get_ident() != thread:
                return method(owner)
            workers.add(workers_of(owner))
            times.begin(LOADING)
            try:
                return method(owner)
            finally:
                times.end(LOADING)

        return run

    own = [(cls, name, vars(cls)[name]) for cls, name in ((DataLoader, "__iter__"), (DataLoaderIterator, "__next__"))]
    for cls, name, method in own:
        setattr(cls, name, timed(method))
    try:
        yield
    finally:
        for cls, name, method in own:
            setattr(cls, name, method)
