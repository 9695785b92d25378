"""What a run leaves behind: tensors as specs, the calls made, the modules they were made in, and what each one cost."""

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
    """A tensor as a formula sees it: the tuple is its shape, and it knows its ``dtype``, ``layout`` and run-time ``facts``.

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
        """Of integers or booleans; quantized tensors are not (they stand for real numbers)."""
        return not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype in QUANTIZED)

    def numel(self) -> int:
        return math.prod(self)

    @property
    def dtype_name(self) -> str:
        """The dtype as it is written in short: f32."""
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
    """The value with a :class:`Spec` in place of each tensor; tuples, lists and dicts are gone through.

    Plain Python values and specs are kept; of any other object only ``"<its class>"``, so that a Call holds on to nothing.
    """
    kind = type(value)
    if kind in NUMBERS:
        return value
    if kind in ORDINARY:
        return _spec_of_tensor(value)
    if isinstance(value, torch.Tensor):  # a subclass may refuse even to be asked for its shape
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
    """A tensor whose shape does not tell what it holds: the ``nnz`` of a sparse one, the ``parts`` of a nested one."""
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
    """Whether a tensor's shape tells what it holds."""
    return tensor.layout is torch.strided and not tensor.is_nested


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is neither on meta nor fake."""
    return tensor.device.type != "meta" and (type(tensor) in ORDINARY or not is_fake(type(tensor)))


NUMBERS = frozenset({int, float, bool, type(None)})
ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})
PLAIN = (
    bool, int, float, complex, str, slice, type(...), type,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def typed(value: Any) -> Any:
    """A value of specs as one that is equal only where the types are too: to Python 1, 1.0 and True are equal, and specs of
    one shape."""
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
    """Every spec in a value made by :func:`spec_of`, in order."""
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
    """Arithmetic of one call, in operations. ``flops`` = muls + adds + others; ``macs`` is a second view of the same work.

    ``macs`` are the multiply-accumulates of a contraction; ``others`` whatever is neither multiply nor add (divide,
    compare, exp ...).
    """

    macs: int = 0
    muls: int = 0
    adds: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        return self.muls + self.adds + self.others

    def plus(self, other: Cost) -> Cost:
        """Both costs together."""
        return Cost(*map(sum, zip(self, other, strict=True)))


NOTHING: Mapping[str, Any] = {}
PHASES = ("forward", "backward", "recompute", "optimizer", "gradient")
"""When a call is made. "recompute" is forward work done again in the backward pass, by gradient checkpointing; "gradient" that
of gradients taken inside the forward, which are a part of it."""
PARTS = {phase: (phase,) for phase in PHASES} | {"forward": ("forward", "gradient")}
"""The phases of the calls that each is made of."""


class _Operation(NamedTuple):
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any
    settings: Mapping[str, Any] = NOTHING


class Operation(_Operation):
    """*What* ran, wherever it did: of a leaf module, a function, a method or an operator. Within one run equal ones are
    one object, and compared as such, so that what follows from an operation alone is worked out once.

    ``op`` is the formula's name, the same from every spelling; ``target`` is the spelling itself (the exact class,
    function, method descriptor or overload). ``args``, ``kwargs`` and ``out`` hold specs and plain values; ``settings`` are a
    module's plain attributes and, as specs, its own tensors.
    """

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def inputs(self) -> Iterator[Spec]:
        """The specs of its tensor arguments, a module's own tensors not included."""
        return specs_in((self.args, self.kwargs))


class _Ran:
    """What ran, of a record that tells where it did."""

    __slots__ = ()
    operation: Operation
    op: Any = property(attrgetter("operation.op"))
    target: Any = property(attrgetter("operation.target"))
    args: Any = property(attrgetter("operation.args"))
    kwargs: Any = property(attrgetter("operation.kwargs"))
    out: Any = property(attrgetter("operation.out"))
    settings: Any = property(attrgetter("operation.settings"))

    def inputs(self) -> Iterator[Spec]:
        """The specs of its tensor arguments, a module's own tensors not included."""
        return self.operation.inputs()


class _Call(NamedTuple):
    operation: Operation
    path: str = ""
    node: str = ""
    site: str = ""
    seconds: float | None = None
    phase: str = PHASES[0]


class Call(_Ran, _Call):
    """One call that the run made: an operation, and where and when it ran.

    ``path`` is the module it was made in (a leaf's own path), ``node`` the graph's node that does it, or whose gradient it
    computes ("" where none does), ``site`` the author's ``file:line`` (read only where no formula is known).
    """

    __slots__ = ()


class _Scope(NamedTuple):
    path: str
    operation: Operation
    params: Mapping[str, Spec]
    has_children: bool


class Scope(_Ran, _Scope):
    """One call of one module: what module-hook counters charge. ``operation`` is of its class, a leaf's the very one of its
    Call; ``params`` are its own parameters' specs by name."""

    __slots__ = ()
    cls = _Ran.target


class _Count(NamedTuple):
    cost: Cost | None
    rule: Any = None
    missing: str = ""
    integer: bool = False


class Count(_Count):
    """What an operation costs, and the rule that says so; ``cost`` is None where there is none, and ``missing`` says why. All
    calls of one operation that are counted alike share the same object, and it is compared as such.

    The rule is a function (a formula, a convention's row) or the reason why it is free. ``integer`` tells that its
    inputs are integers or booleans, so that its operations are no FLOPs.
    """

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    @property
    def how(self) -> str:
        """What the rule counts, in words: the formula's line without its shapes, or why there is nothing to count."""
        if self.missing or isinstance(self.rule, str):
            return self.missing.partition("\n")[0] or str(self.rule)
        line = str(inspect.getdoc(self.rule) or getattr(self.rule, "__name__", "")).partition("\n")[0].rstrip(".")
        signature, colon, counted = line.partition(": ")
        return counted if colon and "->" in signature else line


class _Counted(NamedTuple):
    call: Call
    count: Count  # type: ignore[assignment]


class Counted(_Counted):
    """A call with what it costs."""

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
    """The function of a counted call, run once for all that are of one operation and counted alike: it may look at nothing else."""
    found: dict[Any, R] = {}

    def known(counted: Any) -> R:
        key = counted[0][0], counted[1]
        if key not in found:
            found[key] = function(counted)
        return found[key]

    return known


FormulaFunction = Callable[..., "Cost | int"]
