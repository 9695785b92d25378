"""Memory accessed outside torch's calls: tensors whose memory is shared, and reads of memory that no call has written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model.pytree import tensors_in
from ..ops._traits import SHARING
from ..records.tensors import is_dense
from ..torch_internals import DisableTorchFunction
from .functions import writes


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; on meta, a number that is equal for tensors that begin at the same place."""
    with DisableTorchFunction():
        start = tensor.storage_offset() * tensor.element_size()
        return tensor.data_ptr() if not tensor.is_meta else (tensor.untyped_storage()._cdata << 48) + start


def before_write_hook(
    before_write: Callable[[Any], None] | None,
) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]:
    """Return a function to call before each call, which passes ``before_write`` the tensors that the call may change.

    These are the arguments that it may write to, or whose memory it shares.
    """

    def announce(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        assert before_write is not None
        if func in SHARING:
            before_write(args)
        elif writes(func, kwargs):
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            sets_apart = getattr(func, "__name__", "") == "__set__" and name not in ("real", "imag")
            before_write(args[1:] if sets_apart else (args, kwargs))  # x.data = y: the memory of x stays as it is

    return (lambda *_: None) if before_write is None else announce


class BeforeWriteMode(TorchFunctionMode):
    """A function mode that passes ``before_write`` the tensors that calls may change, and runs the calls unchanged."""

    def __init__(self, before_write: Callable[[Any], None]) -> None:
        super().__init__()
        self._announce = before_write_hook(before_write)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._announce(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Unwritten:
    """The storages of tensors made by ``empty*`` to which no observed call has written yet.

    A call that reads one reads what a Triton kernel or other native code wrote unobserved.
    """

    def __init__(self) -> None:
        self.storages: dict[int, weakref.ref[Any]] = {}

    def add(self, value: Any) -> None:
        """Add tensors that a call made without writing to them."""
        for storage in _storages(value):
            self.storages[id(storage)] = weakref.ref(storage)

    def clear(self) -> None:
        """Remove all: a call whose writes are not observed in detail may have written to any of them."""
        self.storages.clear()

    def wrote(self, value: Any) -> None:
        """Remove tensors that a call may have written to."""
        for storage in _storages(value) if self.storages else ():
            self.storages.pop(id(storage), None)

    def holds(self, value: Any) -> bool:
        """Return whether one of these tensors is unwritten."""
        known = self.storages
        return bool(known) and any(id(each) in known and known[id(each)]() is each for each in _storages(value))

    def is_read_by(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call reads an unwritten tensor. Its tensors, written to or reported, are then removed."""
        if not self.storages:
            return False
        written = writes(func, kwargs)
        given = args if written else args[kwargs.get("beta") == 0 :], kwargs  # addmm(x, ..., beta=0) does not read x
        found = not written and self.holds(given)
        self.wrote(given)
        return found


def _storages(value: Any) -> list[Any]:
    with DisableTorchFunction():
        return [t.untyped_storage() for t in tensors_in(value) if is_dense(t) and t.numel()]
