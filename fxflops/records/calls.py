"""The records of a run: operations, calls, module calls, and the cost of each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from .specs import Spec, specs_in

K = TypeVar("K")
R = TypeVar("R")


class Cost(NamedTuple):
    """The arithmetic of one call, in operations. ``flops`` = muls + adds + others.

    ``others`` are all operations except multiply and add (divide, compare, exp ...). ``macs`` are the multiply-accumulates
    of a contraction. ``macs`` count the same work as ``muls`` and ``adds`` in another unit, so they are not added to ``flops``.
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
PHASES = FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, GRADIENT = (
    "forward",
    "backward",
    "recompute",
    "optimizer",
    "gradient",
)
"""The phases of calls. "recompute" is work of the forward that gradient checkpointing repeats in the backward pass. "gradient" is
the computation of gradients inside the forward; it is part of the forward."""
PARTS = {phase: (phase,) for phase in PHASES} | {FORWARD: (FORWARD, GRADIENT)}
"""For each phase in a report, the phases of the calls that belong to it."""
ALL_PHASES = "all"
"""In a roofline, the name of all phases together."""
COMMUNICATION = "communication"
"""The reason shown for an op that costs nothing because it sends or receives data between processes."""
TRITON = "triton:"
"""The prefix of a Triton kernel's name in a report, which the name of the kernel's function follows."""
NO_ARGUMENTS = "(arguments not shown)"
"""The target of an operator whose cost depends on arguments that the trace does not show."""
OUTSIDE = "(outside)"
"""The name of the step for work outside all calls of the model."""
UNSEEN = "(not observed)"
"""The op recorded for a module whose calls were only timed."""
VALUE_READ = "read of a value"
"""The op recorded where the model caught the error of reading a value, on tensors without values: on real tensors, it takes another path."""
OPERATOR, SCRIPT = "operator", "script"
"""The origins of operators that no torch function calls. OPERATOR: the model's own code calls the operator (``torch.ops.aten.mm``), or
a program of torch.export or make_fx does. SCRIPT: compiled code (TorchScript or an extension) calls the operator."""
BY_IDENTITY = object.__eq__, object.__ne__, object.__hash__


class Operation(NamedTuple):
    """The operation of a call, without the place of the call. The call is of a leaf module, a function, a method or an operator.

    ``op`` is the name of the formula, however the op is called. ``target`` is the class, function, method descriptor or overload
    that was called. ``args``, ``kwargs`` and ``out`` consist of specs and plain values. ``settings`` has a module's plain attributes
    and the specs of the module's own tensors.

    Operations are compared by identity. Most equal operations of a run are the same object, so that what depends only on the operation is
    computed once; nothing relies on it. ``target`` alone decides by which formula the operation is counted, not the formula by which the
    observer found ``op``.
    """

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any
    settings: Mapping[str, Any] = EMPTY_MAPPING
    __eq__, __ne__, __hash__ = BY_IDENTITY  # type: ignore[misc]

    def inputs(self) -> Iterator[Spec]:
        """Return the specs of the operation's tensor arguments, without a module's own tensors."""
        return specs_in((self.args, self.kwargs))


class _OperationFields:
    """Gives a record the fields of its ``operation`` as attributes."""

    __slots__ = ()
    op: Any = property(attrgetter("operation.op"))
    target: Any = property(attrgetter("operation.target"))
    args: Any = property(attrgetter("operation.args"))
    kwargs: Any = property(attrgetter("operation.kwargs"))
    out: Any = property(attrgetter("operation.out"))
    settings: Any = property(attrgetter("operation.settings"))
    inputs: Any = property(attrgetter("operation.inputs"))


class _Call(NamedTuple):
    operation: Operation
    path: str = ""
    node: str = ""
    site: str = ""
    seconds: float | None = None
    phase: str = FORWARD
    origin: str = ""


