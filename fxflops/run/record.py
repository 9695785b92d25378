"""Make the record of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..meters.event_stopwatch import with_seconds
from ..meters.history import History, Remembered
from ..model.inventory import Inventory
from ..records import Call, Scope
from .outcome import Environment, Run


def record_of(
    calls: Sequence[Call],
    scopes: Sequence[Scope],
    history: History | Remembered,
    inventory: Inventory,
    environment: Environment,
    *,
    model: str,
    inputs: str,
    source: str,
    trace: str,
    timed: bool = False,
    **measured: Any,
) -> Run:
    """Return the record of a run. The times of its calls and scopes are included only if ``timed``.

    ``model`` and ``inputs`` are descriptions. ``measured`` are further fields of the record, which override the others.
    """
    modules, params = inventory.contents
    fields: dict[str, Any] = {
        "calls": with_seconds(calls, timed),
        "scopes": with_seconds(scopes, timed),
        "peak": history.peak,
        "history": history,
        "modules": modules,
        "params": params,
        "aliases": inventory.aliases,
    }
    return Run(model=model, inputs=inputs, source=source, trace=trace, environment=environment, **(fields | measured))
