"""Tensors as they are: whether they learn, their gradients, where in memory they lie, and what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from operator import attrgetter, is_
from typing import Any

import torch

from ..records import is_dense
from ..torch_internals import DisableTorchFunction, disable_current_modes
from .pytree import stored, tensors_given

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""What stands for the bits of elements of this many bytes."""
LEARNS, GRADIENT, HOOKS = map(attrgetter, ("requires_grad", "grad", "_backward_hooks"))


class TensorState:
    """Tensors as they are now; :meth:`rewind` brings them back, any number of times.

    Where they lie is noted when the first change of any of them is announced, and the bytes of those are copied that it may
    reach: :meth:`before_write`. :meth:`keep` copies without.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        learns = [*map(LEARNS, tensors)]
        learning = [*compress(tensors, learns)]
        computed = [tensor for tensor in learning if not tensor.is_leaf]
        if computed:
            found = {id(tensor) for tensor in computed}
            tensors = [tensor for tensor in tensors if id(tensor) not in found]
            learns = [*map(LEARNS, tensors)]
            learning = [*compress(tensors, learns)]
        self._leaves, self._learns, self._learning = tensors, learns, learning
        self._owners = [*tensors, *(tensor for tensor in computed if tensor.retains_grad)]
        self._gradients = [*map(GRADIENT, self._owners)]
        self._hooks = [*map(HOOKS, learning)]
        self._hooked = [(held, held.copy()) for held in self._hooks if held] if any(self._hooks) else []
        self._noted: dict[int, tuple[torch.Tensor, torch.Tensor, type]] = {}
        self._at: dict[int, list[int]] = {}
        self._copies: dict[int, tuple[torch.Tensor, int]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the bytes of these: something may change them unannounced."""
        with _unseen():
            self._note()
            for tensor in _whole(tensors):
                self._copy(id(tensor))

    def before_write(self, value: Any) -> None:
        """Copy the bytes of each tensor whose storage one of these shares: a call may write there, or hand the memory out."""
        with _unseen():
            self._note()
            for tensor in _whole(tensors_given(value)):
                if _has_memory(tensor):
                    for key in self._at.get(_address(tensor), ()):
                        self._copy(key)

    def rewind(self) -> None:
        """Bring the tensors back to how they were when this was made."""
        if self._noted:
            with _unseen():
                for tensor, alias, cls in self._noted.values():
                    if type(tensor) is not cls:
                        tensor.__class__ = cls
                    if _place(tensor) != _place(alias):
                        tensor.data = alias
                for key, (copy, nbytes) in self._copies.items():
                    _bring_back(self._noted[key][1], copy, nbytes)
        if self._learns != [*map(LEARNS, self._leaves)]:
            for tensor, learns in zip(self._leaves, self._learns, strict=True):
                if tensor.requires_grad is not learns and (
                    tensor.is_leaf or not tensor._is_view()
                ):  # torch detaches no view
                    (tensor if tensor.is_leaf else tensor.detach_()).requires_grad_(learns)
        if self._hooks != [*map(HOOKS, self._learning)]:
            for tensor, hooks in zip(self._learning, self._hooks, strict=True):
                if tensor._backward_hooks is not hooks:
                    tensor._backward_hooks = hooks
        for hooks, users in self._hooked:
            hooks.clear()
            hooks.update(users)
        if not all(map(is_, map(GRADIENT, self._owners), self._gradients)):
            for tensor, gradient in zip(self._owners, self._gradients, strict=True):
                if tensor.grad is not gradient:
                    tensor.grad = gradient

    def _note(self) -> None:
        """Note where all of them, and their gradients, lie: before anything has changed that."""
        if self._noted:
            return
        for tensor in _whole([*self._tensors, *(gradient for gradient in self._gradients if gradient is not None)]):
            if is_dense(tensor) and id(tensor) not in self._noted:
                self._noted[id(tensor)] = tensor, tensor.detach(), type(tensor)
                if _has_memory(tensor):
                    self._at.setdefault(_address(tensor), []).append(id(tensor))

    def _copy(self, key: int) -> None:
        if key in self._noted and key not in self._copies:
            alias = self._noted[key][1]
            if _has_memory(alias):
                self._copies[key] = _bits(alias).to("cpu", copy=True), alias.untyped_storage().nbytes()


@contextmanager
def _unseen() -> Iterator[None]:
    """No observer, and no mode of the user's, sees what is done meanwhile."""
    with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
        yield


def _whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that have memory: in place of one that is made of others those."""
    for tensor in tensors:
        yield from stored(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and tensor.untyped_storage().device.type != "meta"


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies, and how."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as numbers that are equal where the bits are; from its first element to its last, where elements
    may share a place."""
    storage, itemsize = tensor.untyped_storage(), tensor.dtype.itemsize
    reach, overlaps = 0, False
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        overlaps |= size > 1 and step <= reach
        reach += step * (size - 1)
    bits = torch.empty(0, dtype=INTEGERS[itemsize], device=tensor.device)
    offset = tensor.storage_offset()
    if (offset + reach + 1) * itemsize > storage.nbytes():  # elements of less than a byte, or none
        bits = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        bits.set_(storage)
    elif overlaps:
        bits.set_(storage, offset, (reach + 1,), (1,))
    else:
        bits.set_(storage, offset, tensor.shape, tensor.stride())
    return torch.view_as_real(bits).view(torch.int64) if bits.is_complex() else bits


def _bring_back(tensor: torch.Tensor, copy: torch.Tensor, nbytes: int) -> None:
    storage = tensor.untyped_storage()
    if storage.nbytes() != nbytes:
        storage.resize_(nbytes)
    bits = _bits(tensor)
    if not torch.equal(bits.to("cpu"), copy):  # what is only read may lie where nobody can write
        bits.copy_(copy)
