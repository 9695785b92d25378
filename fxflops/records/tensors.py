"""Make the specs of tensors for the records of a run. Also find out whether a tensor is dense, sparse, nested or a wrapper."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..torch_internals import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disable_current_modes,
    disabled_torch_dispatch_impl,
    is_fake,
)
from .containers import items_of, pairs_of
from .specs import Spec

QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
NUMBERS = frozenset({int, float, bool, type(None)})
ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
PARTS_OF_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""The methods that return a sparse tensor's component tensors, by layout."""
SPARSE = frozenset(PARTS_OF_SPARSE)
PLAIN = (
    bool, int, float, complex, str, type(...), type,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def number_of(value: Any) -> Any:
    """Return a numpy scalar, or an instance of a subclass of int, float or complex, as a plain Python number; None for other values.

    From numpy scalars, formulas would compute numpy scalars, which JSON does not accept.
    """
    kind = type(value)  # not value.__class__, which an object can fake
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        value = value.item()
        kind = type(value)
    # Use the conversions of Python's own classes, since a subclass may override them.
    if issubclass(kind, int):
        return value if kind is bool else int.__int__(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, complex):
        return complex.__pos__(value)
    return None


def spec_of(value: Any) -> Any:
    """Return the value with each tensor replaced by a :class:`Spec`, also in nested tuples, lists and dicts.

    Plain Python values and specs are kept. Numbers of other classes become plain Python numbers. Any other object is replaced by the name
    of its class, as in ``"<DynamicCache>"``. So a Call does not keep the object alive.
    """
    kind = type(value)
    if kind in NUMBERS:
        return value
    if kind in ORDINARY:
        return _spec_of_tensor(value)
    if issubclass(kind, torch.Tensor):  # the __torch_function__ of a subclass may raise even for x.shape
        with DisableTorchFunctionSubclass():
            return _spec_of_tensor(value)
    if kind is Spec:
        return value
    if issubclass(kind, (tuple, list)):
        return tuple(spec_of(item) for item in items_of(value))
    if issubclass(kind, dict):
        return {key: spec_of(item) for key, item in pairs_of(value)}
    if kind is slice:  # the bounds of x[:n] may be tensors
        return slice(spec_of(value.start), spec_of(value.stop), spec_of(value.step))
    number = number_of(value)
    if number is not None:
        return number
    if issubclass(kind, PLAIN):
        return value
    if issubclass(kind, torch.ScriptObject) and hasattr(value, "unpack"):  # a quantized layer's weight and bias
        with DisableTorchFunction(), disable_current_modes():
            return spec_of(value.unpack())
    return f"<{type(value).__name__}>"


def _spec_of_tensor(tensor: torch.Tensor) -> Spec:
    if is_dense(tensor) or tensor.layout not in SPARSE | {torch.jagged, torch.strided}:
        return Spec(tensor.shape, tensor.dtype, tensor.layout)
    return _spec_of_parts(tensor)


def _spec_of_parts(tensor: Any) -> Spec:
    """Return the spec of a sparse or nested tensor. For a sparse tensor, the spec has the fact ``nnz``. For a nested tensor, it has the
    specs of its parts as ``parts``."""
    with disable_current_modes():
        if tensor.layout is torch.jagged and tensor.offsets().device.type == "meta":
            return Spec(tensor.values().shape, tensor.dtype, tensor.layout)
        if tensor.is_nested:
            parts = tuple(Spec(part.shape, part.dtype) for part in tensor.unbind())
            shape = (len(parts), *(max(sizes) for sizes in zip(*parts, strict=True)))
            return Spec(shape, tensor.dtype, tensor.layout, {"parts": parts})
        values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        has_values = tensor.device.type != "meta"
        return Spec(tensor.shape, tensor.dtype, tensor.layout, {"nnz": values.numel()} if has_values else {})


def parts_of_sparse(tensor: Any) -> list[torch.Tensor]:
    """Return the indices and values of a sparse tensor, which share the sparse tensor's memory. For any other tensor, return the tensor itself."""
    read = PARTS_OF_SPARSE.get(tensor.layout)
    if read is None:
        return [tensor]
    with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
        return [getattr(tensor, name)() for name in read]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a dense tensor has no memory because its class wraps other tensors."""
    try:
        with DisableTorchFunction():
            storage = tensor.untyped_storage()
            if storage.device.type == "meta":  # memory on meta has no address, so look for wrapped tensors
                return has_own_dispatch(type(tensor)) and any(
                    isinstance(part, torch.Tensor) for part in vars(tensor).values()
                )
            return storage.data_ptr() < 0
    except RuntimeError:
        return is_dense(tensor)


def has_own_dispatch(cls: Any) -> bool:
    """Return whether a tensor class defines its own ``__torch_dispatch__``; False for fake tensors, whose mode handles operators."""
    return cls.__torch_dispatch__ is not disabled_torch_dispatch_impl and not is_fake(cls)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested. Only then does its shape give the number of its elements."""
    return tensor.layout is torch.strided and not tensor.is_nested
