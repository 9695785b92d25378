"""Count functions of other libraries by name (``package.module:function``), without importing the libraries.

A library function counts as one call, which includes everything that the function calls. Besides the formula, a rule returns the
function's result, so that the function need not run on meta. Other rules return values that a formula cannot read from shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch

from ..errors import NeedsRealTensors
from ..names import Absent
from ..records import Cost
from ..torch_internals import DisableTorchFunction, disable_current_modes, is_fake
from ._registry import Op, formula

S = TypeVar("S", bound=Cost | int)
Values = dict[str, Any]
"""A call's arguments by name."""


class Kernel(NamedTuple):
    """The rules of a library function besides its formula.

    ``result(**arguments)`` returns the specs of the result, nested like the function's own result. A :class:`Given` stands for an
    argument that is itself returned. The rule gets only the arguments that it names, each tensor as a spec. If ``result`` is None, the
    function itself is called on meta: its Python code supports meta tensors.
    ``described(arguments)`` returns the formula's arguments, e.g. a module's weights or the parts of a packed tensor.
    ``facts(arguments)`` returns facts about the result that depend on tensor values. ``facts`` raises NotImplementedError if the values
    cannot be read.
    ``saved(**arguments)`` returns the specs of the tensors that the kernel saves for the backward pass, besides arguments and result.
    ``writes`` names the arguments that the function writes to. ``names`` lists the parameters of a C function without a signature.
    """

    result: Callable[..., Any] | None = None
    described: Callable[[Values], Values] | None = None
    facts: Callable[[Values], Mapping[str, Any]] | None = None
    saved: Callable[..., Sequence[Any]] | None = None
    writes: Sequence[str] = ()
    names: Sequence[str] = ()


KERNELS: dict[str, Kernel] = {}
"""The rules of each library function, by the function's name."""
BACKWARD = ".backward"
"""The suffix of the name under which a function's backward is recorded."""
PLAIN_CALL = Kernel()


class Given(str):
    """The name of an argument that the function itself returns, in the place where a result would have a spec."""

    __slots__ = ()


class LibraryFunction(Absent):
    """A library function, compared by ``name``. ``function`` is the imported function, or None."""

    def __init__(self, name: str, function: Any = None) -> None:
        super().__init__(name)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return LibraryFunction, (self.name,)

    @property
    def kernel(self) -> Kernel:
        """The function's rules."""
        return KERNELS.get(self.name, PLAIN_CALL)

    @property
    def backward(self) -> LibraryFunction:
        """The library function that stands for this function's backward pass."""
        return LibraryFunction(self.name + BACKWARD)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature. For the ``apply`` of an ``autograd.Function``, the signature of its forward without ``ctx``."""
        if self.kernel.names:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            return inspect.Signature([inspect.Parameter(name, kind, default=None) for name in self.kernel.names])
        owner = getattr(self.function, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            found = inspect.signature(owner.forward)
            return found.replace(parameters=[*found.parameters.values()][1:])
        return inspect.signature(self.function)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        """Return the arguments of a call by name, defaults included. Raises TypeError if the function does not take them."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values: Values = {}
        for name, value in bound.arguments.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                values.update(value)
            else:
                values[name] = value
        return values

    def described(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        """Return a call's arguments under the names that the formula uses."""
        values = self.arguments(args, kwargs)
        describe = self.kernel.described
        return values if describe is None else describe(values)


def library(
    *targets: str,
    op: str | None = None,
    result: Callable[..., Any] | None = None,
    described: Callable[[Values], Values] | None = None,
    facts: Callable[[Values], Mapping[str, Any]] | None = None,
    saved: Callable[..., Sequence[Any]] | None = None,
    writes: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Callable[[Callable[..., S]], Op[..., S]]:
    """Register the decorated function as the formula of these library functions, along with their rules (see :class:`Kernel`)."""
    KERNELS.update(dict.fromkeys(targets, Kernel(result, described, facts, saved, writes, names)))
    return formula(*targets, op=op)


def gradients_of(*names: str) -> list[str]:
    """Return the names under which the backward passes of these functions are recorded.

    The formula of a backward pass gets ``grad`` (the specs of the forward's result), the forward's arguments, and ``needs``, the names
    of the arguments that need a gradient. ``out`` has the specs of these gradients.
    """
    return [name + BACKWARD for name in names]


def is_library(target: Any) -> bool:
    """Return whether a target is a registered library function, or the backward pass of such a function."""
    if isinstance(target, Absent):
        return target.name.removesuffix(BACKWARD) in KERNELS
    return type(target) is FunctionType and f"{target.__module__}:{target.__qualname__}" in KERNELS


def values_of(tensor: Any) -> list[Any]:
    """Return the elements of a tensor that a fact depends on. Raises NeedsRealTensors for a tensor without values."""
    if not isinstance(tensor, torch.Tensor):
        return list(tensor)
    if tensor.device.type == "meta" or is_fake(type(tensor)):
        raise NeedsRealTensors("cannot read the values of a meta tensor or a fake tensor")
    with DisableTorchFunction(), disable_current_modes():
        values: list[Any] = tensor.tolist()
        return values
