"""The registry of formulas of fxflops and of users, which finds the formula that counts a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import nn

from ..errors import FormulaError, did_you_mean
from ..names import Absent, target_of
from ..records import TRITON, Cost, FormulaFunction, grouped
from ..torch_internals import CustomOpDef, HigherOrderOperator, OpOverload, OpOverloadPacket
from ._rules import PLAIN, Parameters, PeakRule, RuleFunction, parameters_of, shape
from ._spellings import REACHED_AS, named
from ._traits import Trait

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", bound=Cost | int, covariant=True)
S = TypeVar("S", bound=Cost | int)
Style = Literal["op", "module", "mapping"]
VIEW, QUERY, ESCAPE = "view", "query", "escape"
"""Reasons why an op costs nothing. VIEW: it returns a view. QUERY: it only answers a question about a tensor. ESCAPE: it hands data
to code outside torch, and the work of this code is unknown."""


@dataclass(frozen=True)
class Formula:
    """A rule for counting an op: its name, and either a cost function or the reason why it costs nothing.

    ``style`` says how the function is called. "op": with the op's own parameters, tensors as specs. "module": with the module as
    the first argument. "mapping": with the arguments that torch_flops passes.
    """

    op: str
    function: FormulaFunction | None
    reason: str = ""
    style: Style = "op"

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters of the function."""
        return parameters_of(self.function)

    @cached_property
    def is_ours(self) -> bool:
        """True for a formula of fxflops, False for a user's formula."""
        return self.function is None or _is_ours(self.function)

    @property
    def doc(self) -> str:
        """The first line of the formula's docstring, or why the op is free."""
        return self.reason or (inspect.getdoc(self.function) or "").partition("\n")[0]


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == __package__.partition(".")[0]


class FormulaRegistry:
    """Formulas by target: module classes, functions, method descriptors, overloads and names.

    A target that is not registered here is looked up in the parent registry. ``functions`` has the ``id()`` of every function that
    was ever added, even if it was removed later.
    """

    def __init__(self, parent: FormulaRegistry | None = None) -> None:
        self.parent = parent
        self.entries: dict[Any, Formula] = {}
        self.fallback: Callable[[OpOverload], Formula | None] | None = parent.fallback if parent else None
        self.functions: set[int] = set()
        self._ops_of_user_keys: dict[Any, str] = {}
        self.python_functions: dict[Any, FunctionType] = {} if parent is None else dict(parent.python_functions)
        # Names of library functions, grouped by module, since few of these modules are imported.
        self.library_functions: dict[str, tuple[str, ...]] = {} if parent is None else dict(parent.library_functions)

    def add(self, target: Any, entry: Formula) -> None:
        """Register ``entry`` as the formula of ``target``."""
        self.functions.add(id(entry.function))
        for key in _keys(target):
            if not entry.is_ours:
                self._ops_of_user_keys.setdefault(key, (self._counting(target, key) or entry).op)
            self.entries[key] = entry
            if is_library_function(key):
                module = key.partition(":")[0]
                self.library_functions[module] = (*self.library_functions.get(module, ()), key)
        if isinstance(target, FunctionType) and target.__module__.partition(".")[0] != "torch":
            self.python_functions[target.__code__] = target

    @contextmanager
    def of_package(self) -> Iterator[list[str]]:
        """Register formulas added in this context as formulas of a package. Yield a list for the names of their ops.

        The list is filled when the context ends. Formulas that the user added earlier keep precedence. If the context raises an
        exception, nothing is added.
        """
        tables: list[dict[Any, Any]] = [self.entries, self._ops_of_user_keys, self.python_functions]
        entries, *others = before = [dict(table) for table in tables]
        ops = list[str]()
        try:
            yield ops
        except BaseException:
            for table, kept in zip(tables, before, strict=True):
                for key in table.keys() - kept.keys():
                    del table[key]
                table.update(kept)
            raise
        ops += dict.fromkeys(entry.op for key, entry in self.entries.items() if entries.get(key) is not entry)
        self.entries.update({key: entries[key] for key in others[0] if key in entries})

    def get(self, key: Any) -> Formula | None:
        """Return the entry registered for exactly this key, here or in the parent."""
        entry = self.entries.get(key)
        return entry if entry is not None or self.parent is None else self.parent.get(key)

    def _counting(self, target: Any, key: Any) -> Formula | None:
        """Return the entry that counts a target. An operator without its own entry is looked up like in :meth:`find`."""
        found = target_of(key) if isinstance(key, str) else target
        return self.get(key) or (self.find(found) if isinstance(found, (OpOverload, OpOverloadPacket)) else None)

    def name_of(self, target: Any) -> str:
        """Return the name in reports of a target with a user's formula: the op's existing name, else the target's own name."""
        key = _keys(target)[0]
        if known := self._counting(target, key):
            return known.op
        if isinstance(key, str):  # "aten::add.Tensor", "package.module:function", "triton:name"
            return key.rpartition(":")[2].partition(".")[0]
        return str(getattr(target, "__name__", target))

    def find(self, function: Any) -> Formula | None:
        """Return the entry for a function, method descriptor or overload, or None if no entry counts it.

        An overload without its own entry uses the entry of its packet. An in-place or ``out=`` form uses the entry of the
        functional form. After these, ``fallback`` decides from schema and tags. If a saved report names a function that
        this process has not imported, its entry is looked up by the function's name.
        """
        function = REACHED_AS.get(function, function)
        entry = self.get(function)
        if entry is not None:
            return entry
        if isinstance(function, Absent) and "::" not in function.name:
            own = getattr(function, "function", None)  # a user's formula may be for the function itself
            return (None if own is None else self.get(own)) or self.get(function.name)
        if isinstance(function, Absent):
            packet = function.name.partition(".")[0]
            return self.get(function.name) or self.get(packet) or self.get(packet.rstrip("_"))
        if isinstance(function, OpOverload):
            entry = self.get(function.name()) or self.find(function.overloadpacket)
            return entry or (self.fallback(function) if self.fallback is not None else None)
        if isinstance(function, HigherOrderOperator):
            return self.get(f"higher_order::{function.name()}")
        if isinstance(function, OpOverloadPacket):
            name = function._qualified_op_name
            return self.get(name) or self.get(name.rstrip("_"))
        name = getattr(function, "__name__", "")
        if isinstance(function, FunctionType):  # a library function, registered by name
            entry = self.get(f"{function.__module__}:{function.__qualname__}")
        return entry or self.get(("method" if is_method(function) else "function", name))

    @staticmethod
    def operator(name: str) -> Any:
        """Return the operator of this name, e.g. ``"aten::mm"``: its packet, or a named placeholder if this process does not have it."""
        return target_of(name)

    def find_class(self, cls: type) -> tuple[type | None, Formula | None]:
        """Return the class whose entry counts modules of ``cls``, and the entry, or None if the class has no entry.

        The class is the first one in the MRO that has an entry or defines ``forward``.
        """
        for base in cls.__mro__:
            entry = self.get(base) or self.get(("module", base.__name__))
            if entry is not None or "forward" in vars(base):
                return base, entry
        return None, None

    def user_formulas(self) -> dict[Any, tuple[Formula, str]]:
        """Return the user's formulas by key, including those of the parent, each with the name of the op that it counts."""
        own = {
            key: (entry, op)
            for key, op in self._ops_of_user_keys.items()
            if (entry := self.entries.get(key)) is not None and not entry.is_ours
        }
        return own if self.parent is None else {**self.parent.user_formulas(), **own}

    def items(self) -> Iterator[tuple[Any, Formula]]:
        """Yield every key with its entry, including the parent's entries."""
        merged = dict(self.parent.items()) if self.parent is not None else {}
        yield from {**merged, **self.entries}.items()

    def derive(self, formulas: Mapping[Any, FormulaFunction] | None) -> FormulaRegistry:
        """Return a registry that uses ``formulas`` (target -> function, as in :func:`formula`) before this registry's formulas."""
        if not formulas:
            return self
        if not isinstance(formulas, Mapping):
            raise FormulaError(f"formulas must be a mapping {{target: function}}, got {type(formulas).__name__}")
        registry = FormulaRegistry(self)
        # Add exact targets last, because a later formula replaces an earlier formula for the same target.
        for target, function in sorted(formulas.items(), key=lambda item: -len(_keys(item[0]))):
            registry.add(target, formula_for([target], function, self.name_of(target)))
        return registry


