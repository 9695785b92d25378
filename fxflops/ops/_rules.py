"""Shape rules, registered: what an op puts out, how that lies in memory, and what its kernel holds meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from ..records import Spec

Parameters = tuple[tuple[str, ...], tuple[str, ...], bool, bool]
"""Names of a function's positional and keyword-only parameters, and whether it takes more of both kinds."""
POSITIONAL: dict[Any, Any] = {inspect.Parameter.POSITIONAL_ONLY: inspect.Parameter.POSITIONAL_OR_KEYWORD}


def parameters_of(function: Any) -> Parameters:
    """The parameters of a function, read from its code where it is plain Python: ten times as fast as its signature."""
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


RuleFunction = Callable[..., "Spec | None"]
PLAIN, FIRST, ANY, EVEN, KEPT, FORMAT, POINTWISE, ORDERED = "plain first any even kept format pointwise ordered".split()
"""Layouts. PLAIN, FIRST and KEPT ask that the tensors after the first be contiguous.

PLAIN: contiguous out of contiguous. FIRST: the first may be anything. ANY: contiguous out of whatever. KEPT: as the first. FORMAT: channels last
if all images are, else contiguous. POINTWISE: as the operands, broadcast, decide together. EVEN is ANY and ORDERED is POINTWISE, of what is not odd;
KEPT asks that too.
"""
Passing = tuple[Spec, ...]
"""What is live at once at the peak within a call, what it puts out among it; () where that alone is."""


Passed = Callable[..., Passing | None] | None


class Rule(NamedTuple):
    """What tells the shape, how the result lies, the parameters of the former, and what tells what passes meanwhile: it takes how
    the tensors lie, the result, and the rule's own parameters. Of that None says that it cannot be told; without it nothing passes."""

    function: RuleFunction
    layout: str
    parameters: Parameters
    passing: Passed


RULES: dict[Any, Rule] = {}
"""Rules by module class, function and method: the exact spelling, whose parameters they take."""


def shape(*targets: Any, layout: str = PLAIN, passing: Passed = None) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated rule for these module classes, functions and methods."""

    def register(rule: RuleFunction) -> RuleFunction:
        RULES.update(dict.fromkeys(targets, Rule(rule, layout, parameters_of(rule), passing)))
        return rule

    return register


def spelled(names: str, *namespaces: Any) -> list[Any]:
    """What the namespaces have by these names."""
    return [getattr(space, name) for name in names.split() for space in namespaces if hasattr(space, name)]


SAVED: dict[str, Callable[..., int]] = {}
"""By operator, the bytes of the last result, which meta leaves empty: what the kernel keeps for the backward pass."""


def keeps(operator: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register the decorated rule for this operator, whose arguments it takes, each tensor a Spec."""

    def register(rule: Callable[..., int]) -> Callable[..., int]:
        SAVED[operator] = rule
        return rule

    return register
