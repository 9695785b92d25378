"""Oracles for ``benchmarks/libraries.py``: what a training step did, by torch's FLOP counter, live storages, and tensor values.

They must be independent of fxflops: a test makes sure that nothing here imports it.
"""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry, shape_wrapper

aten: Any = torch.ops.aten
ENDS = ModuleType, type
LONGEST = 10_000
COMPRESSED_ROWS = "crow_indices", "col_indices", "values"
COMPRESSED_COLUMNS = "ccol_indices", "row_indices", "values"
PARTS_OF_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: COMPRESSED_ROWS,
    torch.sparse_bsr: COMPRESSED_ROWS,
    torch.sparse_csc: COMPRESSED_COLUMNS,
    torch.sparse_bsc: COMPRESSED_COLUMNS,
}


def seed(number: int = 0) -> None:
    """Seed the random generators that libraries use."""
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def generators() -> list[Any]:
    """Return the states of the generators that :func:`seed` seeds."""
    keys = numpy.random.get_state()
    return [random.getstate(), [keys[0], keys[1].tolist(), *keys[2:]], torch.get_rng_state().tolist()]


def tensors_behind(*roots: Any) -> list[torch.Tensor]:
    """Return all tensors reachable from ``roots``, by the references that the garbage collector sees.

    Dicts and lists with more than LONGEST items are skipped.
    """
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
    """Return the plain tensors inside a sparse tensor or a wrapper subclass; a plain tensor is its own only part."""
    if hasattr(tensor, "__tensor_flatten__"):
        return [part for name in tensor.__tensor_flatten__()[0] for part in parts_of(getattr(tensor, name))]
    if tensor.layout in PARTS_OF_SPARSE:
        with _disable_current_modes(), torch.no_grad():
            return [getattr(tensor, name)() for name in PARTS_OF_SPARSE[tensor.layout]]
    return [tensor] if tensor.layout is torch.strided and tensor.device.type != "meta" else []


def held_by(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors that exist before a training step: parameters, buffers, gradients, plain attributes that are tensors or lists
    and dicts of tensors, and the optimizers' state."""
    tensors = [*model.parameters(), *model.buffers()]
    attributes = [
        value for module in model.modules() for name, value in vars(module).items() if name not in vars(nn.Module())
    ]
    tensors += [each for each in tree_flatten(attributes)[0] if isinstance(each, torch.Tensor)]
    return (
        tensors
        + [each.grad for each in tensors if each.is_leaf and each.grad is not None]
        + tensors_behind(*optimizers)
    )


class Storages(TorchDispatchMode):
    """Measures the peak bytes of live storages: storages of ``held`` tensors, and storages that operators take or return.

    If an operator takes a storage that no operator returned, the storage existed from the beginning, so it is added to the peak
    too. Storages made outside torch, e.g. by numpy, are an exception: they count from their first use.
    """

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}
        for tensor in held:
            self._see(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            # Leave the call to the wrapper subclass. Only then do the operators that the subclass runs reach this mode.
            return NotImplemented
        if func is not aten.lift_fresh.default:  # its input was made just now, so it did not exist from the beginning
            for value in tree_flatten((args, kwargs))[0]:
                if isinstance(value, torch.Tensor):
                    self._see(value, was_there=True)
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor):
                self._see(value)
        return out

    def _see(self, tensor: torch.Tensor, was_there: bool = False) -> None:
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            key = storage._cdata
            if key not in self._known or self._known[key]() is not storage:
                nbytes = storage.nbytes()
                self.live += nbytes
                self.peak += nbytes if was_there and storage.resizable() else 0
                self._known[key] = weakref.ref(storage, lambda _, key=key, nbytes=nbytes: self._leave(key, nbytes))
        self.peak = max(self.peak, self.live)

    def _leave(self, key: int, nbytes: int) -> None:
        self.live -= nbytes
        del self._known[key]


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[2] * (size + v[3])


def _attention_back(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    """FLOPs of the gradients of values, weights, queries and keys. The kernel also recomputes the scores, which is not counted."""
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[2] * (2 * size + 2 * v[3])


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


FORMULAS: dict[Any, Callable[..., Any]] = {
    **flop_registry,
    **{op: shape_wrapper(count) for op, count in BY_HAND.items()},
}


class Flops(TorchDispatchMode):
    """Counts FLOPs by the formulas of torch's FlopCounterMode and :data:`BY_HAND`.

    It differs from that mode in two ways. It has no module hooks, which reject some backward passes (captum's). It also counts
    einsums that sum nothing: torch multiplies elementwise there, and each element is a multiply-accumulate, as in any other einsum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = FORMULAS.get(getattr(func, "overloadpacket", None))
        if formula is None and isinstance(func, torch._ops.OpOverload):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if formula is not None:
            complexity = (
                4 if isinstance(out, torch.Tensor) and out.is_complex() else 1
            )  # real products in one complex product
            self.total += complexity * formula(*args, **kwargs, out_val=out)
        elif func is aten.mul.Tensor and is_inside(torch.functional.einsum):
            self.total += 2 * out.numel()
        return out


def is_inside(function: Any) -> bool:
    """Return whether a Python function is on the call stack. A mode would miss calls made by hooks in a backward pass."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


class Escapes(TorchFunctionMode):
    """Records the functions by which floating-point tensors leave torch for numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__array__, torch.Tensor.numpy) and args[0].is_floating_point():
            self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def macs_of(step: Callable[[], Any]) -> tuple[float, list[str]]:
    """Return the multiply-accumulates of a step, and the names of the functions by which its tensors left torch."""
    flops, escapes = Flops(), Escapes()
    with escapes, flops:
        step()
    return flops.total / 2, sorted(escapes.names)


def values_of(*roots: Any) -> list[Any]:
    """Return the exact bits of all tensors reachable from ``roots``, and the states of the generators."""
    values = []
    for tensor in tensors_behind(*roots):
        for part in parts_of(tensor):
            # A dimension of size 1 may have any stride, and view() rejects some of them.
            whole = part.detach().clone(memory_format=torch.contiguous_format)
            bits = whole.reshape(-1).view(torch.uint8) if part.numel() else part
            values.append((str(part.dtype), tuple(part.shape), bytes(bits.numpy().tobytes())))
    return [sorted(values, key=repr), generators()]
