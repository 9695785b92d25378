"""The time that a loop waits for its batches, seen at torch's DataLoaders."""

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
    """Time what DataLoaders do for this thread in the block: starting their workers, and making or waiting for a batch.

    The number of workers of each is added to ``workers``. Both classes have their own methods again after the block.
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
