"""Hold a model with its inputs, to run it any number of times from the same state."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..meters.accelerator import accelerator_of
from ..model.callables import state_of
from ..model.hidden import hidden
from ..model.inputs import as_leaves, bind
from ..model.inventory import Inventory
from ..model.optimizer import OptimizerLike, holders_in
from ..model.pytree import tensors_in
from ..model.snapshot import Snapshot
from ..torch_internals import in_fake_mode, is_fake
from ..trace.autocast import autocast_on
from .environment import modes_in


class Subject:
    """A model with its inputs, to be run several times from the state in ``snapshot``.

    ``mode`` is the mode of its modules ("eval", "train", "as_is"); ``compiled`` says whether a part of it is under
    ``torch.compile``; ``compiled_model`` is the user's model if calling it runs compiled code. ``counts_only`` says that nothing is
    computed unless the model needs real values, so the snapshot copies a tensor only before a call writes to it.
    ``optimizer`` steps after the backward pass; ``holders`` are the objects that it leads to.
    ``count_for`` is the device to count for: the requested device, else the model's own, or the CPU for a model on meta;
    ``is_for_another`` says whether its type differs from the device that the model would run on. ``autocast`` is the dtype of
    autocast for ``count_for`` around the forward, or None.
    ``own_backward`` says that the callable runs the backward pass itself, e.g. a training step, so that no other follows.
    ``has_meta`` says whether a parameter, buffer or input is on meta.
    ``bytes_before`` are the bytes allocated on its device before any run, 0 if unknown.
    """

    @hidden
    def __init__(
        self,
        model: nn.Module,
        inventory: Inventory,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: str,
        backward: bool = False,
        counts_only: bool = False,
        compiled: bool = False,
        compiled_model: nn.Module | None = None,
        optimizer: OptimizerLike | None = None,
        count_for: torch.device | None = None,
        autocast: torch.dtype | None = None,
        own_backward: bool = False,
    ) -> None:
        self.model = model
        self.own_backward = own_backward
        self.autocast = autocast
        self.mode = modes_in(inventory.paths) if mode == "as_is" else mode
        self.compiled = compiled
        self.counts_only = counts_only
        self.compiled_model = compiled_model
        self.backward = backward
        if backward:
            args, kwargs = as_leaves((args, kwargs))
        self.optimizer = optimizer
        self.holders = holders_in(optimizer)
        self.args = args
        self.kwargs = kwargs
        self._has_run = False
        self.inventory = inventory
        self.held: dict[str, list[tuple[str, torch.Tensor]]] = {
            "params": inventory.params,
            "buffers": inventory.buffers,
            "inputs": [("", tensor) for tensor in tensors_in((args, kwargs))],
        }
        self.state = [tensor for named in self.held.values() for _, tensor in named]
        self.has_meta = any(tensor.is_meta and not is_fake(type(tensor)) for tensor in self.state)
        self.device = self.state[0].device if self.state else torch.device("cpu")
        own_device = torch.device("cpu") if self.device.type == "meta" else self.device
        # A tensor created on "cuda" has the device "cuda:0".
        self.count_for = own_device if count_for is None else torch.device(count_for.type, count_for.index or 0)
        if self.count_for.type == "cpu":
            self.count_for = torch.device("cpu")
        self.is_for_another = self.count_for.type != own_device.type
        accelerator = accelerator_of(self.device)
        self.bytes_before = accelerator.live if accelerator is not None and accelerator.has_statistics else 0
        unnamed, reached = state_of(model)
        self.snapshot = Snapshot([*inventory.paths, *unnamed], (args, kwargs), counts_only, self.holders, reached)
        known_ids = {*map(id, self.state)}
        # Leaves that the model does not hold also get gradients, which must be restored.
        for value in reached if backward else ():
            is_tensor = issubclass(type(value), torch.Tensor) and id(value) not in known_ids
            if is_tensor and value.requires_grad and value.is_leaf:
                self.snapshot.meet_leaf(value)

    def is_on_meta(self) -> bool:
        """Return whether all of the model's tensors and inputs are on meta, and none of them is a fake tensor."""
        return bool(self.state) and all(t.is_meta and not is_fake(type(t)) for t in self.state) and not in_fake_mode()

    def runs_backward(self) -> bool:
        """Return whether a backward pass follows the forward, i.e. the callable does not run it itself."""
        return self.backward and not self.own_backward

    @hidden
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs, after restoring the initial state."""
        if self._has_run:
            self.snapshot.rewind()
        self._has_run = True
        if self.backward:
            for tensor in self.state:
                tensor.grad = None
            self.snapshot.begin_backward()
        return self.args, dict(self.kwargs)

    def bound(self) -> dict[str, Any]:
        """Return the inputs by the names of forward's parameters, after restoring the initial state."""
        return bind(self.model, *self.inputs())

    def call(self, compiled: bool = False) -> Callable[[], Any]:
        """Return a function that runs the model (or the compiled model, which must exist) once from the initial state."""
        args, kwargs = self.inputs()
        model: Any = self.compiled_model if compiled else self.model
        return lambda: run_to_end(model(*args, **kwargs))

    def autocast_region(self) -> AbstractContextManager[None]:
        """Return the autocast context for the forward; as in a training loop, it does not include the backward."""
        return nullcontext() if self.autocast is None else autocast_on(self.count_for.type, self.autocast)


def run_to_end(out: Any) -> Any:
    """Return a forward's output; an iterator, whose body runs only when iterated, becomes the list of its items.

    Raises InputError for a coroutine.
    """
    if isinstance(out, Coroutine):
        out.close()
        raise InputError(
            "the call made a coroutine, which runs when it is awaited: use fxflops.profile around the await"
        )
    return list(out) if isinstance(out, Iterator) else out
