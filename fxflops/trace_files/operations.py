"""Turn an operator of a trace into an Operation: its overload, its arguments as specs and values, and its result.

A trace contains each argument in the order of the schema: shape, dtype and strides for a tensor, text for a number. It does not
contain strings, devices, and the dtypes of tensors in lists.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..ops import FormulaRegistry
from ..records import COMMUNICATION, NO_ARGUMENTS, Operation, Spec, specs_in, typed
from ..records.tensors import spec_of
from ..torch_internals import OpOverload, OpOverloadPacket, is_composite, tree_map
from .reading import CONCRETE, SHAPES, Event, TraceFile

Bound = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An overload with its arguments and keyword arguments. If no overload fits the arguments, the operator's name replaces the overload."""
COLUMNS = ("Input type", SHAPES, "Input Strides", CONCRETE)
"""The entries of an event that describe its arguments."""
TENSORS = "TensorList"
LISTS = (TENSORS, "GenericList")
NUMBERED = ("int", "float", "number", "bool", "complex", "ScalarType", "Layout", "MemoryFormat")
"""The types of arguments that a trace shows as text."""
C_TYPES = {
    "float": torch.float32, "double": torch.float64, "bool": torch.bool,
    "signed char": torch.int8, "unsigned char": torch.uint8, "short": torch.int16, "short int": torch.int16,
    "int": torch.int32, "long": torch.int64, "long int": torch.int64, "long long": torch.int64,
    "unsigned short": torch.uint16, "short unsigned int": torch.uint16, "unsigned int": torch.uint32,
    "unsigned long": torch.uint64, "long unsigned int": torch.uint64, "c10::Half": torch.float16,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128, "c10::complex<c10::Half>": torch.chalf,
}  # fmt: skip
CODES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.chalf, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32, torch.bfloat16,
)  # fmt: skip
"""The dtypes in the order of their numbers in c10::ScalarType."""
WORDS = {"True": True, "False": False}
UNSHOWN = ("Scalar", "Int", "Double", "Bool")
"""The types that torch before 2.1 writes for a number, without the number's value."""
NOT_READ = {"number": 1, "float": 1.0}
"""Placeholders by type for numbers that are missing in the trace and that no formula reads. No shape depends on such numbers."""


class Laid(NamedTuple):
    """A tensor argument: its spec and strides."""

    spec: Spec
    strides: tuple[int, ...]


class ShownArgument(NamedTuple):
    """An argument of an event as the trace shows it. ``type`` is the name of a dtype, ``"TensorList"`` or such; ``text`` is a number."""

    type: str
    shape: Any
    strides: Any
    text: Any


class Operations:
    """The operations of a trace. Equal operations are the same object.

    ``dtype`` is the dtype of tensors in lists. ``shows_numbers`` is False for traces of torch before 2.1.
    """

    def __init__(self, registry: FormulaRegistry, dtype: torch.dtype, shows_numbers: bool = True) -> None:
        self._registry = registry
        self._shows_numbers = shows_numbers
        self._dtype = dtype
        self._operations: dict[Any, Operation] = {}
        self._bindings: dict[Any, Bound] = {}

    def sees(self, event: Event) -> bool | None:
        """Return whether to count an operator: True to count it, False if it only calls other operators.

        Return None to count the operator only if it calls no other operators.
        """
        overload = self._bound(event)[0]
        if overload is NO_ARGUMENTS:  # the operators that this operator calls may show their arguments
            overload = next((each for each in self._overloads(event) if is_composite(each)), overload)
        if not isinstance(overload, OpOverload) or not is_composite(overload):
            return True
        formula = self._registry.find(overload)
        if formula is not None and not formula.is_ours:
            return True
        # A composite operator that called no other operators ran its own kernel, or computed nothing.
        return False if formula is None else None

    def of(self, event: Event) -> Operation:
        """Return the operation of an event. The operation's result is from its meta kernel.

        If the event is a kernel that no operator launched, the operation has only the kernel's name.
        """
        if not event.is_operator:
            return Operation(event.name, event.name, (), {}, None)
        overload, args, kwargs = self._bound(event)
        key = event.name, overload, typed(_plain(args)), typed(_plain(kwargs)), _strides(args), _strides(kwargs)
        if key not in self._operations:
            formula = self._registry.find(overload)
            op = event.name if formula is None else formula.op
            sends = formula is not None and formula.reason == COMMUNICATION
            out = None if sends or not isinstance(overload, OpOverload) else _result(overload, args, kwargs)
            self._operations[key] = Operation(op, overload, _plain(args), _plain(kwargs), out)
        return self._operations[key]

    def _bound(self, event: Event) -> Bound:
        """Return the overload whose schema fits an event, with the event's arguments."""
        key = event.name, *(str(event.args.get(column)) for column in COLUMNS)
        if key not in self._bindings:
            self._bindings[key] = self._bind(event)
        return self._bindings[key]

    def _overloads(self, event: Event) -> list[Any]:
        packet = self._registry.operator(event.name)
        names = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
        return [getattr(packet, name) for name in names]

    def _bind(self, event: Event) -> Bound:
        packet, overloads = self._registry.operator(event.name), self._overloads(event)
        number_shown = len(_shown_arguments(event))
        # First try only overloads for which the trace shows all numbers, then all overloads.
        likeliest_first = sorted(overloads, key=lambda each: len(each._schema.arguments) != number_shown)
        for is_strict, overload in itertools.product((True, False), likeliest_first):
            bound = _arguments(overload, event, self._dtype, is_strict, self._not_read(overload, event))
            if bound is not None:
                return overload, *bound
        tensors = _shown_tensors(event, self._dtype)
        for (
            overload
        ) in overloads:  # the trace is from another torch version; an operator without FLOPs needs no arguments
            formula = self._registry.find(overload)
            if formula is not None and formula.reason:
                return overload, tensors, {}
        formula = self._registry.find(event.name)
        if overloads and not self._shows_numbers and (formula is None or formula.is_ours):
            return NO_ARGUMENTS, tensors, {}
        return event.name if overloads else packet, tensors, {}

    def _not_read(self, overload: Any, event: Event) -> frozenset[str] | None:
        """Return the names of the arguments whose values the operator's formula does not read; None if the trace shows all values."""
        if self._shows_numbers or CONCRETE in event.args:
            return None
        formula = self._registry.find(overload)
        named, keywords, _, takes_any = (
            ((), (), False, False) if formula is None or formula.reason else formula.parameters
        )
        names = [] if takes_any else [argument.name for argument in overload._schema.arguments]
        return frozenset(names).difference(named, keywords)


