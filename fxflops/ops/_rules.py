"""The registry of shape rules. A rule returns the shape and layout of an op's result, and the tensors alive while it runs."""

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
    """Return a function's parameters. The code of a plain Python function gives them ten times as fast as the function's signature."""
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
"""A rule returns a Spec or None. A rule with the layout WHOLE returns a Result or None."""
PLAIN, CONTIGUOUS, ANY, EVEN, KEPT, FORMAT, CONVOLVED, POINTWISE, ORDERED, WHOLE = (
    "plain contiguous any even kept format convolved pointwise ordered whole".split()
)
"""Layouts of the result. If the tensors are not as the table says, the rule does not apply, and the call runs torch's kernel.

=============  =======================================================  ==============  ==================  =============
layout         strides of the result                                    first tensor    other tensors       odd strides
=============  =======================================================  ==============  ==================  =============
PLAIN          contiguous                                               contiguous      contiguous          no
CONTIGUOUS     contiguous                                               any             contiguous          yes
KEPT           like the first tensor; on the CPU only if that is        any             contiguous          no
               channels last, else contiguous
ANY            contiguous                                               any             any                 yes
EVEN           contiguous                                               any             any                 no
FORMAT         channels last if all images are, else contiguous         any             any                 if they fit
                                                                                                            one layout
CONVOLVED      channels last if the input or the weight is, else        any             any                 if they fit
               contiguous                                                                                   one layout
POINTWISE      as TensorIterator lays out the broadcast operands        any             any                 yes
ORDERED        like POINTWISE                                           any             any                 no
WHOLE          as the rule says: it returns a :class:`Result`           any             any                 yes
=============  =======================================================  ==============  ==================  =============

Odd strides are those for which ``is_odd`` in ``shapes.py`` is True. A WHOLE rule takes each tensor as a :class:`Placed`, and the device type if
the rule has the keyword ``device``.
"""
Strides = tuple[int, ...]
Specs = tuple[Spec, ...]
PeakRule = Callable[..., Specs | None] | None


class Placed(Spec):
    """A tensor with its strides."""

    strides: Strides = ()


class Result(NamedTuple):
    """A call's result, and the tensors that the call makes and that are alive at its memory peak, including the result.

    ``alive_at_peak`` is () if only the result is alive. If the result is the ``input`` itself, ``strides`` is None.
    """

    out: Spec
    strides: Strides | None
    alive_at_peak: Specs = ()


class Rule(NamedTuple):
    """The shape rule of an op: its function, the result's layout, the function's parameters, and a rule for the peak.

    ``alive_at_peak`` is a function that returns the tensors alive at the peak within a call, or None if they are unknown. It takes
    the sizes and strides of the input tensors, the result, the rule's own parameters and, with ``by_device``, the device type as
    the keyword ``device``. If the rule has no such function, only the result is alive. A rule with the layout WHOLE has none.
    """

    function: Callable[..., Any]
    layout: str
    parameters: Parameters
    alive_at_peak: PeakRule
    by_device: bool


RULES: dict[Any, Rule] = {}
"""Shape rules by module class, function or method. Each rule is for one spelling and takes the parameters of this spelling."""


def shape(*targets: Any, layout: str = PLAIN, alive_at_peak: PeakRule = None) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated rule for these module classes, functions and methods. For the arguments, see :class:`Rule`."""

    def register(rule: RuleFunction) -> RuleFunction:
        names, keywords, more, others = parameters_of(rule)
        by_device = "device" in (keywords if alive_at_peak is None else parameters_of(alive_at_peak)[1])
        parameters = names, tuple(name for name in keywords if name != "device"), more, others
        RULES.update(dict.fromkeys(targets, Rule(rule, layout, parameters, alive_at_peak, by_device)))
        return rule

    return register


def spelled(names: str, *namespaces: Any) -> list[Any]:
    """Return the functions with these names in the namespaces; skip names that a namespace does not have."""
    return [getattr(space, name) for name in names.split() for space in namespaces if hasattr(space, name)]


STORED: dict[str, tuple[Callable[..., Sequence[int]], bool, str]] = {}
"""Rules for operators whose last results have another storage size on meta. Each entry has the rule that returns the bytes,
whether the results are kept only for the backward pass, and the device type whose kernel stores them ("" for all devices)."""


def stores(operator: str, saved: bool = False, device: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated rule for this operator. The rule takes the operator's arguments, each tensor as a Spec.

    The rule returns the storage bytes of the last result, or a tuple with the bytes of several last results.
    """

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        def sizes(*args: Any) -> Sequence[int]:
            nbytes = rule(*args)
            return nbytes if isinstance(nbytes, tuple) else (nbytes,)

        STORED[operator] = sizes, saved, device
        return rule

    return register


UNWATCHED: dict[Any, tuple[Callable[..., Specs | None], Parameters]] = {}
"""Rules and their parameters, for functions that run other operations while a dispatch mode is active."""


def unwatched(*targets: Any) -> Callable[[Callable[..., Specs | None]], Callable[..., Specs | None]]:
    """Register the decorated rule for functions that compute more under a dispatch mode (``isTensorSubclassLike``).

    For example, under a mode ``svdvals`` also computes the singular vectors. The rule returns the tensors, besides the
    result, that are alive at the peak without a mode. The rule returns None if a mode changes nothing. The rule takes the sizes and
    strides of the input tensors, the function's own parameters, and two keywords: ``device`` is the device type, and
    ``needs_grad`` says whether autograd records the call.
    """

    def register(rule: Callable[..., Specs | None]) -> Callable[..., Specs | None]:
        names, keywords, more, others = parameters_of(rule)
        keywords = tuple(name for name in keywords if name not in ("device", "needs_grad"))
        UNWATCHED.update(dict.fromkeys(targets, (rule, (names[1:], keywords, more, others))))
        return rule

    return register
