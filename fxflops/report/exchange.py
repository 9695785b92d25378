"""Exchange texts between the processes of a job. The texts go through the store that torch.distributed created when the processes joined.

The exchange needs no device and no collective. A missing process does not block the other processes, but is reported by its rank.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ..errors import DistributedError
from ..torch_internals import default_store
from ..trace.processes import processes

KEYS = "fxflops"


def rank() -> int:
    """Return the rank of this process; 0 without torch.distributed."""
    return torch.distributed.get_rank() if processes() > 1 else 0


def exchanged(text: str, timeout: float) -> list[str]:
    """Return the texts of all processes by rank. Every process must call this function the same number of times.

    Raises DistributedError in every calling process if some ranks have not called this function ``timeout`` seconds after rank 0. The error
    lists these ranks. The other ranks wait for rank 0 for twice the ``timeout``.
    """
    if processes() == 1:
        return [text]
    store, own_rank = default_store(), rank()
    number = store.add(f"{KEYS}/{own_rank}", 1)  # the number of this call, counted separately in each process
    call_key = f"{KEYS}/{number}"
    store.set(f"{call_key}/{own_rank}", text)
    if own_rank == 0:
        missing = _missing(store, [f"{call_key}/{other}" for other in range(processes())], timeout)
        texts = [] if missing else [store.get(f"{call_key}/{other}").decode() for other in range(processes())]
        store.set(f"{call_key}/all", json.dumps([_late(missing, timeout, number), texts]))
    elif _missing(store, [f"{call_key}/all"], 2 * timeout):
        store.delete_key(f"{call_key}/{own_rank}")  # otherwise a late call of rank 0 would read this old text
        raise DistributedError(_late([0], 2 * timeout, number))
    late, texts = json.loads(store.get(f"{call_key}/all"))
    if late:
        raise DistributedError(late)
    if store.add(f"{call_key}/read", 1) == processes():
        for key in ("all", "read", *range(processes())):
            store.delete_key(f"{call_key}/{key}")
    return list(texts)


def _missing(store: Any, keys: list[str], timeout: float) -> list[int]:
    """Return the positions of the keys that no process set within ``timeout`` seconds."""
    end, missing = time.monotonic() + timeout, []
    for position, key in enumerate(keys):
        try:
            store.wait([key], timedelta(seconds=max(end - time.monotonic(), 0.01)))
        except RuntimeError:  # DistStoreError: the wait timed out
            missing.append(position)
    return missing


def _late(ranks: Sequence[int], timeout: float, number: int) -> str:
    """Return the error message that lists the ranks that did not make this call of gather(). Return "" if ``ranks`` is empty."""
    if not ranks:
        return ""
    return (
        f"rank {', '.join(map(str, ranks))} of {processes()} did not make call {number} of gather() within {timeout:g} s of "
        f"rank {rank()}: a missing process raised an error, ended, or is late\n"
        "  every process must call report.gather() the same number of times: call 2 of a process is matched with call 2 of\n"
        "  the others, even after a timeout; gather(timeout=...) waits longer"
    )