def commonest_dtype(trace: TraceFile) -> torch.dtype:
    """Return the most common floating-point dtype of a trace. It is used for tensors in lists, since a trace lacks their dtypes."""
    events = (event for events in trace.threads.values() for event in events if event.is_operator)
    names = Counter(name for event in events for name in event.args.get("Input type") or ())
    dtypes = (tensor_dtype(name) for name, _ in names.most_common())
    return next((dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point), torch.float32)


def tensor_dtype(name: str) -> torch.dtype | None:
    """Return the dtype with this C++ name, such as ``"c10::BFloat16"``; None if no dtype has this name."""
    if name in C_TYPES:
        return C_TYPES[name]
    dtype = getattr(torch, name.removeprefix("c10::").lower(), None) if name.startswith("c10::") else None
    return dtype if isinstance(dtype, torch.dtype) else None


def _arguments(
    overload: Any, event: Event, dtype: torch.dtype, is_strict: bool, not_read: frozenset[str] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of an event if they fit the schema of an overload, otherwise None.

    Trailing arguments that have their default values are dropped, as in a dispatch mode. If the trace has no numbers, a number gets
    its default value. A number without a default value gets a placeholder if it is in ``not_read``.
    """
    schema, shown_arguments = overload._schema.arguments, _shown_arguments(event)
    if len(shown_arguments) > len(schema) or any(
        not argument.has_default_value() for argument in schema[len(shown_arguments) :]
    ):
        return None
    lists = [shown.shape for shown in shown_arguments if shown.type == TENSORS]
    if lists and not any(lists):  # all lists look empty, so the trace lacks the shapes of their tensors
        return None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    number_kept = 0
    for argument, shown in zip(schema, shown_arguments, strict=False):
        kind = str(argument.real_type)
        value = _value(kind, shown, dtype) if not_read is None else _unshown(argument, not_read, shown, dtype)
        if value is NotImplemented or (is_strict and value is None and kind in NUMBERED):
            return None
        is_default = argument.has_default_value() and (value is None or value == _tuple(argument.default_value))
        if not argument.kwarg_only:
            args.append(value)
            number_kept = number_kept if is_default else len(args)
        elif not is_default:
            kwargs[argument.name] = value
    return tuple(args[:number_kept]), kwargs


def _unshown(argument: Any, not_read: frozenset[str], shown: ShownArgument, dtype: torch.dtype) -> Any:
    """Return an argument from a trace without numbers; NotImplemented if its type does not fit or its value is unknown."""
    schema_type = str(argument.real_type)
    kind = (
        schema_type.removeprefix("Optional[").removesuffix("]") if schema_type.startswith("Optional[") else schema_type
    )
    has_default = argument.has_default_value()
    if kind in NUMBERED and shown.type in UNSHOWN:
        if has_default and argument.default_value is not None:
            return argument.default_value
        return NOT_READ.get(kind, NotImplemented) if argument.name in not_read else NotImplemented
    if kind.startswith("List[") and "Tensor" not in kind:  # in such a trace, a list of numbers looks like None
        is_tensor = tensor_dtype(shown.type) or shown.type == TENSORS
        return NotImplemented if is_tensor or not has_default else argument.default_value
    return _value(schema_type, shown._replace(type="" if shown.type == "None" else shown.type, text=None), dtype)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _shown_arguments(event: Event) -> list[ShownArgument]:
    types, *others = (event.args.get(name) or [] for name in COLUMNS)
    filled = (column if len(column) == len(types) else [None] * len(types) for column in others)
    return [*map(ShownArgument, types, *filled)]


def _value(kind: str, shown: ShownArgument, dtype: torch.dtype) -> Any:
    """Return an argument of the type ``kind``; NotImplemented if the trace shows another type."""
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if kind == "Tensor":
        if not shown.type and optional:
            return None
        tensor_type = tensor_dtype(shown.type)
        if tensor_type is None or shown.shape is None:
            return NotImplemented
        return _laid(shown.shape, shown.strides, tensor_type)
    if kind == "List[Optional[Tensor]]" and not shown.type:  # indices, which a trace does not show
        return ()
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        shapes = shown.shape
        is_shown = shapes or (shapes == [] and shown.type == TENSORS)
        if shown.type not in LISTS or not is_shown or not all(isinstance(shape, list) for shape in shapes):
            return NotImplemented
        with_strides = itertools.zip_longest(shapes, shown.strides or ())
        return tuple(_laid(shape, strides, dtype) for shape, strides in with_strides)
    if kind.startswith("List["):
        if shown.type == "ScalarList":
            return _list(shown.text)
        return None if optional and not shown.type else NotImplemented
    if kind not in NUMBERED:  # a trace does not show strings, devices and generators
        return NotImplemented if tensor_dtype(shown.type) or shown.type in (*LISTS, "ScalarList") else None
    if shown.type != "Scalar":
        return None if not shown.type else NotImplemented
    return _typed_number(kind, _number(shown.text))


def _laid(shape: list[int], strides: Any, dtype: torch.dtype) -> Laid:
    return Laid(Spec(tuple(shape), dtype), tuple(strides or ()))


def _typed_number(kind: str, value: Any) -> Any:
    if kind == "ScalarType":
        return CODES[value] if isinstance(value, int) and value < len(CODES) else None
    if kind in ("Layout", "MemoryFormat"):  # the strides of later arguments show the memory layout of the result
        return None
    if kind == "bool" and not isinstance(value, bool):
        return NotImplemented
    return NotImplemented if value is None or (kind == "int" and type(value) is not int) else value


def _list(text: Any) -> Any:
    """Return the numbers of a list that is written as text, e.g. ``"[2, 2]"``."""
    numbers = tuple(map(_number, re.findall(r"[^\[\],\s]+", str(text))))
    return NotImplemented if None in numbers else numbers


def _number(text: Any) -> Any:
    """Return the value of a number or boolean that is written as text; None for any other text."""
    if text in WORDS:
        return WORDS[text]
    for kind in (int, float, complex):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return None


def _shown_tensors(event: Event, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the tensor arguments that a trace shows for an operator without a fitting schema."""
    values = [
        _value("Tensor" if tensor_dtype(shown.type) else "List[Tensor]", shown, dtype)
        for shown in _shown_arguments(event)
    ]
    return tuple(value for value in values if value is not NotImplemented)


def _plain(value: Any) -> Any:
    """Return the value with each tensor replaced by its spec."""
    if isinstance(value, Laid):
        return value.spec
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _strides(value: Any) -> Any:
    if isinstance(value, Laid):
        return value.strides
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return tuple(map(_strides, inner))


def _result(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the spec of an overload's result for these arguments, from its meta kernel; None if it is unknown."""
    parameter_names = {argument.name for argument in overload._schema.arguments}
    tensors = tree_map(_on_meta, (args, dict(kwargs)), is_leaf=lambda each: isinstance(each, Laid))
    factory = {"device": "meta"} if "device" in parameter_names else {}
    if not factory and not [*specs_in(_plain((args, dict(kwargs))))]:
        return None
    try:
        with torch.no_grad():
            return spec_of(overload(*tensors[0], **tensors[1], **factory))
    except Exception:
        # The operator has no meta kernel, or the kernel needs values. Formulas that need the result will report that it is unknown.
        return None


def _on_meta(value: Any) -> Any:
    if not isinstance(value, Laid):
        return value
    spec, strides = value
    if len(strides) != len(spec):
        return torch.empty(tuple(spec), dtype=spec.dtype, device="meta")
    return torch.empty_strided(tuple(spec), strides, dtype=spec.dtype, device="meta")
