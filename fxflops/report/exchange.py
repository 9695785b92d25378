"""An exchange of texts between the processes of a job, through the store by which torch.distributed brought them together.

It needs no device and no collective, so that a process that is missing is known by its rank instead of stopping all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch

from ..errors import DistributedError
from ..torch_internals import default_store, processes

KEYS = "fxflops"


def rank() -> int:
    """Return the rank of this process; 0 without torch.distributed."""
    return torch.distributed.get_rank() if processes() > 1 else 0


def exchanged(text: str, timeout: float) -> list[str]:
    """Return the texts of all processes by rank. Each must call this, equally often.

    Raises DistributedError, in every process that calls this, with the ranks that did not call it within ``timeout``
    seconds of rank 0; for rank 0 itself, within twice that.
    """
    if processes() == 1:
        return [text]
    store, own = default_store(), rank()
    whose = f"{KEYS}/{store.add(f'{KEYS}/{own}', 1)}"  # each process counts its own calls
    store.set(f"{whose}/{own}", text)
    if own == 0:
        missing = _missing(store, [f"{whose}/{each}" for each in range(processes())], timeout)
        texts = [] if missing else [store.get(f"{whose}/{each}").decode() for each in range(processes())]
        store.set(f"{whose}/all", json.dumps([missing, texts]))
    elif _missing(store, [f"{whose}/all"], 2 * timeout):
        raise DistributedError(_late([0], 2 * timeout))
    missing, texts = json.loads(store.get(f"{whose}/all"))
    if missing:
        raise DistributedError(_late(missing, timeout))
    if store.add(f"{whose}/read", 1) == processes():
        for key in ("all", "read", *range(processes())):
            store.delete_key(f"{whose}/{key}")
    return list(texts)


def _missing(store: Any, keys: list[str], timeout: float) -> list[int]:
    """Return the positions of the keys that are not set within so many seconds."""
    end, missing = time.monotonic() + timeout, []
    for position, key in enumerate(keys):
        try:
            store.wait([key], timedelta(seconds=max(end - time.monotonic(), 0.01)))
        except RuntimeError:  # DistStoreError, a timeout
            missing.append(position)
    return missing


def _late(ranks: Iterable[int], timeout: float) -> str:
    named = ", ".join(map(str, ranks))
    return (
        f"rank {named} of {processes()} did not call gather() within {timeout:g} s: it raised, ended, or is late\n"
        "  every process calls report.gather(), equally often; gather(timeout=...) waits longer"
    )
