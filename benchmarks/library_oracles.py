"""What a step of training did, by oracles that know nothing of fxflops: torch's FLOP counter, live storages, and values.

They are for ``benchmarks/libraries.py``. A test makes sure that nothing here imports fxflops.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

ENDS = ModuleType, type
LONGEST = 10_000


def seed(number: int = 0) -> None:
    """Seed the generators that libraries use."""
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def generators() -> list[Any]:
    """Return the states of these generators."""
    keys = numpy.random.get_state()
    return [random.getstate(), [keys[0], keys[1].tolist(), *keys[2:]], torch.get_rng_state().tolist()]


def tensors_behind(*roots: Any) -> list[torch.Tensor]:
    """Return all tensors that objects lead to, by what the garbage collector knows of them."""
    seen, found, queue = set[int](), [], [*roots]
    while queue:
        value = queue.pop(0)
        if id(value) in seen or isinstance(value, ENDS):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(value)
            queue += [value.__dict__] + ([value.grad] if value.is_leaf and value.grad is not None else [])
        elif isinstance(value, (dict, list)) and len(value) > LONGEST:
            continue
        elif callable(value) and not isinstance(value, (nn.Module, torch.optim.Optimizer)):
            queue += [cell.cell_contents for cell in getattr(value, "__closure__", None) or () if cell != type(cell)()]
            queue += [getattr(value, "__self__", None)]
        else:
            queue += gc.get_referents(value)
    return found


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that a tensor of a wrapper class holds."""
    if hasattr(tensor, "__tensor_flatten__"):
        return [part for name in tensor.__tensor_flatten__()[0] for part in parts_of(getattr(tensor, name))]
    return [tensor] if tensor.layout is torch.strided and tensor.device.type != "meta" else []


class Storages(TorchDispatchMode):
    """The most bytes of storages that were alive at once: those of ``held`` tensors, and those that operators return."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}
        for tensor in held:
            self._see(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor):
                self._see(value)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            key = storage._cdata
            if key not in self._known or self._known[key]() is not storage:
                nbytes = storage.nbytes()
                self.live += nbytes
                self._known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self._leave(key, nbytes))
        self.peak = max(self.peak, self.live)

    def _leave(self, key: int, nbytes: int) -> None:
        self.live -= nbytes
        del self._known[key]


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[2] * (size + v[3])


def _attention_back(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    """Of scores again, and of the gradients of values, weights, queries and keys."""
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[2] * (3 * size + 2 * v[3])


aten: Any = torch.ops.aten
BY_HAND: dict[Any, Callable[..., int]] = {
    aten.dot: lambda a, b, *args, **kwargs: 2 * a[0],
    aten.vdot: lambda a, b, *args, **kwargs: 2 * a[0],
    aten.mv: lambda a, b, *args, **kwargs: 2 * a[0] * a[1],
    aten.addmv: lambda c, a, b, *args, **kwargs: 2 * a[0] * a[1],
    aten.addmm_: lambda c, a, b, *args, **kwargs: 2 * a[0] * a[1] * b[1],
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_back,
}
"""FLOPs of contractions that torch's counter does not count."""


def macs_of(step: Callable[[], Any]) -> float:
    """Return the multiply-accumulates of a step, by torch's own counter with :data:`BY_HAND`."""
    counter = FlopCounterMode(display=False, custom_mapping=BY_HAND)
    with counter:
        step()
    return counter.get_total_flops() / 2


def values_of(*roots: Any) -> list[Any]:
    """Return the values of all tensors that objects lead to, bit by bit, and the states of generators."""
    values = []
    for tensor in tensors_behind(*roots):
        for part in parts_of(tensor):
            bits = part.detach().contiguous().reshape(-1).view(torch.uint8) if part.numel() else part
            values.append((str(part.dtype), tuple(part.shape), bytes(bits.numpy().tobytes())))
    return [sorted(values, key=repr), generators()]
