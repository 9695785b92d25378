"""Detect memory that is accessed outside torch's calls: shared memory, and reads of memory that no observed call has written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model.pytree import tensors_in
from ..ops import QUERY, VIEW, Formula
from ..ops._traits import COPIES, SHARING, UNREAD
from ..records.tensors import is_dense
from ..torch_internals import DisableTorchFunction
from .functions import writes

FIRST = ("input", "self")
"""The possible names of a function's first parameter."""
ACCUMULATE = 3
"""The position of ``accumulate`` among the arguments of ``index_put``."""
CONV_BACKWARD = "conv_backward"
READING = frozenset(
    """
    item tolist _local_scalar_dense is_nonzero __bool__ __float__ __int__ __index__ __complex__ __repr__ __format__
    """.split()
)
"""The queries that read elements of a tensor. All other queries read only metadata."""
OF_METADATA = "_new_zeros_with_same_feature_meta"
"""An op that reads only the shapes of two tensors. Forward-mode AD uses it to make a tangent, which is filled later."""
BERNOULLI = "bernoulli"
"""An op whose first argument has the probabilities. If the probability is a separate argument, only the first argument's shape is read."""


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; on meta, return the same number for all tensors that begin at the same element."""
    with DisableTorchFunction():
        start = tensor.storage_offset() * tensor.element_size()
        return tensor.data_ptr() if not tensor.is_meta else (tensor.untyped_storage()._cdata << 48) + start


def announcer_of_writes(
    before_write: Callable[..., None] | None,
    is_new: Callable[[torch.Tensor], bool],
) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]:
    """Return a function to run before each call. It calls ``before_write`` with the tensors that the call may modify.

    A call may change arguments that it writes to, and arguments whose memory it shares with other code. ``is_new(tensor)`` returns
    whether a tensor was made in the run.
    """

    def announce_writes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        assert before_write is not None
        if func in SHARING:
            before_write(args, is_new)
        elif writes(func, kwargs):
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            # The assignment x.data = y gives x other memory. It does not write to the old memory of x.
            replaces_memory = getattr(func, "__name__", "") == "__set__" and name not in ("real", "imag")
            before_write(args[1:] if replaces_memory else (args, kwargs), is_new)

    return (lambda *_: None) if before_write is None else announce_writes


def _is_made(tensor: torch.Tensor, earlier: Mapping[int, Any]) -> bool:
    return not any(storage is earlier.get(id(storage)) for storage in _storages(tensor))


class BeforeWriteMode(TorchFunctionMode):
    """A function mode that passes the tensors that calls may change to ``before_write``, and runs the calls unchanged.

    If a call gets a storage that no call has made, the storage existed before the mode was turned on.
    """

    def __init__(self, before_write: Callable[..., None]) -> None:
        super().__init__()
        earlier: dict[int, Any] = {}
        # Not a method of self: a method would make a reference cycle, which would keep the tensors to be restored alive.
        self._announce_writes = announcer_of_writes(before_write, lambda tensor: _is_made(tensor, earlier))
        self._earlier = earlier
        self._made: dict[int, weakref.ref[Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():
            for storage in _storages((args, kwargs)):
                if (reference := self._made.get(id(storage))) is None or reference() is not storage:
                    self._earlier[id(storage)] = storage  # kept alive, so that no other storage gets its id
        self._announce_writes(func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        with DisableTorchFunction():
            for storage in _storages(out):
                if id(storage) not in self._earlier:
                    self._made[id(storage)] = weakref.ref(storage)
        return out


class Unwritten:
    """The storages of tensors made by ``empty*`` to which no observed call has written yet.

    If a call reads such a storage, a Triton kernel or other native code must have written to it unobserved.
    """

    def __init__(self) -> None:
        self.storages: dict[int, weakref.ref[Any]] = {}

    def add(self, value: Any) -> None:
        """Add tensors that a call has made without writing to them."""
        for storage in _storages(value):
            self.storages[id(storage)] = weakref.ref(storage)

    def clear(self) -> None:
        """Remove all storages, since a call whose writes are not observed in detail may have written to any of them."""
        self.storages.clear()

    def wrote(self, value: Any) -> None:
        """Remove tensors that a call may have written to."""
        for storage in _storages(value) if self.storages else ():
            self.storages.pop(id(storage), None)

    def has_unwritten(self, value: Any) -> bool:
        """Return whether one of these tensors is unwritten."""
        unwritten = self.storages
        return bool(unwritten) and any(
            id(storage) in unwritten and unwritten[id(storage)]() is storage for storage in _storages(value)
        )

    def is_copied_by(self, formula: Formula | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call copies an unwritten tensor. The copy is unwritten, too: reading the copy is reported, making it is not."""
        return formula is not None and formula.op in COPIES and self.has_unwritten(_first_argument(args, kwargs))

    def take_reads(self, formula: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call reads an unwritten tensor; ``formula`` is the call's formula.

        The call's tensors are then removed, since they are written to now, or have been reported. If the call reads only the shape or
        dtype of a tensor, as ``zeros_like`` does, the tensor stays, since it may be written to later.
        """
        if not self.storages or (formula is not None and _asks_metadata(formula)):
            return False
        if writes(func, kwargs):
            self.wrote((args, kwargs))
            return False
        read_arguments: Any = args, kwargs
        if formula is not None and formula.op in COPIES:  # x.type_as(other)
            read_arguments = _first_argument(args, kwargs)
        elif formula is not None and formula.op == CONV_BACKWARD:
            read_arguments = _read_by_conv_backward(*args, **kwargs)
        elif (formula is not None and formula.op == BERNOULLI and _has_probability(args, kwargs)) or (
            formula is not None and formula.op in UNREAD and not _adds_up(args, kwargs)
        ):
            read_arguments = _other_arguments(args, kwargs)
        read_with_beta = (
            _other_arguments(args, kwargs) if kwargs.get("beta") == 0 else read_arguments
        )  # addmm(x, ..., beta=0)
        reads_unwritten = self.has_unwritten(read_with_beta)
        self.wrote(read_arguments)
        return reads_unwritten


def _asks_metadata(formula: Formula) -> bool:
    """Return whether a call reads no elements of its tensors, because it makes a view or is a query about metadata."""
    return (
        formula.reason == VIEW or (formula.reason == QUERY and formula.op not in READING) or formula.op == OF_METADATA
    )


def _has_probability(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of ``bernoulli(x, p)`` has the argument ``p``. Under vmap, dropout calls it with ``p``."""
    return len(args) > 1 or kwargs.get("p") is not None


def _first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    return [*args[:1], *(kwargs[name] for name in FIRST if name in kwargs)]


def _other_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    by_name = [value for name, value in kwargs.items() if name not in FIRST]
    return [*(args if len(by_name) < len(kwargs) else args[1:]), *by_name]


def _read_by_conv_backward(grad_output: Any, input: Any, weight: Any, *settings: Any, **named: Any) -> list[Any]:
    """Return the tensors that a convolution's backward reads. The input's gradient needs the weight; the weight's gradient, the input.

    If only one of the two gradients is computed, vmap passes an empty tensor in place of the tensor that is not needed.
    """
    of_input, of_weight, *_ = named["output_mask"] if "output_mask" in named else settings[-1]
    return [grad_output, *([weight] if of_input else []), *([input] if of_weight else [])]


def _adds_up(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call that puts new values into a tensor combines the new values with the old values."""
    return bool(
        kwargs.get("reduce") or kwargs.get("accumulate") or (len(args) > ACCUMULATE and args[ACCUMULATE] is True)
    )


def _storages(value: Any) -> list[Any]:
    with DisableTorchFunction():
        return [t.untyped_storage() for t in tensors_in(value) if is_dense(t) and t.numel()]