BASE = FormulaRegistry()


class Op(Protocol[P, R]):
    """A formula, with decorators that register its op's shape rules and backward formulas.

    ``linear.shape(...)`` registers the same as ``shape(...)``, and ``linear.backward(...)`` the same as ``formula(...)``. The prefix only shows
    the reader what belongs together.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @staticmethod
    def shape(
        *targets: Any, layout: str = PLAIN, alive_at_peak: PeakRule = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register the decorated function as the shape rule of these spellings of the op."""

    @staticmethod
    def backward(*targets: Any, op: str | None = None) -> Callable[[Callable[Q, S]], Op[Q, S]]:
        """Register the decorated function as the formula of operators that only this op's derivative calls.

        Such an operator counts by the textbook formula of its gradient. Tensors that the forward saved are available, and
        work that a kernel repeats to save memory is not counted.
        https://github.com/pytorch/pytorch/blob/main/tools/autograd/derivatives.yaml shows which ops call the operator.
        """


def formula(*targets: Any, op: str | None = None, traits: Iterable[Trait] = ()) -> Callable[[Callable[Q, S]], Op[Q, S]]:
    """Register the decorated function as the formula of ``targets``.

    A target is a module class, a function, an ``OpOverload`` or its packet, or a name. ``"aten::add"`` names an operator,
    ``"triton:name"`` a Triton kernel, and ``"package.module:function"`` a library function, even if the library is not imported. The
    name of an op in ``report.by_operator()``, or of a ``torch.Tensor`` method, stands for all spellings of the op.

    The decorated function takes the op's own parameters, each tensor as a :class:`~fxflops.records.Spec`, and the keyword ``out``,
    the result's spec. Positional parameters take the op's first arguments. Keyword-only parameters are matched by name. The op's
    other arguments are not passed. If all targets are module classes, the function gets the module and then the arguments of the
    module's forward. The function returns a :class:`~fxflops.records.Cost`, or the FLOPs as an int.

    ``op`` is the op's name in reports (default: the name of the first target). ``traits`` are the op's traits, from
    ``fxflops.ops._traits``.

    >>> @formula(torch.special.i0, op="my_i0")
    ... def my_i0(input, *, out):
    ...     return 8 * out.numel()

    Raises FormulaError for a target that is none of these.
    """
    if not targets:
        raise FormulaError("formula() needs at least one target: @formula(MyModule) or @formula(my_function)")
    for target in targets:
        _keys(target)

    def register(function: Callable[Q, S]) -> Op[Q, S]:
        entry = formula_for(list(targets), function, op or (None if _is_ours(function) else BASE.name_of(targets[0])))
        for target in targets:
            BASE.add(target, entry)
        for trait in traits:
            trait.update((entry.op, *targets))
        if isinstance(function, FunctionType):
            vars(function).update(shape=shape, backward=formula)
        return cast("Op[Q, S]", function)

    return register


