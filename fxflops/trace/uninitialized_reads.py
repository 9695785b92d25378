"""Where data leaves what torch can tell of: memory that is handed out, or that nothing seen has written and yet is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model.pytree import tensors_in
from ..ops._traits import SHARING
from ..records import is_dense
from ..torch_internals import DisableTorchFunction
from .functions import writes


def address_of(tensor: torch.Tensor) -> int:
    """A number for the memory where a tensor begins, equal for those that begin at the same place; also on meta."""
    with DisableTorchFunction():
        start = tensor.storage_offset() * tensor.element_size()
        return tensor.data_ptr() if not tensor.is_meta else (tensor.untyped_storage()._cdata << 48) + start


def announcer(before_write: Callable[[Any], None] | None) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]:
    """What tells ``before_write`` of the arguments of calls to whose memory they may write, or which they hand out."""

    def announce(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        assert before_write is not None
        if func in SHARING:
            before_write(args)
        elif writes(func, kwargs):
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            sets_apart = getattr(func, "__name__", "") == "__set__" and name not in ("real", "imag")
            before_write(args[1:] if sets_apart else (args, kwargs))  # x.data = y: the memory of x stays as it is

    return (lambda *_: None) if before_write is None else announce


class Announcing(TorchFunctionMode):
    """Tells ``before_write`` the same of all calls that are made in it, and runs them as they are."""

    def __init__(self, before_write: Callable[[Any], None]) -> None:
        super().__init__()
        self._announce = announcer(before_write)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._announce(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Unwritten:
    """Tensors made by ``empty*`` into which no seen call has written yet.

    Who reads one reads what a Triton kernel or other native code has put there, unseen. ``storages`` are theirs.
    """

    def __init__(self) -> None:
        self.storages: dict[int, weakref.ref[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self.storages)

    def add(self, value: Any) -> None:
        """A call made these tensors and left them empty."""
        for storage in _storages(value):
            self.storages[id(storage)] = weakref.ref(storage)

    def clear(self) -> None:
        """Something unseen may have written everywhere, and is known to."""
        self.storages.clear()

    def written(self, value: Any) -> None:
        """A call wrote to these tensors."""
        for storage in _storages(value):
            self.storages.pop(id(storage), None)

    def read(self, value: Any) -> bool:
        """Whether one of these tensors, which a call reads, is still unwritten; it is told once."""
        found = self.holds(value)
        self.written(value)
        return found

    def holds(self, value: Any) -> bool:
        """Whether one of these tensors is still unwritten."""
        return bool(self) and any(map(self._is_in, _storages(value)))

    def is_read_by(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call that does not write reads one of these tensors."""
        if self and writes(func, kwargs):
            self.written((args, kwargs))
        elif self:
            return self.read((args[kwargs.get("beta") == 0 :], kwargs))
        return False

    def _is_in(self, storage: Any) -> bool:
        known = self.storages.get(id(storage))
        return known is not None and known() is storage


def _storages(value: Any) -> list[Any]:
    with DisableTorchFunction():
        return [t.untyped_storage() for t in tensors_in(value) if is_dense(t) and t.numel()]
