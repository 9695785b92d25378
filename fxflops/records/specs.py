"""Tensors as formulas see them: specs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..torch_internals import DisableTorchFunction, DisableTorchFunctionSubclass, disable_current_modes


class Spec(tuple[int, ...]):
    """A tensor as a formula sees it: a tuple of its sizes, with ``dtype``, ``layout`` and ``facts``.

    ``facts`` are numbers that the shape does not have, such as the ``nnz`` of a sparse tensor.

    >>> Spec((2, 3)).numel()
    6
    """

    dtype: torch.dtype
    layout: torch.layout
    facts: Mapping[str, Any]

    def __new__(
        cls,
        shape: tuple[int, ...] | torch.Size,
        dtype: torch.dtype = torch.float32,
        layout: torch.layout = torch.strided,
        facts: Mapping[str, Any] | None = None,
    ) -> Spec:
        spec = super().__new__(cls, shape)
        spec.dtype = dtype
        spec.layout = layout
        spec.facts = facts or {}
        return spec

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.dtype, self.layout, self.facts

    @property
    def shape(self) -> Spec:
        return self

    @property
    def ndim(self) -> int:
        return len(self)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, in its dtype."""
        return math.prod(self) * self.dtype.itemsize

    @property
    def is_integral(self) -> bool:
        """True for integers and booleans; False for quantized tensors, which represent real numbers."""
        return not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype in QUANTIZED)

    def numel(self) -> int:
        return math.prod(self)

    @property
    def dtype_name(self) -> str:
        """The short name of the dtype: f32."""
        return DTYPE_NAMES.get(self.dtype) or str(self.dtype).removeprefix("torch.")

    def __repr__(self) -> str:
        return f"{self.dtype_name}[{','.join(map(str, self))}]"


QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
DTYPE_NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def spec_of(value: Any) -> Any:
    """Return the value with a :class:`Spec` in place of each tensor in nested tuples, lists and dicts.

    Plain Python values and specs are kept. Any other object becomes ``"<its class>"``, so that a Call keeps none alive.
    """
    kind = type(value)
    if kind in NUMBERS:
        return value
    if kind in ORDINARY:
        return _spec_of_tensor(value)
    if isinstance(value, torch.Tensor):  # the __torch_function__ of a subclass may raise even for x.shape
        with DisableTorchFunctionSubclass():
            return _spec_of_tensor(value)
    if isinstance(value, Spec):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(spec_of(item) for item in value)
    if isinstance(value, dict):
        return {key: spec_of(item) for key, item in value.items()}
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.ScriptObject) and hasattr(value, "unpack"):  # a quantized layer's weight and bias
        with DisableTorchFunction(), disable_current_modes():
            return spec_of(value.unpack())
    return f"<{type(value).__name__}>"


def _spec_of_tensor(tensor: torch.Tensor) -> Spec:
    if is_dense(tensor) or tensor.layout not in SPARSE | {torch.jagged, torch.strided}:
        return Spec(tensor.shape, tensor.dtype, tensor.layout)
    return _with_facts(tensor)


def _with_facts(tensor: Any) -> Spec:
    """Return the spec of a sparse tensor, with its ``nnz``, or of a nested one, with the specs of its ``parts``."""
    with disable_current_modes():
        if tensor.layout is torch.jagged and tensor.offsets().device.type == "meta":
            return Spec(tensor.values().shape, tensor.dtype, tensor.layout)
        if tensor.is_nested:
            parts = tuple(Spec(part.shape, part.dtype) for part in tensor.unbind())
            shape = (len(parts), *(max(sizes) for sizes in zip(*parts, strict=True)))
            return Spec(shape, tensor.dtype, tensor.layout, {"parts": parts})
        values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        known = tensor.device.type != "meta"
        return Spec(tensor.shape, tensor.dtype, tensor.layout, {"nnz": values.numel()} if known else {})


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested, so that its shape gives the number of its elements."""
    return tensor.layout is torch.strided and not tensor.is_nested


NUMBERS = frozenset({int, float, bool, type(None)})
ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
PLAIN = (
    bool, int, float, complex, str, slice, type(...), type,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def typed(value: Any) -> Any:
    """Return a key for a value of specs that is equal only if types and dtypes are too.

    Without it 1, 1.0 and True are equal, and so are specs of one shape.
    """
    kind = type(value)
    if kind is Spec:
        return kind, tuple(value), value.dtype, value.layout, typed(value.facts) if value.facts else None
    if kind is tuple:
        return tuple([typed(item) for item in value])
    if isinstance(value, dict):
        return kind, *value, typed(tuple(value.values()))
    return kind, typed((value.start, value.stop, value.step)) if kind is slice else value


def specs_in(value: Any) -> Iterator[Spec]:
    """Return an iterator over the specs in a value made by :func:`spec_of`, in order."""
    if type(value) is Spec:
        return iter((value,))
    found: list[Spec] = []
    _gather(value, found)
    return iter(found)


def _gather(value: Any, found: list[Spec]) -> None:
    if isinstance(value, Spec):
        found.append(value)
    elif isinstance(value, (tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            if type(item) is Spec:
                found.append(item)
            elif isinstance(item, (tuple, dict)):
                _gather(item, found)
