"""An independent measure of memory for tests: it follows the storages that operators create until Python frees them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold a tensor's memory: for a sparse tensor, its indices and values."""
    with _disable_current_modes(), torch.no_grad():
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


class Live(TorchDispatchMode):
    """Tracks the live bytes of storages and their peak. ``before`` are the tensors that already exist."""

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: dict[int, weakref.ref[Any]] = {}
        self.enter(before)

    def enter(self, tensors: Iterable[Any]) -> None:
        for whole in tensors:
            for tensor in parts(whole) if isinstance(whole, torch.Tensor) else ():
                storage = tensor.untyped_storage()
                if id(storage) not in self.known:
                    key, nbytes = id(storage), storage.nbytes()
                    self.known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self.leave(key, nbytes))
                    self.live += nbytes
        self.peak = max(self.peak, self.live)

    def leave(self, key: int, nbytes: int) -> None:
        self.known.pop(key, None)
        self.live -= nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.enter(tree_leaves(out))
        return out
