"""Save and restore tensors: ``requires_grad``, gradients, hooks, storage, shape, strides, bytes and version counters."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from operator import attrgetter, is_, ne
from typing import Any

import torch

from ..records.tensors import ORDINARY, SPARSE, is_dense
from ..torch_internals import DisableTorchFunction, disable_current_modes, set_versions
from .pytree import stored, tensors_given

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""For each element size in bytes, the dtype for comparing elements bit by bit."""
REQUIRES_GRAD, GRADIENT, HOOKS, VERSION = map(attrgetter, ("requires_grad", "grad", "_backward_hooks", "_version"))


_STATES: weakref.WeakSet[TensorState] = weakref.WeakSet()
"""All live instances. Several may exist, e.g. when an analysis runs a model in several ways."""


def aliases_of(cdata: int) -> int:
    """Return how many aliases of the storage at this address are kept by instances of TensorState, to restore tensors."""
    return sum(state._aliases[cdata] for state in [*_STATES])


class TensorState:
    """The state of tensors when this object is created. :meth:`rewind` restores this state, any number of times.

    The first :meth:`before_write` or :meth:`keep` saves the storage, shape and strides of all tensors. :meth:`remember_layouts` saves them
    earlier, for some tensors. Bytes are copied only for tensors that a call may change (:meth:`before_write`) and for tensors passed to
    :meth:`keep`.

    Version counters are restored, too, because a backward pass that the user has not run yet may have saved these tensors.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._leaves = [tensor for tensor in tensors if tensor.is_leaf]
        self._requires_grad = [*map(REQUIRES_GRAD, self._leaves)]
        self._differentiable = [*compress(self._leaves, self._requires_grad)]
        self._owners = [*self._leaves, *[tensor for tensor in tensors if not tensor.is_leaf and tensor.retains_grad]]
        self._gradients = [*map(GRADIENT, self._owners)]
        self._hooks = [*map(HOOKS, self._differentiable)]
        self._copied_hooks = [(hooks, hooks.copy()) for hooks in self._hooks if hooks] if any(self._hooks) else []
        self._versioned, self._versions = _versions([*tensors, *filter(lambda each: each is not None, self._gradients)])
        # For each tensor's id: the tensor, an alias that keeps the tensor's storage, shape and strides, and the tensor's class.
        self._layouts: dict[int, tuple[torch.Tensor, torch.Tensor, type]] = {}
        self._remembers_all = False  # whether _layouts has all tensors
        self._aliases = Counter[int]()
        _STATES.add(self)
        self._ids_at: dict[int, list[int]] = {}  # from the address of a storage to the ids of its tensors
        self._copies: dict[
            int, tuple[torch.Tensor, int]
        ] = {}  # from a tensor's id to its bits and its storage's size in bytes
        self._met_leaves: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor | None]] = {}
        # Sparse tensors, each with an alias that keeps its current indices and values.
        self._sparse: list[tuple[torch.Tensor, torch.Tensor]] = []

    def meet_leaf(self, tensor: torch.Tensor) -> None:
        """Save and clear the gradient of a leaf tensor outside this state, since a backward pass of the run may change the gradient."""
        met = self._met_leaves.get(id(tensor))
        if (met is None or met[0]() is not tensor) and not any(tensor is each for each in self._tensors):
            # Use a weak reference, because the run may have created this leaf on an older storage. A strong reference would keep the leaf alive.
            self._met_leaves[id(tensor)] = weakref.ref(tensor), tensor.grad
            tensor.grad = None

    def begin_backward(self) -> None:
        """Drop the gradients of the tensors that earlier runs passed to :meth:`meet_leaf`."""
        for reference, _ in self._met_leaves.values():
            if (leaf := reference()) is not None:
                leaf.grad = None

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the bytes of these tensors, since they may change without a call of :meth:`before_write`."""
        with _unobserved():
            self._remember_layouts()
            for tensor in _whole(tensors):
                # Every access to a sparse tensor's indices and values returns new tensors, so find them by address, not by id.
                is_remembered = id(tensor) in self._layouts or not _has_memory(tensor)
                for key in (id(tensor),) if is_remembered else self._ids_at.get(_address(tensor), ()):
                    self._copy(key)

    def before_write(self, value: Any, is_new: Callable[[torch.Tensor], bool] = lambda tensor: True) -> None:
        """Before a call may change a storage, copy the bytes of all tensors that share a storage with a tensor in ``value``.

        If a tensor in ``value`` is not in this state, ``is_new(tensor)`` says whether the run created the tensor. If the run did not create
        the tensor, e.g. a tensor in a closure, a global or a slot, the tensor is added to this state.
        """
        with _unobserved():
            self._remember_layouts()
            for tensor in _whole(tensors_given(value)):
                if not _has_memory(tensor):
                    continue
                if _address(tensor) not in self._ids_at and not is_new(tensor):
                    self._enter(tensor)
                    versioned, versions = _versions([tensor])
                    self._versioned, self._versions = [*self._versioned, *versioned], [*self._versions, *versions]
                for key in self._ids_at.get(_address(tensor), ()):
                    self._copy(key)

    def rewind(self) -> None:
        """Restore the tensors' state."""
        if self._layouts or self._sparse:
            with _unobserved():
                for tensor, alias in self._sparse:
                    if _addresses(tensor) != _addresses(alias) or tensor.size() != alias.size():
                        tensor.data = alias
                for tensor, alias, cls in self._layouts.values():
                    if type(tensor) is not cls:
                        tensor.__class__ = cls
                    if _place(tensor) != _place(alias):
                        tensor.data = alias
                for key, (copy, nbytes) in self._copies.items():
                    _restore_bits(self._layouts[key][1], copy, nbytes)
        if self._requires_grad != [*map(REQUIRES_GRAD, self._leaves)]:
            for tensor, requires_grad in zip(self._leaves, self._requires_grad, strict=True):
                # Torch cannot detach a view in place.
                if tensor.requires_grad is not requires_grad and (tensor.is_leaf or not tensor._is_view()):
                    (tensor if tensor.is_leaf else tensor.detach_()).requires_grad_(requires_grad)
        if self._hooks != [*map(HOOKS, self._differentiable)]:
            for tensor, hooks in zip(self._differentiable, self._hooks, strict=True):
                if tensor._backward_hooks is not hooks:
                    tensor._backward_hooks = hooks
        for hooks, user_hooks in self._copied_hooks:
            hooks.clear()
            hooks.update(user_hooks)
        if not all(map(is_, map(GRADIENT, self._owners), self._gradients)):
            for tensor, gradient in zip(self._owners, self._gradients, strict=True):
                if tensor.grad is not gradient:
                    tensor.grad = gradient
        for reference, gradient in self._met_leaves.values():
            if (leaf := reference()) is not None and leaf.grad is not gradient:
                leaf.grad = gradient
        now = [*map(VERSION, self._versioned)]
        if now != self._versions:
            is_written = [*map(ne, now, self._versions)]
            set_versions([*compress(self._versioned, is_written)], [*compress(self._versions, is_written)])

    def remember_layouts(self, tensors: Collection[torch.Tensor]) -> None:
        """Save the storage, shape and strides of these tensors now, which belong to this state."""
        if tensors:
            with _unobserved():
                self._remember(tensors)

    def _remember_layouts(self) -> None:
        """Save the storage, shape and strides of all tensors and their gradients, unless this was already done."""
        if self._remembers_all:
            return
        self._remembers_all = True
        every = [*self._tensors, *(gradient for gradient in self._gradients if gradient is not None)]
        self._sparse = [(tensor, tensor.detach()) for tensor in every if tensor.layout in SPARSE]
        self._remember(every)

    def _remember(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in _whole(tensors):
            if is_dense(tensor) and id(tensor) not in self._layouts:
                self._enter(tensor)

    def _enter(self, tensor: torch.Tensor) -> None:
        alias = tensor.detach()
        self._layouts[id(tensor)] = tensor, alias, type(tensor)
        self._aliases[alias.untyped_storage()._cdata] += 1
        if _has_memory(tensor):
            self._ids_at.setdefault(_address(tensor), []).append(id(tensor))

    def _copy(self, key: int) -> None:
        if key not in self._copies and key in self._layouts and _has_memory(alias := self._layouts[key][1]):
            self._copies[key] = _bits(alias).to("cpu", copy=True), alias.untyped_storage().nbytes()


def _versions(tensors: Sequence[Any]) -> tuple[Sequence[torch.Tensor], list[int]]:
    """Return the tensors that have a version counter, and the values of these counters. Includes the inner tensors of wrappers."""
    if not ORDINARY.issuperset(map(type, tensors)):
        tensors = [*tensors, *(part for tensor in tensors if type(tensor) not in ORDINARY for part in stored(tensor))]
    try:
        return tensors, [*map(VERSION, tensors)]
    except RuntimeError:  # inference tensors have no version counter
        versioned = [tensor for tensor in tensors if not tensor.is_inference()]
        return versioned, [*map(VERSION, versioned)]


@contextmanager
def _unobserved() -> Iterator[None]:
    """Hide the calls in this block from observers and from the user's modes."""
    with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
        yield


def _whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors. Replace a wrapper or a sparse tensor by its inner tensors."""
    for tensor in tensors:
        yield from stored(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and tensor.untyped_storage().device.type != "meta"


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _addresses(tensor: torch.Tensor) -> list[int]:
    """Return the memory addresses of a sparse tensor's parts."""
    return [_address(part) for part in stored(tensor)]


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's storage, offset, shape, strides and dtype."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory reinterpreted as integers, for bitwise comparison.

    If elements overlap, as in an expanded tensor, the result is the memory from the first to the last element.
    """
    storage, itemsize = tensor.untyped_storage(), tensor.dtype.itemsize
    reach, overlaps = 0, False
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        overlaps |= size > 1 and step <= reach
        reach += step * (size - 1)
    offset = tensor.storage_offset()
    if (offset + reach + 1) * itemsize > storage.nbytes():  # sub-byte elements, or no elements
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    shape, strides = ((reach + 1,), (1,)) if overlaps else (tensor.shape, tensor.stride())
    bits = torch.empty(0, dtype=INTEGERS[itemsize], device=tensor.device).set_(storage, offset, shape, strides)
    return torch.view_as_real(bits).view(torch.int64) if bits.is_complex() else bits


def _restore_bits(tensor: torch.Tensor, copy: torch.Tensor, nbytes: int) -> None:
    storage = tensor.untyped_storage()
    if storage.nbytes() != nbytes:
        storage.resize_(nbytes)
    bits = _bits(tensor)
    if not torch.equal(bits.to("cpu"), copy):  # write only if the memory changed, since it may be read-only
        bits.copy_(copy)
