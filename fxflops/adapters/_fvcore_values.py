"""The values that fvcore's handles get as arguments: stand-ins for the values in a torch.jit trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import InputError, of_kind
from ..records import Spec, specs_in


class Value:
    """A stand-in for ``torch._C.Value`` that is passed to handles: a tensor, a list or a constant.

    A value also stores its name and the kind of the node that returned it. For input tensors this kind is "prim::Param".
    """

    def __init__(self, value: Any, name: str = "", made_by: str = "") -> None:
        self._value = value
        self._name = name
        self._made_by = made_by

    def isCompleteTensor(self) -> bool:
        """Return True for a tensor."""
        return isinstance(self._value, Spec)

    def type(self) -> ValueType:
        return ValueType(self._value)

    def node(self) -> ValueNode:
        return ValueNode(self)

    def debugName(self) -> str:
        """Return a unique name for the value. In a trace of torch.jit, it would be the name of a variable."""
        return self._name

    def toIValue(self) -> Any:
        """Return the value of a constant; None for a tensor and for a list that contains tensors."""
        return None if any(True for _ in specs_in(self._value)) else self._value

    def __repr__(self) -> str:
        return f"Value({self._value!r})"


class ValueType:
    """The type of a value; for a tensor, also its shape and dtype. Strides and device are unknown and therefore None."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def kind(self) -> str:
        """Return "TensorType", "IntType", "ListType" ..."""
        return next(name for types, name in KINDS if isinstance(self._value, types))

    def sizes(self) -> list[int]:
        """Return the shape of a tensor."""
        return list(self._tensor())

    def dim(self) -> int:
        """Return the number of dimensions of a tensor."""
        return self._tensor().ndim

    def dtype(self) -> torch.dtype:
        """Return the dtype of a tensor."""
        return self._tensor().dtype

    def scalarType(self) -> str:
        """Return the C++ name of a tensor's dtype: "Float", "Long"."""
        return torch.empty(0, dtype=self.dtype()).type().rpartition(".")[2].removesuffix("Tensor")

    def strides(self) -> None:
        self._tensor()

    device = strides

    def _tensor(self) -> Spec:
        if not isinstance(self._value, Spec):
            raise of_kind(
                InputError(
                    f"a value of type {self.kind()} is not a tensor; call isCompleteTensor() to check for a tensor"
                ),
                RuntimeError,
            )
        return self._value


class ValueNode:
    """The node in a trace that returned a value."""

    def __init__(self, made: Value) -> None:
        self._made = made

    def kind(self) -> str:
        """Return "prim::Constant", "prim::ListConstruct" ..."""
        kinds = {"TensorType": "prim::Param", "ListType": "prim::ListConstruct"}
        return self._made._made_by or kinds.get(self._made.type().kind(), "prim::Constant")

    def inputs(self) -> Iterator[Value]:
        """If the value is a list, return its items; for any other value, return no items."""
        items = self._made._value if self._made.type().kind() == "ListType" else ()
        return (Value(item, f"{self._made.debugName()}.{i}") for i, item in enumerate(items))


KINDS: tuple[tuple[Any, str], ...] = (
    (Spec, "TensorType"), (bool, "BoolType"), ((int, torch.dtype), "IntType"), (float, "FloatType"),
    (complex, "ComplexType"), (str, "StringType"), (torch.device, "DeviceObjType"), (type(None), "NoneType"),
    (tuple, "ListType"), (object, "AnyType"),
)  # fmt: skip
