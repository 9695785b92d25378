"""The instruments of an observed run, which are made before its observer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..meters.live_storages import LiveStorages
from .autograd_owners import Owners
from .changes import ChangeListener
from .graph_recorder import GraphListener
from .worlds import World


@dataclass(frozen=True, slots=True)
class Instruments:
    """The instruments of a run. By default: real tensors without a memo, no owners, no graph, and no listener.

    world: where the tensors are, and how calls get their results.
    storages: tracks the memory of every tensor that a call returns.
    owners: assigns each call of the backward pass to the module whose gradient the call computes.
    graph_listener: writes a graph of all calls.
    change_listener: is notified before the run changes tensors or optimizers.
    """

    world: World = field(default_factory=World)
    storages: LiveStorages = field(default_factory=LiveStorages)
    owners: Owners = field(default_factory=Owners)
    graph_listener: GraphListener = field(default_factory=GraphListener)
    change_listener: ChangeListener = field(default_factory=ChangeListener)

    def release(self) -> None:
        """Break the reference cycles of a finished run. Otherwise, its memory would be kept until garbage collection."""
        self.world.end()
        self.storages.end_run()
