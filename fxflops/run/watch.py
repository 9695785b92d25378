"""Connect the instruments of a run: an observer, the live storages, and the owners of autograd nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..meters.event_stopwatch import with_seconds
from ..meters.live_storages import LiveStorages, Named
from ..meters.stopwatch import StoppedStopwatch, Stopwatch
from ..model.inventory import Inventory
from ..ops import FormulaRegistry
from ..records import Call
from ..trace.attention_pairs import with_shares
from ..trace.autograd_owners import AutogradOwners, NoOwners
from ..trace.graph_recorder import Recorder
from ..trace.observe import Observer
from ..trace.worlds import World
from .outcome import Environment, Run


class Watch:
    """The instruments of a run in a world (real, fake or meta tensors).

    ``held`` are tensors that are alive before and after the run, by category. ``cap`` is the limit of live bytes. With
    ``backward``, each call of the backward pass is assigned to the module whose gradients the call computes. The other arguments are
    passed to :class:`~fxflops.trace.observe.Observer`.
    """

    def __init__(
        self,
        paths: Mapping[nn.Module, str],
        registry: FormulaRegistry,
        world: World,
        held: Mapping[str, Named] | None = None,
        *,
        backward: bool = False,
        before_write: Callable[[Any], None] | None = None,
        recorder: Recorder | None = None,
        cap: int | None = None,
        observe_dispatch: bool = True,
        must_read_masks: bool = False,
        new_stopwatch: Callable[[], Stopwatch] = Stopwatch,
        on_leaf: Callable[[torch.Tensor], None] = lambda tensor: None,
    ) -> None:
        self.world = world
        self.recorder = recorder
        self.storages = LiveStorages(held, cap, world.spec_of_tensor)
        self.owners = AutogradOwners() if backward else NoOwners()
        self.observer = Observer(
            paths,
            registry,
            world=world,
            storages=self.storages,
            before_write=before_write,
            recorder=recorder,
            observe_dispatch=observe_dispatch,
            must_read_masks=must_read_masks,
            owners=self.owners,
            new_stopwatch=StoppedStopwatch if world.is_meta else new_stopwatch,
            on_leaf=on_leaf,
        )
        if recorder is not None:
            recorder.calls = self.observer.calls

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
