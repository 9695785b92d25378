"""The instruments of a run, and the record that they leave: an observer, the live storages, and the owners of autograd nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..meters.event_stopwatch import with_seconds
from ..meters.live_storages import LiveStorages
from ..model.inventory import Inventory
from ..records import Call
from ..trace.attention_pairs import with_shares
from ..trace.autograd_owners import NoOwners
from ..trace.changes import ChangeListener
from ..trace.graph_recorder import NoRecorder
from ..trace.observe import Observer
from ..trace.worlds import World
from .outcome import Environment, Run


@dataclass(frozen=True, slots=True)
class Watch:
    """The instruments of a run. They are made for a model by :func:`~fxflops.run.model_run.watch_of`, for a block by ``Block``."""

    world: World
    storages: LiveStorages
    owners: NoOwners
    observer: Observer
    listener: ChangeListener
    recorder: NoRecorder

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of the run. Backward calls of masked attention have the share of pairs that the mask leaves.

        On meta, ``observer.calls`` lacks this share.
        """
        return with_shares(self.observer.calls, self.owners.owner_of)

    def release(self) -> None:
        """Break the reference cycles of a finished observer. Otherwise, its memory would be kept until garbage collection."""
        self.observer.release()
        self.world.end()
        self.storages.end_run()


def run_from_watch(
    watch: Watch,
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
    """Return the record of a run. The times of the run's calls are included only if ``timed``.

    ``model`` and ``inputs`` are descriptions. ``measured`` are further fields of the record, which override fields from the watch.
    """
    calls = watch.calls
    history = watch.storages.history(watch.observer.calls)
    modules, params = inventory.contents
    fields: dict[str, Any] = {
        "calls": with_seconds(calls, timed),
        "scopes": with_seconds(watch.observer.scopes, timed),
        "peak": history.peak,
        "history": history,
        "modules": modules,
        "params": params,
        "aliases": inventory.aliases,
    }
    return Run(model=model, inputs=inputs, source=source, trace=trace, environment=environment, **(fields | measured))
