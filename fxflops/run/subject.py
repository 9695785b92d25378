"""Run a model on its inputs any number of times, each time from the same state."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..meters.accelerator import accelerator_of
from ..model.callables import parts_without_path
from ..model.hidden import hidden_from_modes
from ..model.inputs import as_leaves, bind
from ..model.inventory import Inventory
from ..model.optimizer import objects_of_optimizer
from ..model.pytree import tensors_in
from ..model.snapshot import Snapshot
from ..torch_internals import is_fake, is_on_fake
from ..trace.autocast import autocast_on
from ..trace.observe import Observer
from .environment import modes_in
from .request import Request


class Subject:
    """A model with its inputs, to be run several times from the state in ``snapshot``.

    ``mode`` describes the modes of the modules when the run begins. ``compiled`` is True if a part of the model is under
    ``torch.compile``. ``compiled_model`` is the user's model if calling that model runs compiled code, otherwise None. In a request
    that ``counts_only``, the snapshot copies a tensor only before a call writes to the tensor. ``optimizer_objects`` are the objects
    that are reachable from the request's optimizer.

    ``counted_device`` is the requested device; by default, the model's own device, or the CPU for a model on meta. ``is_for_another_device`` is
    True if the type of ``counted_device`` differs from the type of the device on which the model would run. ``bytes_before`` is the number
    of bytes that were allocated on the model's device before any run, 0 if unknown. ``has_meta_tensors`` is True if a parameter, buffer or
    input is on meta.
    """

    @hidden_from_modes
    def __init__(
        self,
        model: nn.Module,
        inventory: Inventory,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        request: Request,
        *,
        compiled: bool = False,
        compiled_model: nn.Module | None = None,
    ) -> None:
        self.model = model
        self.request = request
        mode = request.mode_of_modules
        self.mode = modes_in(inventory.modules) if mode == "as_is" else mode
        self.compiled = compiled
        self.compiled_model = compiled_model
        if request.backward:
            args, kwargs = as_leaves((args, kwargs))
        self.observers: list[Observer] = []  # all observers of runs of this subject, also of runs that raised
        self.optimizer_objects = objects_of_optimizer(request.optimizer)
        self.args = args
        self.kwargs = kwargs
        self._has_run = False
        self.inventory = inventory
        self.named_tensors: dict[str, list[tuple[str, torch.Tensor]]] = {
            "params": inventory.params,
            "buffers": inventory.buffers,
            "inputs": [("", tensor) for tensor in tensors_in((args, kwargs))],
        }
        self.state = [tensor for named in self.named_tensors.values() for _, tensor in named]
        self.has_meta_tensors = any(tensor.is_meta and not is_fake(type(tensor)) for tensor in self.state)
        self.device = self.state[0].device if self.state else torch.device("cpu")
        own_device = torch.device("cpu") if self.device.type == "meta" else self.device
        # A tensor created on "cuda" has the device "cuda:0".
        requested = request.count_for
        self.counted_device = own_device if requested is None else torch.device(requested.type, requested.index or 0)
        if self.counted_device.type == "cpu":
            self.counted_device = torch.device("cpu")
        self.is_for_another_device = self.counted_device.type != own_device.type
        accelerator = accelerator_of(self.device)
        self.bytes_before = accelerator.live if accelerator is not None and accelerator.has_statistics else 0
        unnamed, reachable = parts_without_path(model)
        self.snapshot = Snapshot(
            [*inventory.modules, *unnamed],
            (args, kwargs),
            copies_on_write=request.counts_only,
            objects=self.optimizer_objects,
            reachable=reachable,
        )
        known_ids = {*map(id, self.state)}
        # Leaves outside the model's modules also get gradients, which must be restored.
        for value in reachable if request.backward else ():
            is_tensor = issubclass(type(value), torch.Tensor) and id(value) not in known_ids
            if is_tensor and value.requires_grad and value.is_leaf:
                self.snapshot.meet_leaf(value)

    def end(self) -> None:
        """Restore the initial state, and release the observers that have not been released, e.g. because their run raised."""
        self.snapshot.rewind()
        while self.observers:
            self.observers.pop().release()

    def is_all_on_meta(self) -> bool:
        """Return whether all tensors of the model and its inputs are on meta and are not fake tensors."""
        return bool(self.state) and all(t.is_meta for t in self.state) and not is_on_fake(self.state)

    @hidden_from_modes
    def rewound_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Restore the initial state, and return args and kwargs."""
        if self._has_run:
            self.snapshot.rewind()
        self._has_run = True
        if self.request.backward:
            for tensor in self.state:
                tensor.grad = None
            self.snapshot.begin_backward()
        return self.args, dict(self.kwargs)

    def rewound_inputs_by_name(self) -> dict[str, Any]:
        """Restore the initial state, and return the inputs by the names of forward's parameters."""
        return bind(self.model, *self.rewound_inputs())

    def rewound_call(self, compiled: bool = False) -> Callable[[], Any]:
        """Restore the initial state, and return a function that runs the model once. With ``compiled``, it runs the compiled model."""
        args, kwargs = self.rewound_inputs()
        model: Any = self.compiled_model if compiled else self.model
        return lambda: run_to_end(model(*args, **kwargs))

    def autocast_region(self) -> AbstractContextManager[None]:
        """Return the autocast context for the forward. As in a training loop, the backward runs outside this context."""
        dtype = self.request.autocast
        return nullcontext() if dtype is None else autocast_on(self.counted_device.type, dtype)


def run_to_end(out: Any) -> Any:
    """Return a forward's output. If the output is an iterator, return the list of its items, since iterating runs its code.

    Raises InputError for a coroutine.
    """
    if isinstance(out, Coroutine):
        out.close()
        raise InputError(
            "the call returned a coroutine, which runs only when awaited: await it inside a fxflops.profile block"
        )
    return list(out) if isinstance(out, Iterator) else out
