"""Leaving no trace: the user's model, inputs and random generators, as they were."""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .structure import is_object, tensors_in, walk

RUNNING = threading.RLock()
"""Held while a model is traced or run: torch.fx patches nn.Module for all threads while it traces."""


DEPTH = 5
"""How many levels of objects and containers below a module are kept: a scheduler's tables, not a trainer's datasets."""


class Snapshot:
    """A model and its inputs as they are now; :meth:`rewind` brings them back, any number of times.

    Kept are every module's attributes, a few levels deep, and the inputs, with the containers, objects and tensors they
    consist of, and the states of the random generators. A parameter is copied only when :meth:`before_write` announces that a
    call is about to write to its storage.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self._objects = [(vars(module), dict(vars(module))) for module in model.modules()]
        self._containers: list[tuple[Any, Any]] = []
        held = [value for attributes, _ in self._objects for value in attributes.values()]
        parameters = {id(parameter) for parameter in model.parameters()}
        tensors: list[torch.Tensor] = []
        for _, part in (*walk(held, DEPTH), *walk(inputs)):
            if isinstance(part, torch.Tensor) and id(part) not in parameters:
                tensors.append(part)
            if isinstance(part, (dict, list, set)):
                self._containers.append((part, copy.copy(part)))
            if is_object(part):
                self._objects.append((vars(part), dict(vars(part))))
        self._saved = {id(t): (t, _keep(t)) for t in tensors}
        self._parameters = {_address(p): p for p in model.parameters() if p.device.type != "meta"}
        self._gradients = [(p, p.grad) for p in model.parameters()]
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._random = _random_states()

    def before_write(self, value: Any) -> None:
        """Copy each parameter whose storage one of these tensors shares: it is about to be written to."""
        for tensor in tensors_in(value):
            address = None if tensor.layout is not torch.strided else _address(tensor)
            if address in self._parameters and address not in self._written:
                parameter = self._parameters[address]
                self._written[address] = (parameter, _keep(parameter))

    def rewind(self) -> None:
        """Bring everything back to how it was when the snapshot was taken."""
        for container, items in (*self._containers, *self._objects):
            if not _same(container, items):
                _refill(container, items)
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for tensor, kept in (*self._saved.values(), *self._written.values()):
            _bring_back(tensor, kept)
        for restore, state in self._random:
            restore(state)


@contextmanager
def training_flags(model: nn.Module, mode: str) -> Iterator[None]:
    """The model in ``mode`` ("eval", "train", "as_is"): flags are set without calling ``.eval()``, and restored."""
    before = [(module, module.training) for module in model.modules()]
    try:
        if mode != "as_is":
            for module, _ in before:
                module.training = mode == "train"
        yield
    finally:
        for module, flag in before:
            module.training = flag


def _same(container: Any, items: Any) -> bool:
    """Equal in order and by identity of the elements (comparing tensors by value would be no answer)."""
    if isinstance(container, dict):
        return list(container) == list(items) and all(container[key] is items[key] for key in items)
    if isinstance(container, set):
        return bool(container == items)
    return len(container) == len(items) and all(a is b for a, b in zip(container, items, strict=True))


def _refill(container: Any, items: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(items)


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, so that the device's memory reads as without it."""
    if tensor.device.type == "meta" or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().to("cpu", copy=True)


def _bring_back(tensor: torch.Tensor, kept: torch.Tensor) -> None:
    if kept is not tensor and (tensor.shape != kept.shape or not torch.equal(tensor.detach().to("cpu"), kept)):
        with torch.no_grad():
            tensor.data.copy_(kept)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _random_states() -> list[tuple[Callable[[Any], Any], Any]]:
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        states.append((numpy.random.set_state, numpy.random.get_state()))
    return states
