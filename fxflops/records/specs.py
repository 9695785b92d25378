"""Specs: plain data that describes tensors for formulas. Importing this module does not import torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Spec(tuple[int, ...]):
    """A description of a tensor for formulas. The description is a tuple of the tensor's sizes, with ``dtype``, ``layout`` and ``facts``.

    By default the tensor is dense and float32. ``facts`` are numbers that the shape does not show, such as the ``nnz`` of a sparse
    tensor.

    >>> Spec((2, 3)).numel()
    6
    """

    dtype: torch.dtype
    layout: torch.layout
    facts: Mapping[str, Any]

    def __new__(
        cls,
        shape: tuple[int, ...] | torch.Size,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Spec:
        spec = super().__new__(cls, shape if not shape or type(shape[0]) is int else _as_ints(shape))
        spec.dtype = dtype or _default("float32")
        spec.layout = layout or _default("strided")
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
        """The bytes of the tensor's elements."""
        return math.prod(self) * self.dtype.itemsize

    @property
    def is_integral(self) -> bool:
        """Whether the elements are integers or booleans; False for a quantized tensor, whose elements represent real numbers."""
        return not (self.dtype.is_floating_point or self.dtype.is_complex or str(self.dtype).startswith("torch.q"))

    def with_facts(self, **facts: Any) -> Spec:
        """Return the spec with these facts added to its own facts. If the value of an added fact is None, the fact is removed."""
        all_facts = {name: value for name, value in {**self.facts, **facts}.items() if value is not None}
        return Spec(self, self.dtype, self.layout, all_facts)

    def numel(self) -> int:
        return math.prod(self)

    @property
    def dtype_name(self) -> str:
        """The short name of the dtype, e.g. f32."""
        return _short(self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype_name}[{','.join(map(str, self))}]"


def _as_ints(shape: Iterable[Any]) -> tuple[int, ...]:
    """Return sizes as integers. In torch.jit.trace, sizes are tensors. The sizes are read in a way for which torch gives no warning."""
    sizes_and_storages = [(size, getattr(size, "untyped_storage", None)) for size in shape]
    return tuple(
        [int.from_bytes(bytes(storage()), sys.byteorder) if storage else size for size, storage in sizes_and_storages]
    )


@cache
def _default(name: str) -> Any:
    """Return torch's dtype or layout with this name. Import torch only when it is needed."""
    import torch

    return getattr(torch, name)


@cache
def _short(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(name, name)


DTYPE_NAMES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
"""The short names of torch's dtypes."""


ATOMS = frozenset({int, float, bool, str, type(None)})


def typed(value: Any) -> Any:
    """Return a key for a nested value of specs and plain values. Keys are equal only if the types and dtypes are equal, too.

    The values alone cannot be keys, because 1 == 1.0 == True, and because two specs of the same shape are equal even if their dtypes differ.
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
    specs: list[Spec] = []
    _gather(value, specs)
    return iter(specs)


def _gather(value: Any, specs: list[Spec]) -> None:
    kind = type(value)
    if kind is not tuple and isinstance(value, Spec):
        specs.append(value)
    elif kind is tuple or isinstance(value, (tuple, dict)):
        for item in value.values() if kind is not tuple and isinstance(value, dict) else value:
            kind = type(item)
            if kind is Spec:
                specs.append(item)
            elif kind not in ATOMS and isinstance(item, (tuple, dict)):
                _gather(item, specs)
