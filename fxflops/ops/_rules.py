"""The registry of shape rules: an op's result shape, its memory layout, and the tensors that its kernel holds meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from ..records import Spec

Parameters = tuple[tuple[str, ...], tuple[str, ...], bool, bool]
"""Names of a function's positional and keyword-only parameters, and whether it takes ``*args`` and ``**kwargs``."""
POSITIONAL: dict[Any, Any] = {inspect.Parameter.POSITIONAL_ONLY: inspect.Parameter.POSITIONAL_OR_KEYWORD}


def parameters_of(function: Any) -> Parameters:
    """Return a function's parameters, read from its code if it is plain Python: ten times as fast as its signature."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        first, names, flags = code.co_argcount, code.co_varnames, code.co_flags
        keywords = names[first : first + code.co_kwonlyargcount]
        return names[:first], keywords, bool(flags & inspect.CO_VARARGS), bool(flags & inspect.CO_VARKEYWORDS)
    kinds: dict[Any, list[str]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kinds.setdefault(POSITIONAL.get(parameter.kind, parameter.kind), []).append(name)
    of = inspect.Parameter
    named, keywords = (tuple(kinds.get(kind, ())) for kind in (of.POSITIONAL_OR_KEYWORD, of.KEYWORD_ONLY))
    return named, keywords, of.VAR_POSITIONAL in kinds, of.VAR_KEYWORD in kinds


RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])
"""A rule returns a Spec (a Result, with the layout WHOLE) or None."""
PLAIN, CONTIGUOUS, ANY, EVEN, KEPT, FORMAT, POINTWISE, ORDERED, WHOLE = (
    "plain contiguous any even kept format pointwise ordered whole".split()
)
"""Layouts of the result. PLAIN, CONTIGUOUS and KEPT hold only where the tensors after the first are contiguous.

PLAIN: contiguous if the first tensor is. CONTIGUOUS: contiguous, whatever the first tensor's strides. ANY: contiguous, whatever any
tensor's strides. KEPT: as the first tensor. FORMAT: channels last if all images are, else contiguous. POINTWISE: by
TensorIterator's rules for all operands, broadcast. EVEN is ANY, and ORDERED is POINTWISE, except that they, like KEPT, do not
apply to tensors with odd strides (``is_odd`` in ``shapes.py``). WHOLE: the rule itself returns a :class:`Result`; it gets each
tensor as a :class:`Placed`, and the device type if it has the keyword ``device``.
"""
Strides = tuple[int, ...]
Passing = tuple[Spec, ...]
"""The tensors alive at the peak within a call, its result among them; () for the result alone."""


Passed = Callable[..., Passing | None] | None


class Placed(Spec):
    """A tensor with its strides."""

    strides: Strides = ()


class Result(NamedTuple):
    """A call's result: a new tensor with its strides, or ``input`` itself with strides None; and the tensors alive at the peak."""

    out: Spec
    strides: Strides | None
    passing: Passing = ()


class Rule(NamedTuple):
    """The shape rule of an op: its function, the result's layout, the function's parameters, and a rule for the peak.

    ``passing`` returns the tensors alive at the peak within a call, or None if unknown. It takes the sizes and strides of
    the input tensors, the result, the rule's own parameters and, with ``by_device``, the device type as the keyword
    ``device``. Without ``passing`` only the result is alive. A rule with the layout WHOLE has no ``passing``.
    """

    function: Callable[..., Any]
    layout: str
    parameters: Parameters
    passing: Passed
    by_device: bool


RULES: dict[Any, Rule] = {}
"""Rules by module class, function or method: each holds for that exact spelling, and takes its parameters."""


def shape(*targets: Any, layout: str = PLAIN, passing: Passed = None) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated rule for these module classes, functions and methods."""

    def register(rule: RuleFunction) -> RuleFunction:
        names, keywords, more, others = parameters_of(rule)
        by_device = "device" in (keywords if passing is None else parameters_of(passing)[1])
        parameters = names, tuple(name for name in keywords if name != "device"), more, others
        RULES.update(dict.fromkeys(targets, Rule(rule, layout, parameters, passing, by_device)))
        return rule

    return register


def spelled(names: str, *namespaces: Any) -> list[Any]:
    """Return the functions of these names from the namespaces that have them."""
    return [getattr(space, name) for name in names.split() for space in namespaces if hasattr(space, name)]


STORED: dict[str, tuple[Callable[..., Sequence[int]], bool, str]] = {}
"""By operator: a rule for the storage bytes of its last results, which differ on meta; whether they are kept for the backward
pass only; and the device type whose kernel stores them, "" for all."""


def stores(operator: str, saved: bool = False, device: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated rule for this operator. It takes the operator's arguments, each tensor as a Spec.

    It returns the bytes of the last result, or a tuple with the bytes of the last several.
    """

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        def sizes(*args: Any) -> Sequence[int]:
            nbytes = rule(*args)
            return nbytes if isinstance(nbytes, tuple) else (nbytes,)

        STORED[operator] = sizes, saved, device
        return rule

    return register


UNWATCHED: dict[Any, tuple[Callable[..., Passing | None], Parameters]] = {}
"""Rules, with their parameters, for functions that take another path when a dispatch mode is on."""


def unwatched(*targets: Any) -> Callable[[Callable[..., Passing | None]], Callable[..., Passing | None]]:
    """Register the decorated rule for functions that compute more under a dispatch mode (``isTensorSubclassLike``).

    For example, ``svdvals`` then computes the singular vectors too. The rule returns the tensors, besides the result, that
    are alive at the peak without a mode; None if a mode changes nothing. It takes the sizes and strides of the input
    tensors and the function's own parameters; as keywords the device type ``device``, and ``learns``: whether autograd
    records the call.
    """

    def register(rule: Callable[..., Passing | None]) -> Callable[..., Passing | None]:
        names, keywords, more, others = parameters_of(rule)
        keywords = tuple(name for name in keywords if name not in ("device", "learns"))
        UNWATCHED.update(dict.fromkeys(targets, (rule, (names[1:], keywords, more, others))))
        return rule

    return register
