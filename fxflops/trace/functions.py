"""Properties of a called function: its name, whether it writes to its arguments, and a copy whose inner calls are observed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import CellType, FrameType, FunctionType, MethodType
from typing import Any

import torch

from ..names import Absent
from ..ops._libraries import LibraryFunction
from ..ops._registry import is_method
from ..ops._traits import METADATA
from ..records import OPERATOR, specs_in
from ..torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket

UNDECLARED = {getattr(torch.ops.aten, f"{by}_batch_norm").default for by in ("native", "cudnn", "miopen")}
"""Operators that update running statistics in place, although their schemas do not declare it."""
GIVES_MEMORY: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
"""The function behind ``x.data = y``, which gives a tensor the memory of another tensor."""
GIVES_STORAGE = frozenset({torch.Tensor.untyped_storage, torch.Tensor.storage})
"""Functions that return a tensor's storage, so that the caller may resize it: ``x.untyped_storage().resize_(0)``."""
SAME_ON_META = METADATA | {
    getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "layout", "requires_grad", "is_nested")
}
"""Functions that return the same for a real tensor and for its meta stand-in."""
PYTHON_FUNCTIONS = FunctionType, MethodType, functools.partial
"""Types of callables that may be wrapped, since a higher-order operator only calls them. (It may inspect a module.)"""
Bodies = dict[tuple[Any, ...], FunctionType]
"""Functions by their code and the ids of their closures' values."""


def qualified_name(func: Any) -> str:
    """Return the op name of a function without formula: ``mylib::scan``, ``torch.foo``, ``Tensor.bar``."""
    if isinstance(func, OpOverload):
        return str(func.name())
    if isinstance(func, OpOverloadPacket):
        return str(func._qualified_op_name)
    if isinstance(func, str):
        return func
    if isinstance(func, Absent) and "::" not in func.name:  # a library's function, or a Triton kernel
        return func.name
    name = getattr(func, "__name__", None) or type(func).__name__
    if is_method(func):
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    return f"{module}.{name}"


def origin_of(func: Any) -> str:
    """Return the origin of a call that a function mode saw: :data:`OPERATOR` for an operator of ``torch.ops.aten``, else "".

    The operators of other libraries are usually called by functions of these libraries: torchvision.ops.roi_align calls
    torch.ops.torchvision.
    """
    is_operator = isinstance(func, (OpOverload, OpOverloadPacket))
    return OPERATOR if is_operator and qualified_name(func).startswith("aten::") else ""


def writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call may write to its arguments: in-place names, item assignment, ``out=``."""
    if isinstance(func, OpOverload):
        return bool(func._schema.is_mutable) or func in UNDECLARED
    if isinstance(func, LibraryFunction):
        return bool(func.kernel.writes)
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    sets = name in ("__setitem__", "__set__") or name.startswith("__i")
    return in_place or sets or "out" in kwargs or "inplace" in kwargs


def sets_property_or_reads_grad(func: Any) -> bool:
    """Return whether a call sets a property of a tensor or reads its ``grad``: such a call runs on the tensor, not its meta stand-in."""
    name = getattr(func, "__name__", "")
    return name == "__set__" or (name == "__get__" and getattr(func.__self__, "__name__", "") == "grad")


def is_integral(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has integers or booleans. Models read such tensors (positions, lengths) with ``tolist()``."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def computes(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Return whether a call took and returned tensors; False for a higher-order operator, whose functions do the computing."""
    if isinstance(func, HigherOrderOperator):
        return False
    return any(True for _ in specs_in((args, kwargs))) and any(True for _ in specs_in(out))


def callables_in(value: Any) -> Iterator[Any]:
    """Yield the callables in nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from callables_in(item)
    elif callable(value):
        yield value


def with_callables(value: Any, within: Callable[[], AbstractContextManager[None]], kinds: Any = Callable) -> Any:
    """Return nested tuples, lists and dicts with every callable in them wrapped to run under the context manager ``within()``.

    Only callables of the types ``kinds`` are wrapped.
    """
    if isinstance(value, (tuple, list)):
        items = [with_callables(item, within, kinds) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: with_callables(item, within, kinds) for key, item in value.items()}
    if not isinstance(value, kinds):
        return value

    @functools.wraps(value)
    def entered(*args: Any, **kwargs: Any) -> Any:
        with within():
            return value(*args, **kwargs)

    return entered


def without_torch_function_guard(func: FunctionType) -> FunctionType:
    """Return a copy of a Python function of torch. The copy runs the function's body instead of calling a function mode."""
    guards = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**func.__globals__, **{name: lambda *_: False for name in guards if name in func.__globals__}}
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def copied_function_body(
    frame: FrameType, bodies: Bodies
) -> tuple[FunctionType, tuple[Any, ...], dict[str, Any]] | None:
    """Return a frame's function and the arguments of its call; None for a frame in torch.

    Some libraries copy a function from torch together with its ``if has_torch_function(...): handle_torch_function(torch_func)``.
    Under an observer's mode, that line would run torch's function. Without an observer, the body of the copy runs. So the caller
    must run the body of the copy, too.
    """
    code, names = frame.f_code, frame.f_globals
    if str(names.get("__name__")).partition(".")[0] == "torch":
        return None
    values = [frame.f_locals[name] for name in code.co_freevars]
    key = code, *map(id, values)
    if key not in bodies:  # the new function's cells keep the values alive, so that no id is reused
        bodies[key] = FunctionType(code, names, code.co_name, None, tuple(map(CellType, values)))
    return bodies[key], *arguments_of(frame)


def arguments_of(frame: FrameType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which a frame's function was just called."""
    names, star, stars, local = inspect.getargvalues(frame)  # names include keyword-only parameters
    count = frame.f_code.co_argcount
    args, kwargs = [local[name] for name in names[:count]], {name: local[name] for name in names[count:]}
    return (*args, *(local[star] if star else ())), kwargs | (local[stars] if stars else {})
