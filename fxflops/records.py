"""The records of a run: tensors as specs, calls, module calls, and the cost of each call."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch

from .torch_internals import DisableTorchFunction, DisableTorchFunctionSubclass, disable_current_modes, is_fake

R = TypeVar("R")


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
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


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


def has_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither on meta nor fake."""
    return tensor.device.type != "meta" and (type(tensor) in ORDINARY or not is_fake(type(tensor)))


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
    if kind is slice:
        return kind, typed((value.start, value.stop, value.step))
    return kind, value


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


class Cost(NamedTuple):
    """The arithmetic of one call, in operations. ``flops`` = muls + adds + others.

    ``others`` are all operations but multiply and add (divide, compare, exp ...). ``macs`` are the multiply-accumulates
    of a contraction: the same work in another unit, not part of ``flops``.
    """

    macs: int = 0
    muls: int = 0
    adds: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        return self.muls + self.adds + self.others

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both costs."""
        return Cost(*map(sum, zip(self, other, strict=True)))


EMPTY_MAPPING: Mapping[str, Any] = {}
PHASES = ("forward", "backward", "recompute", "optimizer", "gradient")
"""The phases of calls. "recompute" is forward work done again in the backward pass, by gradient checkpointing; "gradient"
is that of gradients taken inside the forward, and belongs to it."""
PARTS = {phase: (phase,) for phase in PHASES} | {"forward": ("forward", "gradient")}
"""For each phase, the phases of calls that belong to it."""


class _Operation(NamedTuple):
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any
    settings: Mapping[str, Any] = EMPTY_MAPPING


class Operation(_Operation):
    """The operation of a call, without the place where it was made: of a leaf module, function, method or operator.

    ``op`` is the formula's name, the same for every spelling; ``target`` is the spelling: the class, function, method
    descriptor or overload that was called. ``args``, ``kwargs`` and ``out`` are made of specs and plain values;
    ``settings`` are a module's plain attributes and the specs of its own tensors.

    Within a run equal operations are the same object, and compared by identity: what follows from an operation is
    computed once.
    """

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def inputs(self) -> Iterator[Spec]:
        """Return the specs of its tensor arguments, without a module's own tensors."""
        return specs_in((self.args, self.kwargs))


class _Ran:
    """The fields of a record's operation, as attributes of the record."""

    __slots__ = ()
    operation: Operation
    op: Any = property(attrgetter("operation.op"))
    target: Any = property(attrgetter("operation.target"))
    args: Any = property(attrgetter("operation.args"))
    kwargs: Any = property(attrgetter("operation.kwargs"))
    out: Any = property(attrgetter("operation.out"))
    settings: Any = property(attrgetter("operation.settings"))

    def inputs(self) -> Iterator[Spec]:
        """Return the specs of its tensor arguments, without a module's own tensors."""
        return self.operation.inputs()


class _Call(NamedTuple):
    operation: Operation
    path: str = ""
    node: str = ""
    site: str = ""
    seconds: float | None = None
    phase: str = PHASES[0]


class Call(_Ran, _Call):
    """One call in a run: an operation, with its place and time.

    ``path`` is that of the module in which it was made (a leaf's own path). ``node`` is the graph's node that makes it, or
    whose gradient it computes, "" if there is none. ``site`` is the author's ``file:line``, read only for calls without
    formula. ``phase`` is one of :data:`PHASES`.
    """

    __slots__ = ()


class _Scope(NamedTuple):
    path: str
    operation: Operation
    params: Mapping[str, Spec]
    has_children: bool


class Scope(_Ran, _Scope):
    """One call of one module, for conventions of tools that count by module hooks.

    The target of ``operation`` is its class; a leaf has the same operation as its Call. ``params`` are the specs of its
    own parameters by name.
    """

    __slots__ = ()
    cls = _Ran.target


class _Count(NamedTuple):
    cost: Cost | None
    rule: Any = None
    missing: str = ""
    integer: bool = False


class Count(_Count):
    """The cost of an operation, and the rule that gives it. If there is no cost, it is None, and ``missing`` says why.

    ``rule`` is a function (a formula, a convention's row) or the reason why the operation costs nothing. ``integer``
    tells that its inputs are integers or booleans, so that its operations are not FLOPs. Calls of one operation that are
    counted alike share the same object, which is compared by identity.
    """

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    @property
    def how(self) -> str:
        """The rule in words: the first line of the formula's docstring without its shapes, or why there is no cost."""
        if self.missing or isinstance(self.rule, str):
            return self.missing.partition("\n")[0] or str(self.rule)
        line = str(inspect.getdoc(self.rule) or getattr(self.rule, "__name__", "")).partition("\n")[0].rstrip(".")
        signature, colon, counted = line.partition(": ")
        return counted if colon and "->" in signature else line


class _Counted(NamedTuple):
    call: Call
    count: Count  # type: ignore[assignment]


class Counted(_Counted):
    """A call with its count."""

    __slots__ = ()
    cost: Any = property(attrgetter("count.cost"))
    rule: Any = property(attrgetter("count.rule"))
    missing: Any = property(attrgetter("count.missing"))
    how: Any = property(attrgetter("count.how"))

    @property
    def flops(self) -> int:
        _, (cost, _, _, integer) = self
        return 0 if cost is None or integer else cost.flops

    @property
    def macs(self) -> int:
        cost = self[1][0]
        return 0 if cost is None else cost.macs

    @property
    def int_ops(self) -> int:
        _, (cost, _, _, integer) = self
        return cost.flops if cost is not None and integer else 0


def per_operation(function: Callable[[Any], R]) -> Callable[[Any], R]:
    """Return the function with a cache by operation and count. It must depend on nothing else of a counted call."""
    found: dict[Any, R] = {}

    def known(counted: Any) -> R:
        key = counted[0][0], counted[1]
        if key not in found:
            found[key] = function(counted)
        return found[key]

    return known


FormulaFunction = Callable[..., "Cost | int"]