class Call(_OperationFields, _Call):
    """One call in a run: an operation, with its place and time.

    ``path`` is the path of the module that made the call. If the call is a call of a leaf module, ``path`` is the leaf's own path. ``node``
    is the graph node that makes the call or, in a backward pass, whose gradient the call computes. "" if there is no such node. ``site`` is
    the author's ``file:line``; it is read only for calls without a formula. ``phase`` is one of :data:`PHASES`. ``origin`` is
    :data:`OPERATOR` or :data:`SCRIPT` for an operator that no function calls. ``origin`` is "" for functions, modules and the operators
    that they call, since tools that patch functions or hook modules see these callers.
    """

    __slots__ = ()


class _Scope(NamedTuple):
    path: str
    operation: Operation
    params: Mapping[str, Spec]
    has_children: bool
    seconds: float | None = None


class Scope(_OperationFields, _Scope):
    """One call of a module, for the conventions of tools that count by module hooks.

    The target of ``operation`` is the module's class. For a leaf module, ``operation`` is the same object as the ``operation`` of the
    leaf's Call. ``params`` has the specs of the module's own parameters by name. ``has_children``: the module has submodules, or hooks do not
    see the calls inside it. ``seconds`` is the time that the module's own code takes,
    without the calls that this code makes.
    """

    __slots__ = ()
    cls = _OperationFields.target


class Step(NamedTuple):
    """A call of a model in a run, and everything until the next call.

    ``calls`` is the range of the calls that the model made. An iteration of a user's loop is a step without a name. ``parts`` has
    the seconds of each phase, from the start of this model call to the start of the next model call. "between" is the time outside all phases.
    """

    name: str
    calls: range
    parts: Mapping[str, float] = EMPTY_MAPPING


class Count(NamedTuple):
    """The cost of an operation, and the rule that gives the cost.

    If the operation is not counted, ``missing`` says why. The cost is then None. The tool whose convention is used may not see an operation
    that fxflops counts. The cost then has only MACs.

    ``rule`` is the function that gives the cost (a formula, or a row of a convention). If the operation costs nothing, ``rule`` is the
    reason as text. ``integer`` is True if the inputs are integers or booleans. The arithmetic is then not counted as FLOPs. Calls with the
    same operation and the same count share one Count object; Counts are compared by identity.
    """

    cost: Cost | None
    rule: Any = None
    missing: str = ""
    integer: bool = False
    __eq__, __ne__, __hash__ = BY_IDENTITY  # type: ignore[misc]

    @property
    def how(self) -> str:
        """The rule in words. The text is the first line of the formula's docstring, without the shapes, or the reason why there is no cost."""
        if self.missing or isinstance(self.rule, str):
            return self.missing.partition("\n")[0] or str(self.rule)
        docstring = str(inspect.getdoc(self.rule) or getattr(self.rule, "__name__", ""))
        first_line, _, rest = docstring.partition("\n")
        first_line = first_line.rstrip(".") + ("…" if rest.partition("\n")[0] and not first_line.endswith(".") else "")
        signature, colon, explanation = first_line.partition(": ")
        return explanation if colon and "->" in signature else first_line


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

    # Read the fields by position, which is faster than by name: every sum in a report reads these properties for each call.

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


def prefixes(path: str) -> Iterator[str]:
    """Yield a path with all its ancestors, the root "" first: ``"a.b" -> "", "a", "a.b"``."""
    yield ""
    if path:
        yield from accumulate(path.split("."), lambda above, name: f"{above}.{name}")


def per_operation(function: Callable[[Any], R]) -> Callable[[Any], R]:
    """Return a version of the function that caches results by operation and count. The function must not read other fields of a call."""
    results: dict[Any, R] = {}

    def cached(counted: Any) -> R:
        key = counted[0][0], counted[1]
        if key not in results:
            results[key] = function(counted)
        return results[key]

    return cached


def grouped(pairs: Iterable[tuple[K, R]]) -> dict[K, list[R]]:
    """Return a dict of the values of each key, in the order of the pairs."""
    groups: dict[K, list[R]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


FormulaFunction = Callable[..., "Cost | int"]