def zero(reason: str, *targets: Any, op: str | None = None, traits: Iterable[Trait] = ()) -> None:
    """Declare that ``targets`` compute nothing. ``reason`` is "view", "move", "create" or "query", or a sentence.

    Targets with the reason :data:`ESCAPE` make a report incomplete.
    """
    for target in targets:
        name = op or (target if isinstance(target, str) else str(getattr(target, "__name__", target)))
        entry = Formula(name.rpartition("::")[2], None, reason)
        BASE.add(target, entry)
        for trait in traits:
            trait.update((entry.op, target))


def is_library_function(key: Any) -> bool:
    """Return whether a key is the name of a library's function, ``package.module:function``."""
    return isinstance(key, str) and ":" in key and "::" not in key and not key.startswith(TRITON)


def is_method(target: Any) -> bool:
    """Return True for a method of ``torch.Tensor``: one of its descriptors, or a Python function defined in it."""
    return hasattr(target, "__objclass__") or getattr(target, "__qualname__", "").startswith(("Tensor.", "TensorBase."))


def formula_for(
    targets: list[Any], function: FormulaFunction, op: str | None = None, style: Style | None = None
) -> Formula:
    """Return the entry that counts ``targets`` with ``function``. A function that is already registered keeps its entry."""
    registered = BASE.items() if op is None and id(function) in BASE.functions else ()
    if known := next((entry for _, entry in registered if entry.function is function), None):
        return known
    if not callable(function):
        raise FormulaError(f"a formula must be a function, not {function!r}")
    if style is None:
        style = "module" if all(_is_module_class(target) for target in targets) else "op"
    return Formula(op or str(getattr(function, "__name__", "formula")), function, style=style)


def _is_module_class(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, nn.Module)


def _keys(target: Any) -> list[Any]:
    """Return a target's registry keys. An overload or packet has its qualified name; an op's or method's name has all its spellings."""
    if isinstance(target, CustomOpDef):
        target = target._opoverload
    if isinstance(target, OpOverload):
        return [target.name()]
    if isinstance(target, OpOverloadPacket):
        return [target._qualified_op_name]
    if isinstance(target, tuple) and len(target) == 2:
        return [target]
    if isinstance(target, str):
        if ":" in target:
            return [target]
        # A user's formula does not rename an op.
        replaced = ((op, key) for key, (_, op) in BASE.user_formulas().items())
        ops = grouped([*((entry.op, key) for key, entry in BASE.items()), *replaced])
        if target not in ops and hasattr(torch.Tensor, target):
            return [getattr(torch.Tensor, target), *named(target)]
        if target not in ops:
            raise FormulaError(
                f"no op or torch.Tensor method is named {target!r}{did_you_mean(target, ops)}; pass the function, the class, "
                f"or a name such as 'aten::add', 'package.module:function' or 'triton:name'"
            )
        return ops[target]
    if isinstance(target, type) and not _is_module_class(target):
        functions = issubclass(target, torch.autograd.Function)
        raise FormulaError(
            f"cannot count {target!r}: a class must be a subclass of torch.nn.Module"
            + ("; write a formula for its operations, or for the module that applies it" if functions else "")
        )
    if isinstance(target, nn.Module):
        raise FormulaError(
            f"cannot count a single instance of {type(target).__name__}: pass the class {type(target).__name__}"
        )
    if isinstance(getattr(target, "__self__", None), type) and issubclass(target.__self__, torch.autograd.Function):
        raise FormulaError(
            f"cannot count {target.__self__.__name__}.apply: fxflops records the operations in an autograd.Function, not the Function; "
            f"write a formula for these operations, or for the module that applies the Function"
        )
    if not callable(target) and not hasattr(target, "run"):
        raise FormulaError(
            f"cannot count {target!r}: expected a module class, a function, an OpOverload, a Triton kernel, "
            f"the name of a Tensor method, or a name such as 'aten::add', 'package.module:function' or 'triton:name'"
        )
    return [target, *([REACHED_AS[target]] if target in REACHED_AS else [])]
